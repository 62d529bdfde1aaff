"""Fingerprints of drivers: those of third parties change when their files do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.compilation import provenance
from nnasync._core.compilation.provenance import fingerprints
from tests.compilation.rig import ManualClock, competing, way
from tests.compilation.rig import clock as clock
from tests.rigs import doubler

pytestmark = pytest.mark.one_loop("Where a choice comes from depends on no loop.")

SOURCE = "from tests.compilation.rig import FakeEngine\n\nclass Driver(FakeEngine):\n    pass\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the package `acme_driver`, which can be imported."""
    folder = tmp_path / "acme_driver"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "parts").mkdir()
    (folder / "parts" / "steps.py").write_text("ONE = 1\n")
    (folder / "engine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    forget()


def forget() -> None:
    """As a new process: nothing is imported, nothing was looked at."""
    for name in [name for name in sys.modules if name.startswith("acme_driver")]:
        del sys.modules[name]
    provenance._digest.cache_clear()


def driver(clock: ManualClock, *ways: Any) -> Any:
    forget()
    module: Any = __import__("acme_driver.engine", fromlist=["Driver"])
    return module.Driver("acme", clock, *(ways or (way(us=50),)))


async def code_of(engine: Any) -> dict[str, str]:
    async with competing(engine) as rt:
        return fingerprints(rt.devices)


@pytest.mark.anyio
async def test_it_stays_while_no_file_changes(package: Path, clock: ManualClock) -> None:
    first = await code_of(driver(clock))
    assert list(first) == ["acme"]
    assert await code_of(driver(clock)) == first
    (package / "notes.txt").write_text("no code")
    assert await code_of(driver(clock)) == first


@pytest.mark.anyio
@pytest.mark.parametrize("file", ["engine.py", "parts/steps.py", "native.so"])
async def test_it_changes_with_any_file_of_code(
    package: Path, clock: ManualClock, file: str
) -> None:
    first = await code_of(driver(clock))
    with (package / file).open("a") as opened:
        opened.write("# edited\n")
    assert await code_of(driver(clock)) != first


@pytest.mark.anyio
async def test_within_a_process_it_is_that_of_what_was_imported(
    package: Path, clock: ManualClock
) -> None:
    engine = driver(clock)
    first = await code_of(engine)
    (package / "engine.py").write_text(SOURCE + "# edited\n")
    assert await code_of(engine) == first


@pytest.mark.anyio
async def test_our_own_devices_have_none() -> None:
    async with nn.open_runtime(devices=["nnasync-reference", "null"]) as rt:
        assert fingerprints(rt.devices) == {}


def test_code_without_files_is_known_in_this_process_only() -> None:
    assert provenance._digest("no_such_module") == provenance._UNKNOWN


@pytest.mark.anyio
@pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning")
async def test_an_edited_driver_is_measured_and_judged_again(
    package: Path, clock: ManualClock
) -> None:
    async with competing(driver(clock)) as rt:
        assert (await rt.compile(doubler())).report().candidates[0].verdict == "chosen"
    (package / "parts" / "steps.py").write_text("ONE = 2  # wrong\n")
    wrong = driver(clock, way(us=50, error=100), way("exact", us=100))
    async with competing(wrong) as rt:
        report = (await rt.compile(doubler())).report()
    assert "as measured before" not in report.partitions[0].reason
    assert [line.verdict for line in report.candidates] == [
        "disagrees with the reference",
        "chosen",
    ]
