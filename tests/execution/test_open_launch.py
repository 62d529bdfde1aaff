"""Launches of networks whose shapes are open: outputs come with the fence."""

from __future__ import annotations

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.engine_device.gates import DependencyFailed
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
)
from nnasync.fences import Fence
from nnasync.hal import ErrorStatus
from tests.execution.test_flexible import adder, counting, ones
from tests.rigs import HOUR, ManualWatchdog, both, doubler, failure, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@both
async def test_each_launch_brings_its_shape(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(adder())
        for rows in (1, 2000, 3):
            with await net.launch(ones(rows, 3), ones(rows, 3), measure=True) as execution:
                await execution.fence
                (total,) = execution.outputs
                assert total.shape == (rows, 3)
                assert (total == 2).all()
                assert (await execution.result() == 2).all()
                info = await execution.info()
                assert info.status == ErrorStatus.NONE
                timing = info.timing_fenced
                assert 0 < timing.time_on_device_ns <= timing.time_in_driver_ns
                assert timing.time_in_driver_ns <= info.timing_launched.time_in_driver_ns


async def test_inputs_may_be_reused_at_once() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        gate, x = Fence(), ones(4, 3)
        execution = await net.launch(x, x, wait_for=[gate])
        x[...] = 7
        assert not execution.fence.done
        with pytest.raises(BadState, match="await it first"):
            _ = execution.outputs
        with pytest.raises(BadState, match="has not finished"):
            await execution.info()
        gate.signal()
        assert (await execution.result() == 2).all()


async def test_a_region_is_read_when_its_fence_is_signaled() -> None:
    async with runtime() as rt:
        first, second = await rt.compile(doubler()), await rt.compile(adder((0, 4)))
        gate = Fence()
        one = await first.launch(ones(1, 4), wait_for=[gate])
        (region,) = one.outputs
        two = await second.launch(region, region, wait_for=[one.fence])
        one.close()
        gate.signal()
        assert isinstance(await failure(two.fence), DependencyFailed)
        one = await first.launch(ones(1, 4))
        two = await second.launch(*one.outputs, *one.outputs, wait_for=[one.fence])
        assert (await two.result()).tolist() == [[4, 4, 4, 4]]


async def test_a_failed_dependency_is_the_cause() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        gate = Fence()
        one = await net.launch(ones(1, 3), ones(1, 3), wait_for=[gate])
        two = await net.launch(ones(1, 3), ones(1, 3), wait_for=[one.fence])
        gate.fail(GeneralFailure("the first"))
        error = await failure(two.fence)
        assert isinstance(error, DependencyFailed)
        assert "the first" in str(error.__cause__)
        assert (await two.info()).status == ErrorStatus.GENERAL_FAILURE
        with pytest.raises(BadState, match="failed or is closed"):
            _ = two.outputs


async def test_what_does_not_fit_is_said_at_once() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        with pytest.raises(InvalidArgument, match="any size"):
            await net.launch(ones(2, 4), ones(2, 3))
        execution = await net.launch(ones(2, 3), ones(5, 3))
        error = await failure(execution.fence)
        assert "operation 0 (ADD)" in str(error)


async def test_the_answer_comes_at_the_deadline(watchdog: ManualWatchdog) -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        gate, deadline = Fence(), nn.within(**HOUR)
        execution = await net.launch(ones(1, 3), ones(1, 3), wait_for=[gate], deadline=deadline)
        watchdog.ring(deadline)
        assert isinstance(await failure(execution.fence), MissedDeadlinePersistent)
        gate.signal()


async def test_a_duration_counts_from_the_last_fence() -> None:
    async with runtime() as rt:
        net = await rt.compile(counting(1000))
        execution = await net.launch(np.zeros(1, np.float32), duration_s=0.005)
        assert isinstance(await failure(execution.fence), nn.errors.MissedDeadline)


async def test_a_launch_can_be_cancelled_and_closed() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        gate = Fence()
        execution = await net.launch(ones(1, 3), ones(1, 3), wait_for=[gate])
        execution.cancel()
        assert isinstance(await failure(execution.fence), Cancelled)
        with await net.launch(ones(1, 3), ones(1, 3), wait_for=[gate]) as execution:
            pass
        assert isinstance(await failure(execution.fence), Cancelled)


async def test_closing_the_runtime_ends_what_waits() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        execution = await net.launch(ones(1, 3), ones(1, 3), wait_for=[Fence()])
    assert isinstance(execution.fence.error, DeviceUnavailable)


async def test_out_takes_buffers() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder((0, 3)))
        buffer = await rt.allocate(net.output_role(0), shape=(2, 3))
        async with buffer:
            execution = await net.launch(ones(2, 3), ones(2, 3), out=[buffer])
            await execution.fence
            assert execution.outputs == (buffer,)
            assert (await buffer.read() == 2).all()
