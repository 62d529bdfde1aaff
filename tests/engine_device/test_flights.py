"""An execution beside others is used again by the next call of its request, if it ended well."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import to_thread

from nnasync._core.clock import Alarm, Watchdog, now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.engine_device.quick_run import QuickRun
from nnasync._core.wakeup import yield_now
from nnasync._core.workers import task as task_module
from nnasync._core.workers.flight import AwaitedFence, Flight
from nnasync._core.workers.task import YIELD
from nnasync.engine import BoundCall
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadline,
    ResourceExhaustedTransient,
)
from nnasync.hal import NEVER_NS, Array, Priority
from nnasync.scheduler import Estimate
from nnasync.tracing import Instrument
from tests.engine_device.rig import MS, PATIENCE_S, Rig, Row, doubled, null, reached
from tests.rigs import set_free, until

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("On trio all calls go the longer way.")]

Rigs = Callable[..., Rig]


class Seen(Instrument):
    """Keeps the executions that it hears of."""

    def __init__(self) -> None:
        self.tasks: list[object] = []

    def task_submitted(self, task: object) -> None:
        self.tasks.append(task)


async def quick(rig: Rig) -> tuple[EnginePreparedModel, QuickRun]:
    prepared = await rig.prepare()
    run = prepared.quick_run(Row().request)
    assert run is not None
    return prepared, run


def left_to_workers(rig: Rig) -> None:
    """Have the thread of the loop take no share: it must not stand at a gate."""
    rig.workers.loop_share.arm = lambda: False  # type: ignore[method-assign]  # As on trio.


def kept(prepared: EnginePreparedModel, row: Row) -> Flight | None:
    """The execution that the next call of this request may be."""
    return prepared._bindings.of(row.request).flight


async def over(flight: Flight) -> None:
    """Wait until the thread that ran it has let go of it."""
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    flight.when_released(lambda: loop.call_soon_threadsafe(gone.set))
    with anyio.fail_after(PATIENCE_S):
        await gone.wait()


async def flown(rig: Rig) -> tuple[EnginePreparedModel, QuickRun, Row, Flight]:
    """A prepared model, its quick run, and a request with the flight that is kept for it."""
    prepared, run = await quick(rig)
    row = Row()
    await run.run_beside(row.request)
    flight = kept(prepared, row)
    assert flight is not None
    await over(flight)
    return prepared, run, row, flight


async def test_the_next_call_of_a_request_is_the_same_execution(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    prepared, run = await quick(rig)
    row, flights = Row(), set[int]()
    for number in range(5):
        row.x[...] = number
        await run.run_beside(row.request)
        assert row.is_right
        flight = kept(prepared, row)
        assert flight is not None
        flights.add(id(flight))
        await over(flight)
    assert len(flights) == 1
    counts = rig.workers.statistics()
    assert counts.inline_runs + counts.worker_runs == 5
    assert counts.scheduler.submitted == counts.scheduler.dispatched == 5
    assert counts.live == counts.running == 0
    await prepared.close()


async def test_one_that_a_thread_has_not_let_go_of_is_left_alone(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    prepared, run, row, flight = await flown(rig)
    flight._released = False
    await run.run_beside(row.request)
    assert row.is_right
    assert kept(prepared, row) is not flight
    await prepared.close()


async def test_one_with_a_deadline_is_not_used_again_but_may_be_another(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    prepared, run, row, flight = await flown(rig)
    far_ns = now_ns() + 3600 * 10**9
    await run.run_beside(row.request, far_ns)
    assert row.is_right
    assert kept(prepared, row) is flight, "it was one without a deadline"
    assert flight.deadline_ns == far_ns
    await over(flight)
    await run.run_beside(row.request)
    found = kept(prepared, row)
    assert found is not None
    assert found is not flight
    assert found.deadline_ns == NEVER_NS
    assert rig.watchdog.pending() == 0
    await prepared.close()


async def test_one_that_is_late_in_the_queue_gives_its_memory_back(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=1)
    left_to_workers(rig)
    prepared, run = await quick(rig)
    first, second = Row(), Row()
    async with anyio.create_task_group() as group:
        group.start_soon(run.run_beside, first.request)
        await reached(engine, lambda counters: counters.waiting > 0)
        with pytest.raises(MissedDeadline):
            await run.run_beside(second.request, now_ns() + MS)
        await until(lambda: prepared.has_let_go(second.request))
        set_free(engine)
    assert first.is_right
    assert second.is_untouched
    assert rig.workers.inline.beside == 0
    await prepared.close()


async def test_one_that_was_given_up_is_not_used_again(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=2)
    left_to_workers(rig)
    prepared, run = await quick(rig)
    rows = [Row(n, n, n, n) for n in range(3)]
    async with anyio.create_task_group() as group:
        for row in rows:
            group.start_soon(run.run_beside, row.request)
        await reached(engine, lambda counters: counters.waiting > 0)
        group.cancel_scope.cancel()
    assert rig.workers.inline.beside == 0
    set_free(engine)
    for row in rows:
        assert kept(prepared, row) is None
        await run.run_beside(row.request)
        assert row.is_right
    await prepared.close()


async def test_one_that_failed_is_not_used_again(rigs: Rigs) -> None:
    fails = [True]

    def sometimes(inputs: Any) -> list[Array]:
        if fails[0]:
            raise GeneralFailure("out of order")
        return doubled(inputs)

    rig = rigs(NullEngine(compute=sometimes), cores=2)
    prepared, run = await quick(rig)
    row = Row()
    with pytest.raises(GeneralFailure, match="out of order"):
        await run.run_beside(row.request)
    assert kept(prepared, row) is None
    fails[0] = False
    await run.run_beside(row.request)
    assert row.is_right
    await prepared.close()


async def test_one_that_is_refused_gives_its_memory_back(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=1, queue_limit=1)
    left_to_workers(rig)
    prepared, run = await quick(rig)
    rows, refused = [Row() for _ in range(4)], list[Row]()

    async def beside(row: Row) -> None:
        try:
            await run.run_beside(row.request)
        except ResourceExhaustedTransient:
            refused.append(row)

    async with anyio.create_task_group() as group:
        for row in rows:
            group.start_soon(beside, row)
        await reached(engine, lambda counters: counters.waiting > 0)
        assert len(refused) >= 2
        assert all(prepared.has_let_go(row.request) for row in refused)
        set_free(engine)
    assert rig.workers.inline.beside == 0
    assert all(row.is_right for row in rows if not any(row is each for each in refused))
    await prepared.close()


async def test_who_observes_hears_of_each_execution_by_itself(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    seen = Seen()
    rig.workers.tracer.add(seen)
    prepared, run = await quick(rig)
    row = Row()
    for _ in range(3):
        await run.run_beside(row.request)
    assert len({id(task) for task in seen.tasks}) == 3
    rig.workers.tracer.remove(seen)
    await prepared.close()


async def test_one_is_left_to_who_observed_it_but_for_a_while(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=2)
    left_to_workers(rig)
    seen = Seen()
    rig.workers.tracer.add(seen)
    prepared, run = await quick(rig)
    row = Row()
    async with anyio.create_task_group() as group:
        group.start_soon(run.run_beside, row.request)
        await reached(engine, lambda counters: counters.waiting > 0)
        rig.workers.tracer.remove(seen)
        set_free(engine)
    assert len(seen.tasks) == 1
    assert kept(prepared, row) is None
    await prepared.close()


async def test_a_flight_begins_anew_whatever_became_of_the_last(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    prepared, run, row, flight = await flown(rig)
    # It was to give way as it ended, and had done so before.
    flight.stop.raised, flight.has_begun = YIELD, True
    await run.run_beside(row.request)
    assert row.is_right
    assert kept(prepared, row) is flight
    assert not flight.has_begun
    assert rig.workers.statistics().preemptions == 0
    await prepared.close()


async def test_closing_answers_a_flight_that_was_used_before(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=2)
    prepared, run = await quick(rig)
    row, errors = Row(), list[Exception]()
    assert engine.gate is not None
    engine.gate.open()
    await run.run_beside(row.request)
    flight = kept(prepared, row)
    assert flight is not None
    await over(flight)

    async def beside() -> None:
        try:
            await run.run_beside(row.request)
        except DeviceUnavailable as error:
            errors.append(error)

    left_to_workers(rig)
    async with anyio.create_task_group() as group:
        group.start_soon(beside)
        await reached(engine, lambda counters: counters.waiting > 0)
        await prepared.close()
    assert len(errors) == 1
    set_free(engine)


async def test_a_call_that_is_exchanged_is_kept_by_nothing(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    prepared, run = await quick(rig)
    row = Row()
    old = list[weakref.ref[Idle]]()

    async def beside() -> None:
        await run.run_beside(row.request)
        assert kept(prepared, row) is not None
        await until(lambda: prepared.has_let_go(row.request))

    def exchange(made: Callable[[], BoundCall]) -> None:
        prepared._bindings.of(row.request).exchange(lambda _: made())

    def first() -> Idle:
        old.append(weakref.ref(call := Idle()))
        return call

    await beside()
    exchange(first)
    await beside()
    exchange(Idle)
    await until(lambda: old[0]() is None)  # The thread that ran it may know it for a moment.
    await prepared.close()


async def test_what_is_told_of_the_last_execution_does_not_end_the_next() -> None:
    """It was over before anybody waited for it, so it is still to be told when the next begins."""
    estimate = Estimate()
    flight = Flight(Idle(), Priority.MEDIUM, estimate, NEVER_NS, "a flight")
    fence = flight.fence

    def ends() -> None:
        fence.signal()

    def elsewhere() -> None:
        thread = threading.Thread(target=ends)
        thread.start()
        thread.join(PATIENCE_S)

    elsewhere()
    assert fence.end_of_wait() is None
    flight.finished = True
    flight.release()
    assert flight.renew(Idle(), estimate)
    ended = list[bool]()

    async def waits() -> None:
        future = fence.end_of_wait()
        assert future is not None
        await future
        ended.append(fence.done)

    async with anyio.create_task_group() as group:
        group.start_soon(waits)
        for _ in range(5):
            await yield_now()
        assert not ended
        elsewhere()
    assert ended == [True]


@pytest.mark.usefixtures("no_leaks")
async def test_it_is_told_to_the_thread_in_which_the_loop_goes_on() -> None:
    """The loop may have been run by another thread when the execution was made."""
    loop, fences = asyncio.new_event_loop(), list[AwaitedFence]()

    async def make() -> None:
        fences.append(AwaitedFence())

    async def wait() -> None:
        future = fences[0].end_of_wait()
        assert future is not None
        at_the_gate.set()
        await future

    def first() -> None:
        loop.run_until_complete(make())
        made.set()
        assert at_the_gate.wait(PATIENCE_S)
        posted.append(fences[0]._wakeup.posted)
        fences[0].signal()
        posted.append(fences[0]._wakeup.posted)
        # Not to be heard of by chance: it is what wakes the loop.
        loop.call_soon_threadsafe(int)

    made, at_the_gate, posted = threading.Event(), threading.Event(), list[int]()
    thread = threading.Thread(target=first)
    thread.start()
    assert await to_thread.run_sync(made.wait, PATIENCE_S)
    await to_thread.run_sync(loop.run_until_complete, wait())
    thread.join(PATIENCE_S)
    loop.close()
    assert posted == [0, 1]


async def test_only_what_is_over_for_all_can_be_used_again() -> None:
    estimate = Estimate()
    flight = Flight(Idle(), Priority.MEDIUM, estimate, NEVER_NS, "a flight")
    assert not flight.renew(Idle(), estimate), "it has not run"
    flight.fence.signal()
    flight.finished = True
    assert not flight.renew(Idle(), estimate), "its thread has not let go of it"
    flight.release()
    assert not flight.renew(Idle(), Estimate()), "its like is known by other runs now"
    assert flight.renew(Idle(), estimate)
    flight.fence.signal()
    flight.finished = True
    flight.release()
    flight.alarm = Alarm(NEVER_NS, int, Watchdog())
    assert not flight.renew(Idle(), estimate), "its alarm may just ring"
    flight.alarm = None
    assert flight.renew(Idle(), estimate, 1)
    assert flight.deadline_ns == 1
    flight.fence.fail(GeneralFailure("broken"))
    flight.finished = True
    flight.release()
    assert not flight.renew(Idle(), estimate), "it failed"


async def test_what_lets_go_of_one_gives_back_its_call_and_not_that_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimate, first, second = Estimate(), Idle(), Idle()
    flight = Flight(first, Priority.MEDIUM, estimate, NEVER_NS, "a flight")
    returned = list[object]()
    flight.returns = returned.append
    flight.started_ns, flight.finished = 1, True
    flight.fence.signal()

    class NextCallComes:
        """The lock; the loop has its turn as soon as the thread that ran it has left that."""

        def __enter__(self) -> None:
            """Nobody else is here."""

        def __exit__(self, *_: object) -> None:
            assert flight.renew(second, estimate)
            flight.started_ns = 2

    monkeypatch.setattr(task_module, "_RELEASE_LOCK", NextCallComes())
    flight.release()
    assert returned == [first]
    assert not second.rewinds
    assert flight.call is second


class Idle:
    """A call without work."""

    reads_given = False

    def __init__(self) -> None:
        self.rewinds = 0

    def run(self, stop: object, given: object = None) -> bool:
        return True

    def rewind(self) -> None:
        self.rewinds += 1
