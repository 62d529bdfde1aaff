"""Prepared models of devices that are no engines: what they fail to execute, the reference does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync._core.plans.guarded import TOLERATED_FAILURES
from nnasync.burst import BurstResult, Channel, LocalChannel
from nnasync.device import FencedExecution, PreparedModel
from nnasync.errors import DeviceDied, DeviceUnavailable, GeneralFailure, NNError
from nnasync.fences import Fence
from nnasync.hal import DEFAULT_CONFIG, DataLocation, ErrorStatus, Request, RequestArgument
from nnasync.memory import Pool
from tests.engine_device.rig import Rig, Row
from tests.rigs import REFERENCE, ROW, count, counter, doubler, failure, runtime, total
from tests.service.rig import served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.one_loop,
]


class Outside:
    """The reference as a device of its own workers, known by the HAL alone; `faults` by method."""

    name = "outside"

    def __init__(self) -> None:
        self.rig = Rig(ReferenceEngine())
        self.faults: dict[str, type[NNError]] = {}
        self.executions = 0
        self.prepared: list[PreparedModel] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rig.device, name)

    async def prepare_model(self, *args: Any, **options: Any) -> Prepared:
        return Prepared(self, await self.rig.device.prepare_model(*args, **options))

    def check(self, where: str) -> None:
        """Raise the fault of a method."""
        fault = self.faults.get(where)
        if fault is not None:
            raise fault(f"{where} failed")


class Prepared:
    """Its prepared model."""

    def __init__(self, device: Outside, inner: Any) -> None:
        self.device = device
        self.inner = inner

    async def execute(self, request: Request, config: Any = DEFAULT_CONFIG) -> Any:
        self.device.executions += 1
        self.device.check("execute")
        return await self.inner.execute(request, config)

    execute_synchronously = execute

    async def execute_fenced(
        self, request: Request, wait_for: Sequence[Fence] = (), config: Any = DEFAULT_CONFIG
    ) -> FencedExecution:
        self.device.executions += 1
        self.device.check("launch")
        launched: FencedExecution = await self.inner.execute_fenced(request, wait_for, config)
        return Failing(self.device, launched) if "fence" in self.device.faults else launched

    async def configure_execution_burst(
        self, callback: Any, requests: Channel, results: Channel
    ) -> Any:
        self.device.check("burst")
        mine = LocalChannel()
        context = await self.inner.configure_execution_burst(
            callback, mine, Results(self.device, results)
        )
        requests.listen(lambda message: self.begin(mine, message))
        return Context(context)

    def begin(self, channel: Channel, message: bytes) -> None:
        self.device.executions += 1
        self.device.check("send")
        channel.send(message)

    async def close(self) -> None:
        await self.inner.close()


class Context:
    """A burst context that runs nothing inline."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def free_memory(self, slot: int) -> None:
        self.inner.free_memory(slot)

    def close(self) -> None:
        self.inner.close()


class Failing:
    """An execution that fails when it is over."""

    def __init__(self, device: Outside, launched: FencedExecution) -> None:
        self.fence = Fence()
        self._launched = launched
        self._kind = device.faults["fence"]
        launched.fence.add_callback(self._over)

    def _over(self, fence: Fence) -> None:
        self.fence.fail(fence.error or self._kind("fence failed"))

    async def get_execution_info(self) -> Any:
        return await self._launched.get_execution_info()

    def cancel(self) -> None:
        self._launched.cancel()


class Results:
    """A result channel on which results turn into failures."""

    def __init__(self, device: Outside, channel: Channel) -> None:
        self.device = device
        self.channel = channel

    def send(self, message: bytes) -> None:
        kind = self.device.faults.get("result")
        if kind is not None:
            result = msgspec.msgpack.decode(message, type=BurstResult)
            message = msgspec.msgpack.encode(
                BurstResult(result.serial, kind.status, "result failed")
            )
        self.channel.send(message)

    def listen(self, receive: Any) -> None:
        self.channel.listen(receive)

    def close(self) -> None:
        self.channel.close()


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Outside, nn.Runtime]]:
    device = Outside()
    try:
        async with runtime(device, REFERENCE) as rt:
            yield device, rt
    finally:
        device.rig.close()


def told(net: nn.Net) -> list[tuple[str, tuple[int, ...], str, int]]:
    return [(f.device, f.operations, f.kind, f.count) for f in net.report().fallbacks]


@pytest.mark.parametrize("kind", [GeneralFailure, DeviceUnavailable, DeviceDied])
async def test_a_failed_call_is_done_by_the_reference(kind: type[NNError]) -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        assert net.report().partitions[0].device == "outside"
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert not net.report().fallbacks
        device.faults["execute"] = kind
        for _ in range(TOLERATED_FAILURES + 2):
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert told(net) == [("outside", (0,), "partial", TOLERATED_FAILURES + 2)]
        assert device.executions == 1 + TOLERATED_FAILURES


async def test_success_ends_the_row() -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        for _ in range(TOLERATED_FAILURES + 1):
            device.faults["execute"] = DeviceDied
            await net(ROW)
            device.faults.clear()
            await net(ROW)
        assert device.executions == 2 * TOLERATED_FAILURES + 2


@pytest.mark.parametrize(
    "kind",
    [errors.MissedDeadlineTransient, errors.ResourceExhaustedTransient, errors.InvalidArgument],
)
async def test_other_errors_are_reported(kind: type[NNError]) -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        device.faults.update(execute=kind, launch=kind)
        with pytest.raises(kind):
            await net(ROW)
        with pytest.raises(kind):
            await net.launch(ROW)
        assert not net.report().fallbacks


async def test_without_the_reference_an_error_stays_one() -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler(), devices=["outside"])
        device.faults["execute"] = DeviceDied
        with pytest.raises(DeviceDied):
            await net(ROW)


@pytest.mark.parametrize("where", ["launch", "fence"])
async def test_a_chain_sees_the_final_outcome_only(where: str) -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        device.faults[where] = DeviceDied
        gate = Fence()
        first = await net.launch(ROW, wait_for=[gate], duration_s=60)
        second = await net.launch(
            first.outputs, wait_for=[first.fence], measure=True, duration_s=60
        )
        assert not second.fence.done
        gate.signal()
        assert (await second.result()).tolist() == [[4, 8, 12, 16]]
        assert first.fence.error is None
        info = await second.info()
        assert info.status == ErrorStatus.NONE
        launched, fenced = info.timing_launched, info.timing_fenced
        assert launched.time_in_driver_ns >= fenced.time_in_driver_ns > 0
        assert told(net) == [("outside", (0,), "partial", 2)]


@pytest.mark.parametrize("where", ["launch", "fence"])
async def test_a_launch_that_waits_in_vain_or_is_cancelled(where: str) -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        device.faults[where] = DeviceDied
        gate = Fence()
        launched = await net.launch(ROW, wait_for=[gate])
        gate.fail(KeyError("upstream"))
        assert "upstream" in str(await failure(launched.fence))
        assert (await launched.info()).status == ErrorStatus.GENERAL_FAILURE
        cancelled = await net.launch(ROW, wait_for=[Fence()])
        cancelled.cancel()
        assert isinstance(await failure(cancelled.fence), errors.Cancelled)
        assert not net.report().fallbacks


@pytest.mark.parametrize("where", ["send", "result", "burst"])
async def test_a_burst_goes_on_with_the_right_state(where: str) -> None:
    async with opened() as (device, rt):
        net = await rt.compile(counter())
        if where == "burst":
            device.faults[where] = GeneralFailure
        async with net.burst() as burst:
            for step in range(1, 6):
                if step % 2 == 0 and where != "burst":
                    device.faults[where] = GeneralFailure
                assert (await burst(ROW)).tolist() == [[n * step for n in (1, 2, 3, 4)]]
                assert await total(burst) == [n * step for n in (1, 2, 3, 4)]
                device.faults.pop(where, None) if where != "burst" else None
        assert told(net) == [("outside", (0, 1), "partial", 5 if where == "burst" else 2)]


async def test_calls_of_a_burst_that_wait_keep_their_order() -> None:
    async with opened() as (device, rt):
        net = await rt.compile(counter())
        device.faults["result"] = GeneralFailure
        results: list[float] = []

        async def call() -> None:
            results.append(float((await burst(ROW))[0, 0]))

        async with net.burst() as burst, anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(call)
        assert results == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", [GeneralFailure, DeviceUnavailable])
async def test_a_burst_next_door_is_repeated_however_its_answer_is_found(
    kind: type[NNError],
) -> None:
    """By looking for it on the loop, later on a thread, or not at all once it failed often."""
    engine = NullEngine(compute=count)
    async with served(engine) as it, runtime(it.device, REFERENCE) as rt:
        net = await rt.compile(counter())
        assert net.report().partitions[0].device == it.device.name
        async with net.burst() as burst:
            for step in range(1, 30):
                if step % 10 == 5:
                    engine.fail("run", kind("no luck"))
                assert (await burst(ROW)).tolist() == [[n * step for n in (1, 2, 3, 4)]]
                if step % 10 == 9:
                    engine.heal()
        ((device, _, _, times),) = told(net)
        assert device == it.device.name
        assert times >= 10


async def test_a_burst_whose_service_ends_goes_on_with_its_state() -> None:
    engine = NullEngine(compute=count)
    async with served(engine) as it, runtime(it.device, REFERENCE) as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            for step in range(1, 10):
                if step == 5:
                    it.disconnect()
                assert (await burst(ROW)).tolist() == [[n * step for n in (1, 2, 3, 4)]]


async def test_other_answers_of_a_burst_are_passed_on() -> None:
    async with opened() as (device, rt):
        net = await rt.compile(counter())
        device.faults["result"] = errors.MissedDeadlineTransient
        async with net.burst() as burst:
            with pytest.raises(errors.MissedDeadlineTransient):
                await burst(ROW)
            assert await total(burst) == [0, 0, 0, 0]
        assert not net.report().fallbacks


async def test_memory_that_the_device_may_have_overwritten_is_not_read_again() -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        prepared = net._prepared
        pool = Pool.allocate(64)
        device.faults["execute"] = DeviceDied
        pool.array(np.dtype(np.float32), (1, 4), 0)[...] = 1
        place = RequestArgument(location=DataLocation(0, 0, 16))
        beside = RequestArgument(location=DataLocation(0, 8, 16))
        with pytest.raises(DeviceDied):
            await prepared.execute(Request((place,), (beside,), (pool,)))
        apart = Row()
        await prepared.execute(apart.request)
        assert apart.is_right


async def test_closing_does_not_fall_back(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as (device, rt):
        net = await rt.compile(doubler())
        device.faults["fence"] = DeviceUnavailable
        held = await net.launch(ROW, wait_for=[Fence()])
        await net.close()
        assert isinstance(await failure(held.fence), DeviceUnavailable)
        again = await rt.compile(doubler())
        late = await again.launch(ROW, wait_for=[Fence()])
    assert isinstance(late.fence.error, NNError)
    assert not [record for record in caplog.records if "steps in" in record.message]
