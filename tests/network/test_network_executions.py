"""Executions on a device behind TCP."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.service.network_session import NetworkSession
from nnasync.fences import Fence
from nnasync.hal import DataLocation, ExecutionConfig, Request, RequestArgument
from tests import rigs
from tests.network.distance import distant
from tests.service.rig import Slot

pytestmark = pytest.mark.anyio


async def test_values_go_there_and_come_back() -> None:
    async with distant() as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        for row in (rigs.ROW, rigs.ONES):
            slot.x[...] = row
            await prepared.execute(slot.request)
            assert slot.y.tolist() == (2 * row).tolist()
        await prepared.close()


async def test_a_runtime_uses_it_as_any_device() -> None:
    async with distant() as there, rigs.runtime(there.device) as runtime:
        net = await runtime.compile(rigs.calculator())
        total, product = await net(rigs.ROW, rigs.ONES)
        assert total.tolist() == (rigs.ROW + 1).tolist()
        assert product.tolist() == rigs.ROW.tolist()
        assert {part.device for part in net.report().partitions} == {rigs.REFERENCE}


async def test_errors_come_out_as_what_they_were() -> None:
    async with distant() as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        with pytest.raises(nn.errors.InvalidArgument, match="inputs, the model has 1"):
            await prepared.execute(nn.hal.Request((), slot.request.outputs, slot.request.pools))


async def test_a_deadline_that_passes_while_the_device_is_busy() -> None:
    engine = rigs.gated()
    async with distant(engine) as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        with pytest.raises(nn.errors.MissedDeadline):
            await prepared.execute(slot.request, deadline(ms=20))
        with pytest.raises(nn.errors.MissedDeadlinePersistent):
            await prepared.execute(slot.request, deadline(ms=-1))
        engine.gate.open_wide()
        await prepared.execute(slot.request, deadline(s=3600))
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()


async def test_who_leaves_frees_the_device() -> None:
    engine = rigs.gated(steps=4)
    async with distant(engine) as there:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        async with anyio.create_task_group() as group:
            group.start_soon(prepared.execute, slot.request)
            await engine.when(lambda counters: counters.waiting > 0)
            group.cancel_scope.cancel()
        engine.gate.open_wide()
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()


async def test_calls_side_by_side() -> None:
    async with distant() as there:
        prepared = await there.device.prepare_model(rigs.doubler())
        slots = [Slot(number * rigs.ONES) for number in range(40)]
        async with anyio.create_task_group() as group:
            for slot in slots:
                group.start_soon(prepared.execute, slot.request)
        assert [slot.y[0, 0] for slot in slots] == [2 * number for number in range(40)]


async def test_large_values_that_do_not_fit_into_one_packet() -> None:
    shape = (1, 1 << 18)
    builder = nn.ModelBuilder("large")
    x = builder.input("x", shape)
    builder.output("y", builder.add(x, np.full(shape, 3, np.float32)))
    async with distant() as there, rigs.runtime(there.device) as runtime:
        net = await runtime.compile(builder.build())
        given = np.arange(1 << 18, dtype=np.float32).reshape(shape)
        for _ in range(3):
            assert np.array_equal(await net(given), given + 3)


async def test_a_chain_of_launches_behind_a_fence() -> None:
    async with distant() as there:
        prepared = await there.device.prepare_model(rigs.doubler())
        first, second, begin = Slot(0), Slot(0), Fence()
        one = await prepared.execute_fenced(first.request, [begin])
        middle = Request(
            (RequestArgument(location=DataLocation(0, 32, 16)),),
            (RequestArgument(location=DataLocation(1, 32, 16)),),
            (first.pool, second.pool),
        )
        two = await prepared.execute_fenced(middle, [one.fence], ExecutionConfig(measure=True))
        with pytest.raises(nn.errors.BadState):
            await two.get_execution_info()
        first.x[...] = rigs.ROW
        begin.signal()
        await two.fence
        assert second.y.tolist() == (4 * rigs.ROW).tolist()
        info = await two.get_execution_info()
        timing = info.timing_fenced
        assert 0 < timing.time_on_device_ns <= timing.time_in_driver_ns
        assert info.timing_launched.time_in_driver_ns >= timing.time_in_driver_ns


async def test_launches_that_come_to_nothing() -> None:
    async with distant() as there:
        prepared, slot, begin = await there.device.prepare_model(rigs.doubler()), Slot(), Fence()
        cancelled = await prepared.execute_fenced(slot.request, [begin])
        cancelled.cancel()
        with pytest.raises(nn.errors.Cancelled):
            await cancelled.fence
        late = await prepared.execute_fenced(slot.request, [begin], deadline(ms=20))
        with pytest.raises(nn.errors.MissedDeadline):
            await late.fence
        failed = await prepared.execute_fenced(slot.request, [begin])
        begin.fail(nn.errors.GeneralFailure("the camera is gone"))
        with pytest.raises(nn.errors.DeviceError, match="the camera is gone"):
            await failed.fence
        assert slot.y.tolist() == [[0, 0, 0, 0]]


async def test_the_state_of_a_burst_stays_there() -> None:
    async with distant() as there, rigs.runtime(there.device) as runtime:
        net = await runtime.compile(rigs.counter())
        async with net.burst() as burst:
            for number in range(1, 5):
                assert (await burst(rigs.ROW)).tolist() == (number * rigs.ROW).tolist()
            await burst.reset()
            await burst.load_state({"total": rigs.ONES})
            assert (await burst(rigs.ROW)).tolist() == (rigs.ROW + 1).tolist()
            assert await rigs.total(burst) == list(rigs.ROW[0] + 1)
        del burst
        engine = there.runtime.devices[0]
        await rigs.until(lambda: engine._buffers.statistics().buffers == 0)  # type: ignore[attr-defined]  # an engine's device


async def test_buffers_are_copied_there_and_back() -> None:
    async with distant() as there, rigs.runtime(there.device) as runtime:
        net = await runtime.compile(rigs.doubler())
        x, y = await runtime.allocate(net.input_role()), await runtime.allocate(net.output_role())
        await x.write(rigs.ROW)
        await net(x, out=y)
        assert (await y.read()).tolist() == (2 * rigs.ROW).tolist()
        await x.close()
        await y.close()


async def test_a_service_that_answers_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    send = NetworkSession.send_values

    has_less = False

    def less(self: NetworkSession, message: Any, values: Any, call: int, sent: Any) -> None:
        send(self, message, [memoryview(b"less")] if has_less else values, call, sent)

    monkeypatch.setattr(NetworkSession, "send_values", less)
    async with distant() as there, rigs.runtime(there.device) as runtime:
        prepared, slot = await there.device.prepare_model(rigs.doubler()), Slot()
        net = await runtime.compile(rigs.doubler())
        buffer = await runtime.allocate(net.input_role())
        await buffer.write(rigs.ROW)
        has_less = True
        with pytest.raises(nn.errors.GeneralFailure, match="without the values of the outputs"):
            await prepared.execute(slot.request)
        launched = await prepared.execute_fenced(slot.request)
        assert "without the values" in str(await rigs.failure(launched.fence))
        with pytest.raises(nn.errors.GeneralFailure, match="without the contents"):
            await buffer.read()
        await buffer.close()


def deadline(**time: float) -> ExecutionConfig:
    return ExecutionConfig(deadline_ns=nn.within(**time).at_ns)
