"""Which devices are there by default, and what is said of those that are not."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from nnasync._core import drivers
from nnasync._core.drivers import (
    DRIVERS,
    Driver,
    built_in,
    check_installed,
    comes_with_nnasync,
    default_devices,
    driver_facts,
    is_installed,
    late,
)
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device.late import LateEngine
from nnasync.errors import InvalidArgument

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_reference_is_always_there_and_last() -> None:
    assert default_devices()[-1] == "nnasync-reference"


def test_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver("nnasync._core.drivers.elsewhere:Engine", "no_such_package", "elsewhere")
    monkeypatch.setitem(DRIVERS, "elsewhere-cpu", driver)
    assert not is_installed("elsewhere-cpu")
    with pytest.raises(InvalidArgument, match=r"pip install 'nnasync\[elsewhere\]'"):
        check_installed("elsewhere-cpu")


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver that is added to the table, and nowhere else."""
    driver = Driver(
        "nnasync._core.drivers.null:NullEngine",
        "anyio",
        "trio",
        "anyio",
        known_gaps={"conv*": "no convolutions"},
        exact_coupling=True,
    )
    monkeypatch.setattr(drivers, "DRIVERS", {"added": driver, **DRIVERS})
    return driver


def test_one_entry_adds_a_driver(added: Driver) -> None:
    assert default_devices()[0] == "added"
    engine = late("added")
    assert isinstance(engine, LateEngine)
    assert engine.version == metadata.version("anyio")
    assert driver_facts("added") == added


def test_one_that_computes_nothing_runs_only_by_name() -> None:
    assert "null" in DRIVERS
    assert "null" not in default_devices()


def test_what_others_make_of_our_classes_is_theirs() -> None:
    assert all(comes_with_nnasync(late(name)) for name in DRIVERS if is_installed(name))
    assert comes_with_nnasync(NullEngine())
    assert not comes_with_nnasync(NullEngine(name="acme"))


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
def test_extras_of_the_project_bring_what_drivers_need(driver: Driver) -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert bool(driver.package) == bool(driver.extra)
    if driver.extra:
        assert any(needed.startswith(driver.distribution) for needed in extras[driver.extra])
        assert driver.extra in re.split(r"[\[,\]]", extras["engines"][0])


@pytest.mark.parametrize("name", [name for name in DRIVERS if DRIVERS[name].computes])
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
