"""Plain executions over the queue of a hidden burst: when they take it, and what ends it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync import errors
from nnasync.burst import BurstController, LocalChannel
from nnasync.drivers.null import NullEngine
from nnasync.drivers.service import ServiceDevice, isolate, line
from nnasync.hal import ExecutionConfig
from nnasync.service import Limits, bursts
from tests import rigs
from tests.rigs import ONES, attempt, until
from tests.service.line_rig import (
    burst_threads,
    check,
    check_it_comes_back,
    check_over_the_line,
    controller_of,
    counted,
    is_taken,
    opened,
    prepared_by,
    traffic,
)
from tests.service.rig import Served, Slot, request_on, served

pytestmark = pytest.mark.anyio


# -- which way


async def test_the_second_execution_opens_it_and_later_ones_leave_the_socket_alone() -> None:
    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        await check(prepared, slot)
        assert controller_of(prepared) is None
        await check(prepared, slot)
        await check_over_the_line(it, prepared, slot, 20)
        before = traffic(it)
        await prepared.execute(slot.request)
        assert traffic(it) != before


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


async def test_of_two_at_once_one_takes_the_socket() -> None:
    engine = rigs.gated()
    engine.gate.open(2)
    async with served(engine) as it, anyio.create_task_group() as group:
        slots = [Slot(), Slot(ONES)]
        prepared = await opened(it, slots[0])
        before = traffic(it)
        first = await attempt(group, lambda: check(prepared, slots[0]))
        assert is_taken(prepared)
        assert traffic(it) == before
        second = await attempt(group, lambda: check(prepared, slots[1]))
        assert traffic(it) != before
        await engine.when(lambda c: c.waiting == 2)
        engine.gate.open_wide()
        assert await first.failure() is None
        assert await second.failure() is None
        assert not is_taken(prepared)
        await check_over_the_line(it, prepared, slots[1])


async def test_measured_executions_and_those_with_a_deadline() -> None:
    async with served() as it:
        slot = Slot()
        prepared = await opened(it, slot)
        before = traffic(it)
        result = await prepared.execute_synchronously(slot.request, ExecutionConfig(measure=True))
        assert 0 <= result.timing.time_on_device_ns <= result.timing.time_in_driver_ns
        await prepared.execute_synchronously(
            slot.request, ExecutionConfig(deadline_ns=nn.within(s=3600).at_ns)
        )
        with pytest.raises(errors.MissedDeadlinePersistent):
            await prepared.execute_synchronously(
                slot.request, ExecutionConfig(deadline_ns=nn.within(ms=-1).at_ns)
            )
        assert traffic(it) == before


async def test_who_changes_the_timeout_of_loops_takes_the_socket() -> None:
    async with served() as it:
        slot = Slot()
        prepared = await opened(it, slot)
        before = traffic(it)
        await prepared.execute_synchronously(slot.request, ExecutionConfig(loop_timeout_ns=10**9))
        assert traffic(it) != before


# -- what goes wrong


@pytest.mark.parametrize("kind", [errors.GeneralFailure, errors.ResourceExhaustedTransient])
async def test_an_error_of_the_device_comes_over_the_line(kind: type[errors.NNError]) -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine) as it:
        slot = Slot()
        prepared = await opened(it, slot)
        engine.fail("run", kind("no luck"))
        before = traffic(it)
        for _ in range(3):
            with pytest.raises(kind, match="no luck"):
                await prepared.execute_synchronously(slot.request)
        engine.heal()
        await check(prepared, slot)
        assert traffic(it) == before


async def test_after_a_cancelled_execution_others_do_not_wait_for_the_device() -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        engine.hang(at=2)
        call = await attempt(group, lambda: prepared.execute_synchronously(slot.request))
        await engine.when(lambda c: c.hanging == 1)
        call.scope.cancel()
        await call.done.wait()
        assert call.error is None
        await check_it_comes_back(it, prepared, other)
        assert engine.counters.hanging == 1
        engine.release()
        await engine.when(lambda c: c.hanging == 0)
        await check(prepared, slot)
        await until(lambda: len(burst_threads()) == 2)


async def test_an_execution_that_is_cancelled_while_the_line_is_opened() -> None:
    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        await check(prepared, slot)
        for _ in range(3):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await prepared.execute_synchronously(slot.request)
            assert not is_taken(prepared)
        await until(lambda: not burst_threads())
        await check(prepared, slot)
        await check_over_the_line(it, prepared, slot)


@pytest.mark.parametrize("options", [rigs.POOL, rigs.INLINE], ids=["worker", "inline"])
async def test_a_deadline_is_kept_although_the_device_hangs(options: nn.Options) -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine, options=options) as it:
        slot, other = Slot(), Slot(ONES)
        prepared = await opened(it, slot)
        await warmed(it, prepared, slot, options)
        engine.hang(at=engine.counters.run)
        with pytest.raises(errors.MissedDeadlineTransient):
            await prepared.execute_synchronously(
                slot.request, ExecutionConfig(deadline_ns=nn.within(ms=20).at_ns)
            )
        assert engine.counters.hanging == 1
        await check_it_comes_back(it, prepared, other)
        assert engine.counters.hanging == 1
        engine.release()
        await engine.when(lambda c: c.hanging == 0)
        await check(prepared, slot)
        await until(lambda: len(burst_threads()) == 2)


async def warmed(it: Served, prepared: Any, slot: Slot, options: nn.Options) -> None:
    """Execute until the thread of the burst runs the model itself, if it may."""
    workers = it.runtime.statistics
    while options is rigs.INLINE:
        before = workers().workers.inline_runs
        await check(prepared, slot)
        if workers().workers.inline_runs > before:
            return


async def test_the_end_of_the_service_in_the_middle() -> None:
    engine = rigs.gated()
    engine.gate.open(2)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot = Slot()
        prepared = await opened(it, slot)
        call = await attempt(group, lambda: prepared.execute_synchronously(slot.request))
        await engine.when(lambda c: c.waiting == 1)
        it.hang_up()
        assert isinstance(await call.failure(), errors.DeviceDied)
        with pytest.raises(errors.DeviceDied, match="prepare it again"):
            await prepared.execute_synchronously(slot.request)
        rigs.set_free(engine)


async def test_the_end_of_the_service_while_nothing_runs() -> None:
    async with served() as it:
        slot = Slot()
        prepared = await opened(it, slot)
        it.hang_up()
        with pytest.raises(errors.DeviceDied):
            while True:
                await prepared.execute_synchronously(slot.request)
        await until(lambda: not burst_threads())


async def test_closing_the_model_ends_what_is_under_way() -> None:
    engine = rigs.gated()
    engine.gate.open(2)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot = Slot()
        prepared = await opened(it, slot)
        call = await attempt(group, lambda: prepared.execute_synchronously(slot.request))
        await engine.when(lambda c: c.waiting == 1)
        await prepared.close()
        assert isinstance(await call.failure(), errors.DeviceUnavailable)
        await until(lambda: not burst_threads())
        with pytest.raises(errors.DeviceUnavailable, match="closed"):
            await prepared.execute_synchronously(slot.request)
        rigs.set_free(engine)


# -- what it holds


async def test_a_dropped_request_gives_its_memory_back_though_no_other_call_comes() -> None:
    async with served() as it:
        keep, slot = Slot(), Slot()
        prepared = await opened(it, keep)
        await check(prepared, slot)
        controller = controller_of(prepared)
        assert controller is not None
        assert len(controller._memories) == 2
        gone = weakref.ref(slot.pool)
        del slot
        gc.collect()
        await until(lambda: gone() is None)
        assert list(controller._memories.values()) == [keep.pool]
        await it.device.get_status()  # The service has heard of it.
        await check_over_the_line(it, prepared, keep)


async def test_memory_of_two_requests_stays_until_both_are_gone() -> None:
    async with served() as it:
        keep, slot = Slot(), Slot()
        prepared = await opened(it, keep)
        known = prepared._line._known
        await check(prepared, slot)
        second = request_on(slot.pool)
        await prepared.execute_synchronously(second)
        assert len(known) == 3
        del second
        gc.collect()
        await until(lambda: len(known) == 2)
        await check_over_the_line(it, prepared, slot)


async def test_requests_that_come_and_go_are_not_mistaken_for_one_another() -> None:
    async with served(limits=Limits(memories=2)) as it:
        keep = Slot()
        prepared = await opened(it, keep)
        for number in range(50):
            await check(prepared, Slot(number * ONES))
        await check(prepared, keep)


async def test_a_dropped_model_ends_its_line_here_and_in_the_service() -> None:
    async with served(limits=Limits(bursts=1, memories=1, prepared=1)) as it:
        for _ in range(3):
            slot = Slot()
            prepared = await opened(it, slot)
            assert len(burst_threads()) == 2
            model = weakref.ref(prepared)
            del prepared, slot
            gc.collect()
            assert model() is None
            await until(lambda: not burst_threads())


async def test_room_is_there_for_the_next_model_as_soon_as_one_is_dropped() -> None:
    async with served(limits=Limits(bursts=1, memories=1, prepared=1)) as it:
        for _ in range(5):
            slot = Slot()
            prepared = await opened(it, slot)
            await check_over_the_line(it, prepared, slot)
            del prepared, slot


# -- quotas


async def test_where_no_burst_is_to_be_had_the_socket_serves() -> None:
    async with served(limits=Limits(bursts=0)) as it:
        prepared, slot = await prepared_by(it), Slot()
        for _ in range(5):
            await check(prepared, slot)
        assert controller_of(prepared) is None
        assert not burst_threads()


async def test_a_thread_that_cannot_be_started_leaves_the_socket(monkeypatch: Any) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "nnasync-burst":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        for _ in range(4):
            await check(prepared, slot)
        assert controller_of(prepared) is None


async def test_a_burst_that_was_asked_for_goes_before_a_line() -> None:
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


async def test_memory_that_was_refused_takes_the_line_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was refused never comes: nobody waits for it as for what is on its way."""
    monkeypatch.setattr(bursts, "_PATIENCE_S", 10 * rigs.GUARD_S)
    async with served(limits=Limits(memories=1)) as it:
        first, second = Slot(), Slot(ONES)
        prepared = await opened(it, first)
        for _ in range(2):
            with pytest.raises(errors.ResourceExhaustedTransient, match="memories"):
                await prepared.execute_synchronously(second.request)
        del first
        gc.collect()
        await check(prepared, second)
        await check_over_the_line(it, prepared, second)


async def test_more_memory_than_a_burst_has_slots_for_takes_the_socket(monkeypatch: Any) -> None:
    assert line.MOST_SLOTS == bursts._MOST_SLOTS
    monkeypatch.setattr(line, "MOST_SLOTS", 3)
    monkeypatch.setattr(bursts, "_MOST_SLOTS", 3)
    async with served() as it:
        slots = [Slot(number * ONES) for number in range(5)]
        prepared = await opened(it, slots[0])
        over_the_socket = counted(prepared)
        for slot in slots * 2:
            await check(prepared, slot)
        assert over_the_socket == [slots[3].request, slots[4].request] * 2
        del slot, slots[1], over_the_socket[:]
        gc.collect()
        await check(prepared, slots[2])
        assert over_the_socket == []


# -- a process of its own


class TestInAProcess:
    pytestmark = pytest.mark.one_loop("A process of its own does not know the loop.")

    async def test_a_deadline_is_kept_while_the_line_is_opened(self) -> None:
        device, slot = await isolate(rigs.REFERENCE), Slot()
        prepared: Any = await device.prepare_model(rigs.doubler())
        await check(prepared, slot)
        await stopped(device, prepared, slot)
        assert controller_of(prepared) is None
        for _ in range(3):
            await check(prepared, slot)
        assert controller_of(prepared) is not None
        await device.close()

    async def test_a_deadline_is_kept_over_the_line_of_a_service_that_is_stopped(self) -> None:
        device, slot = await isolate(rigs.REFERENCE), Slot()
        prepared: Any = await device.prepare_model(rigs.doubler())
        for _ in range(3):
            await check(prepared, slot)
        await stopped(device, prepared, slot)
        for _ in range(30):
            await check(prepared, slot)
        assert controller_of(prepared) is not None
        await device.close()


async def stopped(device: ServiceDevice, prepared: Any, slot: Slot) -> None:
    """Execute with a deadline while the process of the service is stopped."""
    os.kill(device.pid, signal.SIGSTOP)
    try:
        how = os.WSTOPPED | os.WNOWAIT | os.WNOHANG
        await until(lambda: os.waitid(os.P_PID, device.pid, how) is not None)
        with pytest.raises(errors.MissedDeadlineTransient):
            await prepared.execute_synchronously(
                slot.request, ExecutionConfig(deadline_ns=nn.within(ms=20).at_ns)
            )
    finally:
        os.kill(device.pid, signal.SIGCONT)
