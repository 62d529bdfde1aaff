"""Which devices are there by default, and what is said of those that are not."""

from __future__ import annotations

import pytest

from nnasync import drivers
from nnasync.drivers import DRIVERS, built_in, check_installed, default_devices, is_installed, late
from nnasync.engine import LateEngine
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


@pytest.mark.parametrize("name", [name for name in DRIVERS if name != "null"])
def test_a_late_engine_says_what_the_engine_says(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    known, engine = late(name), built_in(name)
    assert isinstance(known, LateEngine)
    assert (known.name, known.version, known.type) == (engine.name, engine.version, engine.type)
    assert type(known.make()) is type(engine)


def test_an_engine_without_a_distribution_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert late("null").name == "null"
    assert not isinstance(late("null"), LateEngine)
    monkeypatch.setattr(drivers, "version_of", lambda _: None)
    assert not isinstance(late("nnasync-reference"), LateEngine)
