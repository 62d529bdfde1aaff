"""Which devices are there by default, and what is said of those that are not."""

from __future__ import annotations

import pytest

from nnasync import drivers
from nnasync.drivers import DRIVERS, check_installed, default_devices, is_installed
from nnasync.errors import InvalidArgument


def test_reference_is_always_there_and_last() -> None:
    assert default_devices()[-1] == "nnasync-reference"


def test_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(DRIVERS, "elsewhere-cpu", "nnasync.drivers.elsewhere:Engine")
    monkeypatch.setattr(drivers, "EXTRAS", {"elsewhere-cpu": ("no_such_package", "elsewhere")})
    assert not is_installed("elsewhere-cpu")
    with pytest.raises(InvalidArgument, match=r"pip install 'nnasync\[elsewhere\]'"):
        check_installed("elsewhere-cpu")
