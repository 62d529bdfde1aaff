"""Each kind of mode on devices that are made wrong on purpose gets exactly its verdict."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nnasync.suites import Standing
from tests.suites.crash.rig import crash_rows

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop(reason="what is judged happens in children, on a loop of their own"),
]

IN_PROCESS = "parallel-inference-stress-in-process"
SERVED = "parallel-inference-stress"
LOADING = "model-loading-stress"


@pytest.mark.slow
async def test_a_device_that_dies_in_its_clients_process_crashes(tmp_path: Path) -> None:
    quiet, row = await crash_rows("crashing", tmp_path, IN_PROCESS)
    assert quiet.standing is Standing.SUCCESS, quiet
    assert row.standing is Standing.CRASH
    assert "the process died: SIGSEGV" in row.text
    command = row.findings[0].command
    assert command.startswith(f"nnasync suite crash {IN_PROCESS} --device tests.suites.crash.")
    assert command.endswith("--scale 1e-06 --seed 0")


async def test_a_device_that_hangs_is_told_and_the_next_mode_goes_on(tmp_path: Path) -> None:
    rows = await crash_rows("hanging", tmp_path, IN_PROCESS, LOADING, patience_s=1)
    assert [row.standing for row in rows[:2]] == [Standing.SUCCESS, Standing.HANG]
    assert rows[2].subject == f"{LOADING}: 1 client"
    assert "no end within" in rows[1].text


async def test_a_driver_that_dies_in_its_own_process_is_told_from_its_clients(
    tmp_path: Path,
) -> None:
    _, row = await crash_rows("crashing", tmp_path, SERVED)
    assert row.standing is Standing.CRASH
    assert "the driver's process: the process died: SIGSEGV" in row.text
    assert row.text.endswith("its clients lived")


@pytest.mark.slow
async def test_answers_that_are_off_by_3_percent_under_load_are_told(tmp_path: Path) -> None:
    quiet, row = await crash_rows("off_under_load", tmp_path, IN_PROCESS)
    assert quiet.standing is Standing.SUCCESS, quiet
    assert row.standing is Standing.FAILURE
    assert "wrong under stress: output 0 is off by 3 % of its range" in row.text


@pytest.mark.slow
async def test_a_network_that_kills_its_device_in_quiet_is_left_out(tmp_path: Path) -> None:
    quiet, row = await crash_rows("dying_at_once", tmp_path, LOADING)
    assert quiet.standing is Standing.CRASH
    assert "SIGSEGV, at: small_0" in quiet.text
    assert "SIGSEGV, at: small_1" in quiet.text
    assert (row.standing, row.text) == (
        Standing.SKIPPED,
        "the device takes none of the networks",
    )


@pytest.mark.slow
async def test_each_mode_on_a_device_without_fault_succeeds(tmp_path: Path) -> None:
    from nnasync.suites.crash import MODES

    names = [mode.name for mode in MODES if "degradation" not in mode.name]
    rows = await crash_rows("right", tmp_path, *names, least_s=1)
    assert {row.subject: row.text for row in rows if row.standing is not Standing.SUCCESS} == {}


async def test_cancelled_it_leaves_no_child(tmp_path: Path) -> None:
    before = _children()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(crash_rows, "right", tmp_path, LOADING)
            while _children() == before:
                await anyio.lowlevel.checkpoint()
            scope.cancel()
    assert _children() == before


def _children() -> set[str]:
    return {
        child
        for each in Path(f"/proc/{os.getpid()}/task").glob("*/children")
        for child in each.read_text("ascii").split()
    }
