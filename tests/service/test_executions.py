"""Plain executions in a service: side by side over queues, what they hold, and what ends them."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.device_helpers import ForwardingDevice, PlainExecutions, passed_on
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service import ServiceDevice, isolate
from nnasync._core.drivers.service.remote_bursts import RemoteBurst
from nnasync._core.service import Limits, served_bursts
from nnasync._core.wire.messages import CloseBurst
from nnasync.burst import BurstController, LocalChannel
from nnasync.device import Device, PreparedModel
from nnasync.hal import (
    MAXIMUM_LOOP_TIMEOUT_NS,
    DataLocation,
    ExecutionConfig,
    ExecutionResult,
    Request,
    RequestArgument,
)
from nnasync.memory import Pool
from tests import rigs
from tests.rigs import ONES, REFERENCE, Attempt, attempt, until
from tests.service.executions_rig import (
    check,
    check_past_the_socket,
    controller_of,
    opened,
    prepared_by,
    queue_threads,
    traffic,
)
from tests.service.rig import Served, Slot, request_on, served

pytestmark = pytest.mark.anyio


def by(deadline: nn.Deadline) -> ExecutionConfig:
    return ExecutionConfig(deadline_ns=deadline.at_ns)


@asynccontextmanager
async def at_rest(engine: Any = REFERENCE) -> AsyncIterator[tuple[Served, Any, Slot]]:
    """A prepared model in a service whose queues are open, and memory that both know."""
    async with served(engine) as it:
        slot = Slot()
        yield it, await opened(it, slot), slot


@asynccontextmanager
async def under_way() -> AsyncIterator[tuple[Served, Any, Slot, Any, Attempt]]:
    """The same, with an execution that waits at the gate of the engine; free in the end."""
    engine = rigs.gated()
    engine.gate.open(1)
    async with at_rest(engine) as (it, prepared, slot), anyio.create_task_group() as group:
        call = await attempt(group, lambda: prepared.execute_synchronously(slot.request))
        await engine.when(lambda c: c.waiting == 1)
        yield it, prepared, slot, engine, call
        rigs.set_free(engine)


# -- the queues


async def test_the_first_execution_opens_them_and_later_ones_leave_the_socket_alone() -> None:
    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        assert controller_of(prepared) is None
        await check(prepared, slot)
        await check_past_the_socket(it, prepared, slot, 20)
        before = traffic(it)
        await prepared.execute(slot.request)
        assert traffic(it) == before


async def test_new_memory_is_announced_and_then_known() -> None:
    async with served() as it:
        prepared = await opened(it, Slot())
        slots = [Slot(number * ONES) for number in range(20)]
        for slot in slots:
            await check(prepared, slot)
        before = traffic(it)
        for slot in slots:
            await check(prepared, slot)
        assert traffic(it) == before


async def test_they_run_side_by_side() -> None:
    engine = rigs.gated()
    engine.gate.open(1)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        before = traffic(it)
        first = await attempt(group, lambda: check(prepared, slot))
        second = await attempt(group, lambda: check(prepared, other))
        await engine.when(lambda c: c.waiting == 2)
        engine.gate.open_wide()
        assert await first.failure() is None
        assert await second.failure() is None
        assert traffic(it)[0] - before[0] < 200  # The second memory was announced.


async def test_measured_executions_and_those_with_a_deadline() -> None:
    async with at_rest() as (_it, prepared, slot):
        result = await prepared.execute_synchronously(slot.request, ExecutionConfig(measure=True))
        assert 0 <= result.timing.time_on_device_ns <= result.timing.time_in_driver_ns
        await prepared.execute_synchronously(slot.request, by(nn.within(**rigs.HOUR)))
        with pytest.raises(errors.MissedDeadlinePersistent):
            await prepared.execute_synchronously(slot.request, by(nn.within(ms=-1)))


# -- a device that is known by its HAL alone


class Outside(PlainExecutions):
    """A prepared model that notes how it is executed, and does what a test says."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.configs: list[ExecutionConfig] = []
        self.error: Exception | None = None
        self.waits: anyio.Event | None = None

    async def _execute(
        self, request: Request, config: ExecutionConfig, *, at_once: bool
    ) -> ExecutionResult:
        self.configs.append(config)
        if self.error is not None:
            raise self.error
        if self.waits is not None and len(self.configs) % 2:
            await self.waits.wait()
        result: ExecutionResult = await self.inner.execute(request)
        return result

    execute_fenced = passed_on(PreparedModel.execute_fenced)
    configure_execution_burst = passed_on(PreparedModel.configure_execution_burst)
    close = passed_on(PreparedModel.close)


class OutsideDevice(ForwardingDevice):
    def __init__(self, inner: Device) -> None:
        super().__init__(inner)
        self.models: list[Outside] = []

    async def prepare_model(self, *arguments: Any, **options: Any) -> Any:
        self.models.append(Outside(await self.inner.prepare_model(*arguments, **options)))
        return self.models[-1]


async def test_a_device_outside_is_executed_in_tasks_of_the_service() -> None:
    devices: list[OutsideDevice] = []

    def outside(inner: Device) -> Device:
        devices.append(OutsideDevice(inner))
        return devices[0]

    async with served(wrapped=outside) as it, anyio.create_task_group() as group:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        (model,) = devices[0].models
        for timeout_ns in (10**9, -5, 2**62):
            config = ExecutionConfig(loop_timeout_ns=timeout_ns)
            await prepared.execute_synchronously(slot.request, config)
        timeouts = [config.loop_timeout_ns for config in model.configs[1:]]
        assert timeouts == [10**9, 0, MAXIMUM_LOOP_TIMEOUT_NS]
        model.waits, model.configs = anyio.Event(), []
        call = await attempt(group, lambda: check(prepared, slot))
        await until(lambda: len(model.configs) == 1)
        await check(prepared, other)
        call.scope.cancel()
        await call.done.wait()
        model.waits = None
        for error in (errors.GeneralFailure("broken"), RuntimeError("a bug")):
            model.error = error
            with pytest.raises(errors.GeneralFailure, match=str(error)):
                await prepared.execute_synchronously(slot.request)
        model.error = None
        await check(prepared, slot)


# -- what goes wrong


@pytest.mark.parametrize(
    "kind",
    [
        errors.GeneralFailure,
        errors.InvalidArgument,
        errors.DeviceUnavailable,
        errors.ResourceExhaustedTransient,
    ],
)
async def test_what_a_device_answers_is_the_answer_and_nothing_runs_twice(
    kind: type[errors.NNError],
) -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine) as it:
        slot = Slot()
        prepared = await opened(it, slot)
        engine.fail("run", kind("no luck"))
        before = engine.counters.run
        for _ in range(3):
            with pytest.raises(kind, match="no luck"):
                await prepared.execute_synchronously(slot.request)
        assert engine.counters.run == before + 3
        engine.heal()
        await check(prepared, slot)


def wrong_requests() -> list[Request]:
    pool = Pool.allocate(64)
    good = request_on(pool)
    (output,) = good.outputs
    return [
        Request((), good.outputs, (pool,)),
        Request((RequestArgument(location=DataLocation(0, 60, 16)),), good.outputs, (pool,)),
        Request((RequestArgument(location=DataLocation(7, 0, 16)),), good.outputs, (pool,)),
        Request((RequestArgument(location=DataLocation(0, 2**70, 16)),), (output,), (pool,)),
        Request(good.inputs, good.outputs, (pool, 0)),
        Request(good.inputs, good.outputs, (pool, -3)),
        Request(good.inputs, good.outputs, (12345, pool)),
        Request(good.inputs * 20_000, good.outputs, (pool,)),
    ]


@pytest.mark.parametrize("number", range(len(wrong_requests())))
async def test_a_wrong_request_is_refused(number: int) -> None:
    async with served() as it:
        slot, wrong = Slot(), wrong_requests()[number]
        prepared = await opened(it, slot)
        for _ in range(3):
            with pytest.raises(errors.InvalidArgument):
                await prepared.execute_synchronously(wrong)
        await check_past_the_socket(it, prepared, slot)


async def test_after_a_cancelled_execution_others_do_not_wait_for_the_device() -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        engine.hang(at=engine.counters.run)
        call = await attempt(group, lambda: prepared.execute_synchronously(slot.request))
        await engine.when(lambda c: c.hanging == 1)
        call.scope.cancel()
        await call.done.wait()
        assert call.error is None
        await check(prepared, other)
        await check_past_the_socket(it, prepared, other)
        assert engine.counters.hanging == 1
        engine.release()
        await engine.when(lambda c: c.hanging == 0)
        await check(prepared, slot)
        await until(lambda: len(queue_threads()) == 2)


@pytest.mark.parametrize("options", [rigs.POOL, rigs.INLINE], ids=["worker", "inline"])
async def test_a_deadline_is_kept_although_the_device_hangs(
    options: nn.Options, deadlines: rigs.Deadlines
) -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine, options=options) as it:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        await warmed(it, prepared, slot, options)
        engine.hang(at=engine.counters.run)
        error = await deadlines.missed(
            lambda deadline: prepared.execute_synchronously(slot.request, by(deadline)),
            lambda: engine.when(lambda c: c.hanging == 1),
        )
        assert isinstance(error, errors.MissedDeadlineTransient)
        assert engine.counters.hanging == 1
        await check(prepared, other)
        await check_past_the_socket(it, prepared, other)
        assert engine.counters.hanging == 1
        engine.release()
        await engine.when(lambda c: c.hanging == 0)
        await check(prepared, slot)
        await until(lambda: len(queue_threads()) == 2)


async def warmed(it: Served, prepared: Any, slot: Slot, options: nn.Options) -> None:
    """Execute until the thread of the service runs the model itself, if it may."""
    workers = it.runtime.statistics
    while options is rigs.INLINE:
        before = workers().workers.inline_runs
        await check(prepared, slot)
        if workers().workers.inline_runs > before:
            return


async def test_what_else_is_under_way_is_answered_over_the_old_queues(
    deadlines: rigs.Deadlines,
) -> None:
    engine = rigs.gated()
    engine.gate.open(1)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        before = controller_of(prepared)
        waiting = await attempt(group, lambda: check(prepared, other))
        await engine.when(lambda c: c.waiting == 1)
        error = await deadlines.missed(
            lambda deadline: prepared.execute_synchronously(slot.request, by(deadline)),
            lambda: engine.when(lambda c: c.waiting == 2),
        )
        assert isinstance(error, errors.MissedDeadlineTransient)
        third = await attempt(group, lambda: check(prepared, slot))
        engine.gate.open_wide()
        assert await waiting.failure() is None
        assert await third.failure() is None
        assert before is not None
        await check_past_the_socket(it, prepared, slot)
        await until(lambda: len(queue_threads()) == 2)


async def test_queues_that_end_before_anything_is_sent_are_followed_by_others() -> None:
    async with at_rest() as (_it, prepared, slot):
        before = controller_of(prepared)
        assert before is not None
        before.close(errors.GeneralFailure("a result that is none"))
        await check(prepared, slot)


async def test_the_end_of_the_service_in_the_middle() -> None:
    async with under_way() as (it, prepared, slot, _engine, call):
        it.disconnect()
        assert isinstance(await call.failure(), errors.DeviceDied)
        with pytest.raises(errors.DeviceDied, match="prepare it again"):
            await prepared.execute_synchronously(slot.request)


async def test_the_end_of_the_service_that_the_link_has_not_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with at_rest() as (_it, prepared, slot):

        async def died(*_: object) -> None:
            raise errors.DeviceDied("served is gone")

        monkeypatch.setattr(prepared._executions, "run", died)
        with pytest.raises(errors.DeviceDied, match="served is gone; .* prepare it again"):
            await prepared.execute_synchronously(slot.request)


async def test_the_end_of_the_service_while_nothing_runs() -> None:
    async with at_rest() as (it, prepared, slot):
        it.disconnect()
        with pytest.raises(errors.DeviceDied):
            while True:
                await prepared.execute_synchronously(slot.request)
        await until(lambda: not queue_threads())


async def test_closing_the_model_ends_what_is_under_way() -> None:
    async with under_way() as (_it, prepared, slot, _engine, call):
        await prepared.close()
        assert isinstance(await call.failure(), errors.DeviceUnavailable)
        await until(lambda: not queue_threads())
        with pytest.raises(errors.DeviceUnavailable, match="closed"):
            await prepared.execute_synchronously(slot.request)


# -- queues that end alone


def end_queues(it: Served, prepared: Any) -> None:
    """Have the service end the queues of a prepared model, and nothing else."""
    controller: Any = controller_of(prepared)
    it.device.link.send(CloseBurst(controller._context.number))


async def test_the_first_execution_after_the_end_of_queues_opens_others() -> None:
    async with at_rest() as (it, prepared, slot):
        for _ in range(3):
            before = controller_of(prepared)
            end_queues(it, prepared)
            await it.device.get_status()
            await check(prepared, slot)
            assert controller_of(prepared) not in (None, before)
            await check_past_the_socket(it, prepared, slot)
        await until(lambda: len(queue_threads()) == 2)


async def test_what_was_under_way_when_queues_ended_is_not_repeated() -> None:
    async with under_way() as (it, prepared, slot, engine, call):
        begun = engine.counters.run
        end_queues(it, prepared)
        error = await call.failure()
        assert isinstance(error, errors.DeviceUnavailable)
        assert not isinstance(error, errors.DeviceDied)
        assert "the queues to served ended" in str(error)
        assert engine.counters.run == begun
        engine.gate.open_wide()
        await check(prepared, slot)
        await check_past_the_socket(it, prepared, slot)


async def test_queues_that_end_before_anything_is_sent(monkeypatch: Any) -> None:
    tried: list[int] = []

    def ended(burst: Any, serial: int, *_: Any) -> None:
        tried.append(serial)
        raise errors.DeviceDied("the queue is closed")

    async with at_rest() as (_it, prepared, slot):
        with monkeypatch.context() as patched:
            patched.setattr(RemoteBurst, "exchange", ended)
            with pytest.raises(errors.DeviceUnavailable, match="as soon as they are open"):
                await prepared.execute_synchronously(slot.request)
        assert len(tried) == 2
        await check(prepared, slot)


# -- what they hold


async def test_a_dropped_request_gives_its_memory_back_though_no_other_call_comes() -> None:
    async with served(limits=Limits(memories=2)) as it:
        keep, slot = Slot(), Slot()
        prepared = await opened(it, keep)
        await check(prepared, slot)
        gone = weakref.ref(slot.pool)
        del slot
        gc.collect()
        await until(lambda: gone() is None)
        await it.device.get_status()  # The service has heard of it.
        await check(prepared, Slot())
        await check_past_the_socket(it, prepared, keep)


async def test_memory_of_two_requests_stays_until_both_are_gone() -> None:
    async with at_rest() as (it, prepared, slot):
        second = request_on(slot.pool)
        await prepared.execute_synchronously(second)
        del second
        gc.collect()
        await check_past_the_socket(it, prepared, slot)


async def test_requests_that_come_and_go_are_not_mistaken_for_one_another() -> None:
    async with served(limits=Limits(memories=2)) as it:
        keep = Slot()
        prepared = await opened(it, keep)
        for number in range(50):
            await check(prepared, Slot(number * ONES))
        await check(prepared, keep)


async def test_a_dropped_model_ends_its_queues_here_and_in_the_service() -> None:
    async with served(limits=Limits(queues=1, memories=1, prepared=1)) as it:
        for _ in range(3):
            slot = Slot()
            prepared = await opened(it, slot)
            await until(lambda: len(queue_threads()) == 2)
            model = weakref.ref(prepared)
            del prepared, slot
            gc.collect()
            assert model() is None
            await until(lambda: not queue_threads())


async def test_room_is_there_for_the_next_model_as_soon_as_one_is_dropped() -> None:
    async with served(limits=Limits(queues=1, memories=1, prepared=1)) as it:
        for _ in range(5):
            slot = Slot()
            prepared = await opened(it, slot)
            await check_past_the_socket(it, prepared, slot)
            del prepared, slot


# -- quotas


async def test_models_that_rest_give_their_queues_to_others() -> None:
    async with served(limits=Limits(queues=1)) as it:
        slots = [Slot(number * ONES) for number in range(3)]
        models = [await prepared_by(it) for _ in slots]
        for _ in range(3):
            for prepared, slot in zip(models, slots, strict=True):
                await check(prepared, slot)


async def test_where_no_queues_are_to_be_had_executions_say_so() -> None:
    async with served(limits=Limits(queues=0)) as it:
        prepared, slot = await prepared_by(it), Slot()
        for _ in range(3):
            with pytest.raises(errors.ResourceExhaustedTransient, match="queues"):
                await prepared.execute_synchronously(slot.request)
        await until(lambda: not queue_threads())


async def test_a_thread_that_cannot_be_started_refuses_the_execution(monkeypatch: Any) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "nnasync-burst":
            raise RuntimeError("can't start new thread")
        start(thread)

    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(errors.ResourceExhaustedTransient, match="no thread"):
                await prepared.execute_synchronously(slot.request)
        await check(prepared, slot)


async def test_bursts_and_executions_do_not_take_each_others_room() -> None:
    async with served(limits=Limits(bursts=1)) as it:
        slot = Slot()
        prepared, other = await opened(it, slot), await prepared_by(it)
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        controller.attach(await other.configure_execution_burst(controller, requests, results))
        for _ in range(3):
            await check(prepared, slot)
        again = BurstController(LocalChannel(), LocalChannel())
        with pytest.raises(errors.ResourceExhaustedTransient, match="bursts"):
            await other.configure_execution_burst(again, LocalChannel(), LocalChannel())
        controller.close(errors.DeviceUnavailable("closed by the test"))


async def test_memory_that_was_refused_is_taken_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was refused never comes: nobody waits for it as for what is on its way."""
    monkeypatch.setattr(served_bursts, "_PATIENCE_S", 10 * rigs.GUARD_S)
    async with served(limits=Limits(memories=1)) as it:
        first, second = Slot(), Slot(ONES)
        prepared = await opened(it, first)
        for _ in range(2):
            with pytest.raises(errors.ResourceExhaustedTransient, match="memories"):
                await prepared.execute_synchronously(second.request)
        del first
        gc.collect()
        await check(prepared, second)
        await check_past_the_socket(it, prepared, second)


# -- a process of its own


class TestInAProcess:
    pytestmark = pytest.mark.one_loop("A process of its own does not know the loop.")

    @pytest.mark.parametrize("before", [0, 1, 3])
    async def test_a_deadline_is_kept_by_a_service_that_is_stopped(
        self, before: int, deadlines: rigs.Deadlines
    ) -> None:
        device, slot = await isolate(rigs.REFERENCE), Slot()
        prepared: Any = await device.prepare_model(rigs.doubler())
        for _ in range(before):
            await check(prepared, slot)
        await stopped(device, prepared, slot, deadlines)
        for _ in range(3):
            await check(prepared, slot)
        await device.close()


async def stopped(
    device: ServiceDevice, prepared: Any, slot: Slot, deadlines: rigs.Deadlines
) -> None:
    """Execute until a deadline passes while the process of the service is stopped."""
    os.kill(device.pid, signal.SIGSTOP)
    try:
        how = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        await until(lambda: os.waitid(os.P_PID, device.pid, how) is not None)
        error = await deadlines.missed(
            lambda deadline: prepared.execute_synchronously(slot.request, by(deadline))
        )
        assert isinstance(error, errors.MissedDeadlineTransient)
    finally:
        os.kill(device.pid, signal.SIGCONT)
