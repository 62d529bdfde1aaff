"""Old names of parameters."""

from __future__ import annotations

import inspect

import anyio
import pytest

import nnasync as nn
from nnasync._core.runtime.renamed import renamed


@renamed(shade="color")
async def painted(color: str = "none") -> str:
    return color


def test_the_old_name_works_and_warns() -> None:
    assert inspect.iscoroutinefunction(painted)
    assert anyio.run(painted, "red") == "red"

    async def old() -> str:
        return await painted(shade="blue")  # type: ignore[call-arg]

    with pytest.warns(DeprecationWarning, match="shade is called color now"):
        assert anyio.run(old) == "blue"


def test_networks_are_compiled_with_the_old_name_too() -> None:
    assert "optimize_after" in inspect.signature(nn.Runtime.compile).parameters
