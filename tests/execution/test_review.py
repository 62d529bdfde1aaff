"""Chains of calls and launches at their edges: deep streams, and sources that are closed early."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import BadState
from nnasync.fences import Fence
from tests.rigs import ROW, double, doubler, floats, runtime, until_inline

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

MANY = 3000
INLINE_FOR_LONG = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=20_000)
"""So much inline work per turn that thousands of queued calls answer within one another."""


@pytest.mark.one_loop("Calls answer within one another in the scheduler.")
async def test_thousands_of_queued_calls_are_no_deep_recursion() -> None:
    async with runtime(NullEngine(compute=double), options=INLINE_FOR_LONG) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        async with net.burst(depth=MANY) as burst:
            async with anyio.create_task_group() as group:
                for _ in range(MANY):
                    group.start_soon(partial(burst, ROW))
            statistics = burst.statistics()
            assert (statistics.succeeded, statistics.in_flight) == (MANY, 0)


async def test_regions_of_a_closed_execution_are_refused() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        first = await net.launch(ROW)
        await first.fence
        first.close()
        with pytest.raises(BadState, match="closed"):
            await net.launch(first.outputs)


async def test_a_source_closed_early_is_not_overwritten() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        first = await net.launch(ROW)
        await first.fence
        ready = Fence()
        second = await net.launch(first.outputs, wait_for=[ready])
        first.close()
        await net(floats(9, 9, 9, 9))
        ready.signal()
        assert (await second.result()).tolist() == [[4, 8, 12, 16]]


async def test_a_source_closed_after_its_readers_is_recycled() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        first = await net.launch(ROW)
        second = await net.launch(first.outputs, wait_for=[first.fence])
        await second.fence
        pool = first.outputs[0].pool
        first.close()
        third = await net.launch(ROW)
        assert third.outputs[0].pool is pool
        await third.fence
