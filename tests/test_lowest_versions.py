"""The lowest versions with which nightly runs test serving."""

from __future__ import annotations

import pytest

from scripts.lowest_versions import declared, lowest


def test_bounds_become_versions() -> None:
    assert lowest(["a>=1.2", "b-c[d,e]>=3", "f>=0.1; python_version < '4'"]) == [
        "a==1.2.*",
        "b-c==3.*",
        "f==0.1.*",
    ]
    with pytest.raises(ValueError, match="'a<2' has no lower bound"):
        lowest(["a<2"])


def test_what_serving_needs_has_bounds() -> None:
    assert {"starlette", "uvicorn", "grpcio"} <= {
        each.partition("==")[0] for each in lowest(declared())
    }
