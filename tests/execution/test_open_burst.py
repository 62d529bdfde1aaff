"""Bursts of networks whose shapes are open."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadlinePersistent,
    ResourceExhaustedTransient,
)
from tests.execution.test_flexible import adder, ones
from tests.rigs import HOUR, Attempt, ManualWatchdog, attempt, both, free, gated, runtime, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@both
async def test_each_call_brings_its_shape(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(adder())
        async with net.burst() as burst:
            assert burst.statistics().hot
            for rows in (1, 2000, 3):
                found, timing = await burst.measured(ones(rows, 3), ones(rows, 3))
                assert found.shape == (rows, 3)
                assert (found == 2).all()
                assert timing.time_on_device_ns > 0
            out = np.zeros((2, 3), np.float32)
            assert await burst(ones(2, 3), ones(2, 3), out=out) is out
            with pytest.raises(GeneralFailure, match="ADD"):
                await burst(ones(2, 3), ones(5, 3))
            counts = burst.statistics()
            assert (counts.submitted, counts.succeeded, counts.failed) == (5, 4, 1)
        with pytest.raises(BadState, match="not open"):
            await burst(ones(1, 3), ones(1, 3))


def same(inputs: Any) -> Any:
    return [inputs[0].copy()]


async def value(call: Attempt) -> Any:
    """What a call in a task answered."""
    assert await call.failure() is None
    return call.result


def copying(shape: nn.hal.Shape = (0, 3)) -> nn.Model:
    """One input of any number of rows, and one output like it."""
    m = nn.ModelBuilder("copying")
    x = m.input("x", shape)
    m.output("y", m.operation(nn.OperationType.RELU, x, output=x))
    return m.build()


async def test_calls_wait_in_their_order_for_the_one_before() -> None:
    engine = gated(same)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(copying())
        async with net.burst(depth=3, on_full="refuse") as burst:
            x = ones(1, 3)
            first = await attempt(group, lambda: burst(x))
            second = await attempt(group, lambda: burst(x))
            third = await attempt(group, lambda: burst(2 * x))
            assert burst.statistics().in_flight == 3
            with pytest.raises(ResourceExhaustedTransient, match="its depth"):
                await burst(x)
            x[...] = 9
            await until(lambda: engine.counters.waiting == 1)
            assert engine.counters.run == 1
            second.scope.cancel()
            await second.done.wait()
            assert not third.done.is_set()
            engine.gate.open_wide()
            assert (await value(first)).tolist() == [[1, 1, 1]]
            assert (await value(third)).tolist() == [[2, 2, 2]]
            counts = burst.statistics()
            assert (counts.submitted, counts.succeeded, counts.failed) == (3, 2, 1)


async def test_who_waits_is_answered_at_the_deadline(watchdog: ManualWatchdog) -> None:
    engine = gated(same)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(copying())
        async with net.burst() as burst:
            first = await attempt(group, lambda: burst(ones(1, 3)))
            deadline = nn.within(**HOUR)
            second = await attempt(group, lambda: burst(ones(1, 3), deadline=deadline))
            watchdog.ring(deadline)
            assert isinstance(await second.failure(), MissedDeadlinePersistent)
            engine.gate.open_wide()
            await value(first)


async def test_closing_ends_what_is_in_flight() -> None:
    engine = gated(same)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(copying())
        async with net.burst() as burst:
            first = await attempt(group, lambda: burst(ones(1, 3)))
            second = await attempt(group, lambda: burst(ones(1, 3)))
        assert isinstance(await second.failure(), DeviceUnavailable)
        engine.gate.open_wide()
        assert isinstance(await first.failure(), DeviceUnavailable)
        await free(rt)
