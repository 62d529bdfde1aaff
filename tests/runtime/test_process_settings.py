"""What a runtime asks of the system for the thread of its loop, and for its workers."""

from __future__ import annotations

import os
import sys
import threading

import msgspec
import pytest

import nnasync as nn
from nnasync._core.os_threads import niceness
from nnasync._core.timeslice import has_time_slices, set_time_slice
from nnasync._core.workers import neighbors
from tests.rigs import ONES, POOL, doubler

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has it for each thread")


def niceness_of_workers() -> list[int]:
    return [
        os.getpriority(os.PRIO_PROCESS, each.native_id or 0)
        for each in threading.enumerate()
        if each.name.startswith(("nnasync-worker", "nnasync-low"))
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("wanted", [0, 3])
@pytest.mark.parametrize("priority", [nn.Priority.LOW, nn.Priority.HIGH])
async def test_workers_are_nicer_than_the_loop(
    wanted: int, priority: nn.Priority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbors, "_PERIOD_NS", 3600 * 10**9)  # What others do must not matter.
    mine = niceness()
    options = msgspec.structs.replace(POOL, worker_niceness=wanted)
    async with nn.open_runtime(devices=["nnasync-reference"], options=options) as runtime:
        net = await runtime.compile(doubler(), priority=priority)
        await net(ONES)
        found = niceness_of_workers()
    assert found
    assert set(found) == {min(mine + wanted, 19)}
    assert niceness() == mine


@pytest.mark.anyio
async def test_the_loop_has_a_slice_of_its_own_until_the_end() -> None:
    if not has_time_slices():
        pytest.skip("this system has no time slices that a thread may choose")
    set_time_slice(0)  # Others may have left another one.
    before = set_time_slice(0)
    async with nn.open_runtime(devices=["nnasync-reference"], options=POOL):
        during = set_time_slice(300_000)
    assert during == POOL.time_slice_us * 1000
    assert set_time_slice(0) == before
