"""Calls beyond the depth of a burst wait for their turn, unless they are to be refused."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadlinePersistent,
    ResourceExhaustedTransient,
)
from tests.rigs import ROW, attempt, doubler, gated, runtime, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


async def test_calls_beyond_the_depth_wait_in_the_order_in_which_they_came() -> None:
    engine = gated()
    order: list[int] = []
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst(depth=1) as burst:

            async def call(number: int) -> None:
                y = await burst(np.full((1, 4), number, np.float32))
                assert y.tolist() == [[2 * number] * 4]
                order.append(number)

            calls = [await attempt(group, lambda n=n: call(n)) for n in range(6)]  # type: ignore[misc]
            await until(lambda: engine.counters.waiting == 1)
            assert burst.statistics().in_flight == 1
            engine.gate.open_wide()
            for each in calls:
                assert await each.failure() is None
            assert order == list(range(6))
            assert burst.statistics().in_flight == 0


@pytest.mark.parametrize("how", ["cancelled", "late", "wrong"])
async def test_a_call_that_waited_in_vain_leaves_its_place_to_the_next(how: str) -> None:
    engine = gated()
    x: Any = ROW if how != "wrong" else "no array"
    deadline = nn.within(ms=-1) if how == "late" else None
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst(depth=1) as burst:
            first = await attempt(group, lambda: burst(ROW))
            vain = await attempt(group, lambda: burst(x, deadline=deadline))
            last = await attempt(group, lambda: burst(ROW))
            if how == "cancelled":
                vain.scope.cancel()
                await vain.done.wait()
            engine.gate.open_wide()
            if how != "cancelled":
                wanted = MissedDeadlinePersistent if how == "late" else InvalidArgument
                assert isinstance(await vain.failure(), wanted)
            assert await first.failure() is None
            assert await last.failure() is None


async def test_closing_the_burst_ends_those_that_wait() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst(depth=1) as burst:
            calls = [await attempt(group, lambda: burst(ROW)) for _ in range(3)]
            burst.close()
            for each in calls:
                assert isinstance(await each.failure(), DeviceUnavailable)
            engine.gate.open_wide()


async def test_what_is_no_way_to_be_full_is_refused() -> None:
    async with runtime(gated()) as rt:
        net = await rt.compile(doubler())
        wrong: Any = "shed"
        with pytest.raises(InvalidArgument, match='"wait" or "refuse"'):
            net.burst(on_full=wrong)


@pytest.mark.parametrize("on_full", ["wait", "refuse"])
async def test_calls_wait_while_the_state_is_in_use(on_full: Any) -> None:
    async with runtime() as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst(depth=1, on_full=on_full) as burst:
            with burst._limit.held():
                call = await attempt(group, lambda: burst(ROW))
                with pytest.raises(BadState, match="in use"), burst._limit.held():
                    pass
                assert not call.done.is_set()
                assert burst._limit.is_full
                if on_full == "refuse":
                    with pytest.raises(ResourceExhaustedTransient):
                        await burst(ROW)
            await call.done.wait()
            assert call.result.tolist() == (2 * ROW).tolist()
            assert not burst._limit.is_full
