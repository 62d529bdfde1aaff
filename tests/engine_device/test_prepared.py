"""Every path of execution of an engine: same results, one answer, its limits kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnasync._core.clock import Deadline, now_ns, within
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.engine import BoundCall, Engine, Given, StopFlag
from nnasync.errors import (
    Cancelled,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import NOT_AVAILABLE, ExecutionConfig, ExecutionResult, OutputShape, Priority
from nnasync.scheduler import NEVER_NS
from tests.engine_device.rig import (
    PATIENCE_S,
    Rig,
    Row,
    finished,
    free,
    in_threads,
    null,
    reached,
    until_inline,
)
from tests.rigs import ManualWatchdog, until

pytestmark = pytest.mark.anyio

Rigs = Callable[..., Rig]
BOTH = ["execute", "execute_synchronously"]
ENGINES: dict[str, Callable[[], Engine]] = {"null": null, "reference": ReferenceEngine}


# -- results and timings


@pytest.mark.parametrize("engine", ENGINES)
async def test_every_path_gives_the_same(rigs: Rigs, engine: str) -> None:
    rig = rigs(ENGINES[engine]())
    prepared = await rig.prepare()
    for number in range(5):
        rows = [Row(number, -number, 0.5, 1e6) for _ in range(3)]
        results = [
            await prepared.execute(rows[0].request),
            await prepared.execute_synchronously(rows[1].request),
        ]
        launched = await prepared.execute_fenced(rows[2].request)
        assert await finished(launched.fence) is None
        assert all(row.is_right for row in rows)
        assert results == [ExecutionResult((OutputShape((1, 4)),))] * 2
    assert rig.workers.statistics().inline_runs > 0
    assert rig.workers.statistics().worker_runs > 0


@pytest.mark.parametrize("path", BOTH)
async def test_timings_only_if_measured(rigs: Rigs, path: str) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    plain = await getattr(prepared, path)(row.request)
    assert plain.timing.time_on_device_ns == plain.timing.time_in_driver_ns == NOT_AVAILABLE
    begun_ns = now_ns()
    timing = (await getattr(prepared, path)(row.request, ExecutionConfig(measure=True))).timing
    assert 0 <= timing.time_on_device_ns <= timing.time_in_driver_ns <= now_ns() - begun_ns


@pytest.mark.parametrize("path", BOTH)
async def test_driver_that_raises(rigs: Rigs, path: str) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    engine.fail("run", KeyError("layer 3"))
    with pytest.raises(GeneralFailure, match="layer 3"):
        await getattr(prepared, path)(row.request)
    engine.heal()
    engine.fail("run", InvalidArgument("index 9"))
    with pytest.raises(InvalidArgument, match="index 9"):
        await getattr(prepared, path)(row.request)
    engine.heal()
    row.x[...] = 9
    await getattr(prepared, path)(row.request)
    assert row.is_right


# -- cancelling and deadlines


async def test_cancelling_the_await_frees_the_device(rigs: Rigs) -> None:
    engine = null(gated=True, steps=3)
    rig = rigs(engine, cores=1)
    prepared, row, other = await rig.prepare(), Row(), Row()
    async with anyio.create_task_group() as group:
        group.start_soon(prepared.execute, row.request)
        await reached(engine, lambda now: now.waiting == 1)
        group.cancel_scope.cancel()
    assert engine.gate is not None
    engine.gate.open()
    await reached(engine, lambda now: now.stopped == 1)
    engine.gate.open_wide()
    await prepared.execute(other.request)
    assert other.is_right
    assert row.is_untouched
    assert engine.counters.rewind == 1


async def test_cancelling_before_the_first_step(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await prepared.execute(row.request)
    assert scope.cancelled_caught
    await free(rig)


async def test_deadline_while_the_device_hangs(rigs: Rigs) -> None:
    engine, watchdog = null(steps=2), ManualWatchdog()
    rig = rigs(engine, cores=1, watchdog=watchdog)
    prepared, row, other = await rig.prepare(), Row(), Row()
    engine.hang(at=0, step=1)
    deadline = within(s=3600)
    late = await prepared.execute_fenced(
        row.request, config=ExecutionConfig(deadline_ns=deadline.at_ns)
    )
    await reached(engine, lambda now: now.hanging == 1)
    watchdog.ring(deadline)
    assert isinstance(await finished(late.fence), MissedDeadlineTransient)
    assert rig.workers.statistics().quarantined == 1
    watchdog.ring(Deadline(watchdog.alarms[-1].at_ns))  # the thread is written off
    with anyio.fail_after(PATIENCE_S):
        await prepared.execute(other.request)  # on a thread that takes the hung one's place
    assert other.is_right
    engine.release()
    await free(rig)
    assert engine.counters.rewind <= 1


@pytest.mark.parametrize("path", BOTH)
async def test_deadline_in_the_past(rigs: Rigs, path: str) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    runs = engine.counters.run
    with pytest.raises(MissedDeadlinePersistent):
        await getattr(prepared, path)(row.request, ExecutionConfig(deadline_ns=within(ms=-1).at_ns))
    assert engine.counters.run == runs


async def test_full_queue(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=1, queue_limit=1)
    prepared, rows = await rig.prepare(), [Row() for _ in range(3)]
    launched = [await prepared.execute_fenced(rows[0].request)]
    await reached(engine, lambda now: now.waiting == 1)
    launched.append(await prepared.execute_fenced(rows[1].request))
    with pytest.raises(ResourceExhaustedTransient):
        await prepared.execute(rows[2].request)
    assert engine.gate is not None
    engine.gate.open_wide()
    for each in launched:
        assert await finished(each.fence) is None
    assert rows[2].is_untouched


# -- inline


async def test_unknown_and_expensive_executions_run_on_workers(rigs: Rigs) -> None:
    rig = rigs(null(), inline_budget_ns=0)
    prepared, row = await rig.prepare(), Row()
    for _ in range(3):
        await prepared.execute_synchronously(row.request)
    assert rig.workers.statistics().inline_runs == 0
    assert rig.workers.statistics().worker_runs == 3


async def test_inline_gives_way_to_queued_work_of_higher_priority(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine, cores=1)
    low, high = await rig.prepare(priority=Priority.LOW), await rig.prepare(priority=Priority.HIGH)
    row, urgent = Row(), [Row(), Row()]
    await until_inline(rig, low, row.request)
    engine.hang(at=engine.counters.run)
    launched = [await high.execute_fenced(each.request) for each in urgent]
    await reached(engine, lambda now: now.hanging == 1)
    before = rig.workers.statistics().inline_runs
    async with anyio.create_task_group() as group:
        group.start_soon(low.execute_synchronously, row.request)
        await anyio.wait_all_tasks_blocked()
        assert rig.workers.statistics().inline_runs == before
        engine.heal()
        engine.release()
    for each in launched:
        assert await finished(each.fence) is None


async def test_executions_take_turns_with_the_loop(rigs: Rigs) -> None:
    """When the budget of a turn is spent, an inline execution lets the loop turn first."""
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    rig.workers.turns.here.budget_ns = 0
    turns = 0
    stop = anyio.Event()

    async def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            await anyio.lowlevel.checkpoint()

    before = rig.workers.statistics().inline_runs
    async with anyio.create_task_group() as group:
        group.start_soon(count)
        await anyio.lowlevel.checkpoint()
        turns = 0
        for _ in range(20):
            await prepared.execute_synchronously(row.request)
        stop.set()
    inline = rig.workers.statistics().inline_runs - before
    assert inline > 0
    assert turns >= inline - 1


# -- the limit of an engine


class Crowd:
    """Counts how many executions are inside at once, and the most that ever were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.total = 0

    def enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self._lock:
            self.inside -= 1


def crowded(rig: Rig, crowd: Crowd) -> None:
    """Have the crowd see every run of the rig's engine."""
    compute = rig.engine.compute  # type: ignore[attr-defined]

    def counting(inputs: Any) -> Any:
        crowd.enter()
        try:
            return compute(inputs)
        finally:
            crowd.leave()

    rig.engine.compute = counting  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [1, 2])
async def test_no_more_at_once_than_the_engine_allows(rigs: Rigs, limit: int) -> None:
    engine = null(gated=True, concurrency=limit)
    rig = rigs(engine, cores=4)
    prepared, rows = await rig.prepare(), [Row(number) for number in range(6)]
    launched = [await prepared.execute_fenced(row.request) for row in rows]
    await reached(engine, lambda now: now.waiting == limit)
    assert engine.counters.run == limit
    assert engine.gate is not None
    for done in range(1, len(rows) + 1):
        engine.gate.open()
        await reached(engine, lambda now, done=done: now.finished == done)  # type: ignore[misc]
        begun = min(len(rows), done + limit)
        await reached(engine, lambda now, begun=begun: now.run == begun)  # type: ignore[misc]
        assert engine.counters.run == begun
    for each, row in zip(launched, rows, strict=True):
        assert await finished(each.fence) is None
        assert row.is_right


async def test_limit_holds_across_loops_and_inline_runs(rigs: Rigs) -> None:
    engine = null(concurrency=1)
    rig, crowd = rigs(engine, cores=4), Crowd()
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    crowded(rig, crowd)

    def other_loop(number: int) -> None:
        async def calls() -> None:
            mine = Row(number)
            for _ in range(20):
                await prepared.execute_synchronously(mine.request)
                assert mine.is_right

        anyio.run(calls)

    errors = await anyio.to_thread.run_sync(in_threads, 4, other_loop)
    assert errors == []
    assert crowd.total == 80
    assert crowd.most == 1


async def test_deadline_passes_in_front_of_a_busy_engine(rigs: Rigs) -> None:
    engine = null(gated=True, concurrency=1)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row() for _ in range(3)]
    first = await prepared.execute_fenced(rows[0].request)
    await reached(engine, lambda now: now.waiting == 1)
    with anyio.fail_after(PATIENCE_S), pytest.raises(MissedDeadlinePersistent):
        await prepared.execute(rows[1].request, ExecutionConfig(deadline_ns=within(ms=20).at_ns))
    last = await prepared.execute_fenced(rows[2].request)
    assert engine.gate is not None
    engine.gate.open_wide()
    assert await finished(first.fence) is None
    assert await finished(last.fence) is None
    assert engine.counters.run == 2
    assert rows[1].is_untouched


# -- one prepared model for many


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", BOTH)
async def test_ten_tasks(rigs: Rigs, engine: str, path: str) -> None:
    rig = rigs(ENGINES[engine]())
    prepared = await rig.prepare()

    async def calls(number: int) -> None:
        row = Row(number)
        for step in range(10):
            row.x[...] = (number, step, number * step, -step)
            await getattr(prepared, path)(row.request)
            assert row.is_right

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(calls, number)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", BOTH)
async def test_ten_threads_each_with_its_own_loop(rigs: Rigs, engine: str, path: str) -> None:
    rig = rigs(ENGINES[engine]())
    prepared = await rig.prepare()
    backends = ["asyncio", "trio"]

    def calls(number: int) -> None:
        async def loop() -> None:
            row = Row(number)
            for step in range(10):
                row.x[...] = (number, step, number * step, -step)
                await getattr(prepared, path)(row.request)
                assert row.is_right

        anyio.run(loop, backend=backends[number % 2])

    assert await anyio.to_thread.run_sync(in_threads, 10, calls) == []


# -- bursts


class Client:
    """A burst on a prepared model, over channels."""

    def __init__(self) -> None:
        self.requests, self.results = LocalChannel(), LocalChannel()
        self.controller = BurstController(self.requests, self.results)

    async def open(self, prepared: EnginePreparedModel) -> None:
        context = await prepared.configure_execution_burst(
            self.controller, self.requests, self.results
        )
        self.controller.attach(context)

    def send(self, row: Row, deadline: Deadline | None = None) -> Sent:
        sent = Sent()
        at_ns = NEVER_NS if deadline is None else deadline.at_ns
        arguments = self.controller.encode(row.request)
        serial = self.controller.send(arguments, sent.take, ExecutionConfig(deadline_ns=at_ns))
        sent.cancel = lambda: self.controller.cancel(serial)
        return sent

    def close(self) -> None:
        self.controller.close(Cancelled("the burst ended"))


class Sent:
    """A request of a burst and its outcomes."""

    def __init__(self) -> None:
        self.cancel: Callable[[], object] = bool
        self.outcomes: list[Outcome] = []
        self.done = Fence()

    def take(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.done.signal()

    async def outcome(self) -> Outcome:
        await finished(self.done)
        assert len(self.outcomes) == 1
        return self.outcomes[0]


class DirectClient(Client):
    """One that takes requests as they are."""

    async def open(self, prepared: EnginePreparedModel) -> None:
        self.burst = prepared.open_burst()

    def send(self, row: Row, deadline: Deadline | None = None) -> Sent:
        sent = Sent()
        at_ns = NEVER_NS if deadline is None else deadline.at_ns
        config = ExecutionConfig(deadline_ns=at_ns)
        try:
            sent.cancel = self.burst.send(row.request, config, sent.take)
        except NNError as error:
            sent.take(error)
        return sent

    def close(self) -> None:
        self.burst.close(Cancelled("the burst ended"))


@pytest.fixture(params=[Client, DirectClient])
def client(request: Any) -> Client:
    made: Client = request.param()
    return made


async def test_burst_gives_what_a_call_gives(rigs: Rigs, client: Client) -> None:
    rig = rigs(null())
    prepared = await rig.prepare()
    await client.open(prepared)
    assert rig.workers.statistics().hot == 1
    rows = [Row(number) for number in range(10)]
    for row in rows * 3:
        assert isinstance(await client.send(row).outcome(), ExecutionResult)
        assert row.is_right
    assert rig.workers.statistics().inline_runs > 0
    client.close()
    client.close()
    assert rig.workers.statistics().hot == 0


async def test_burst_runs_one_at_a_time_in_order(rigs: Rigs, client: Client) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row(number) for number in range(4)]
    await client.open(prepared)
    sent = [client.send(row) for row in rows]
    assert engine.gate is not None
    for number, each in enumerate(sent):
        await reached(engine, lambda now: now.waiting == 1)
        assert engine.counters.run == number + 1
        engine.gate.open()
        assert isinstance(await each.outcome(), ExecutionResult)
        assert rows[number].is_right
    client.close()


async def test_missed_call_of_a_burst_lets_nothing_overtake(rigs: Rigs, client: Client) -> None:
    """The second misses its deadline in the queue; the third still waits for the first."""
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row() for _ in range(3)]
    await client.open(prepared)
    first = client.send(rows[0])
    await reached(engine, lambda now: now.waiting == 1)
    second, third = client.send(rows[1], within(ms=10)), client.send(rows[2])
    assert isinstance(await second.outcome(), MissedDeadlinePersistent)
    assert first.outcomes == []
    assert rig.workers.statistics().scheduler.queued == (0, 0, 0)
    assert engine.counters.run == 1
    assert engine.gate is not None
    engine.gate.open_wide()
    for each in (first, third):
        assert isinstance(await each.outcome(), ExecutionResult)
    assert rows[1].is_untouched
    client.close()


async def test_failed_call_of_a_burst(rigs: Rigs, client: Client) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await client.open(prepared)
    engine.fail("run", KeyError("layer"), at=0)
    for _ in range(2):
        outcome = await client.send(row).outcome()
        assert isinstance(outcome, GeneralFailure)
        engine.heal()
        engine.fail("run", OSError("layer"), at=1)
    small = await client.send(Row(length=12)).outcome()
    assert getattr(small, "output_shapes", None) == (OutputShape((1, 4), False),)
    assert isinstance(await client.send(row).outcome(), ExecutionResult)
    client.close()


async def test_closing_a_burst_in_flight(rigs: Rigs, client: Client) -> None:
    engine = null(gated=True, steps=2)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row(), Row()]
    await client.open(prepared)
    sent = [client.send(row) for row in rows]
    await reached(engine, lambda now: now.waiting == 1)
    client.close()
    for each in sent:
        assert isinstance(await each.outcome(), NNError)
    assert engine.gate is not None
    engine.gate.open()
    await reached(engine, lambda now: now.stopped == 1)
    await free(rig)
    assert all(row.is_untouched for row in rows)
    assert engine.counters.run == 1


async def test_cancelling_a_call_of_a_burst(rigs: Rigs, client: Client) -> None:
    engine = null(gated=True, steps=2)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row(), Row()]
    await client.open(prepared)
    first, second = (client.send(row) for row in rows)
    await reached(engine, lambda now: now.waiting == 1)
    first.cancel()
    assert isinstance(await first.outcome(), Cancelled)
    assert engine.gate is not None
    engine.gate.open_wide()
    assert isinstance(await second.outcome(), ExecutionResult)
    assert rows[0].is_untouched
    assert rows[1].is_right
    client.close()


async def test_bound_calls_see_no_flag_inline(rigs: Rigs) -> None:
    """An inline run cannot be preempted: its flag is never raised."""
    seen: list[int] = []
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    call = prepared._bindings[id(row.request)].take()
    original = call.run

    class Watching(BoundCall):
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            seen.append(stop.raised)
            return original(stop)

        def rewind(self) -> None:
            call.rewind()

    prepared._bindings[id(row.request)].give_back(Watching())
    await prepared.execute_synchronously(row.request)
    assert seen == [0]


async def test_binding_ahead_tries_a_measured_plan_once(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared = await rig.prepare()
    row = Row(1, 2, 3, 4)
    prepared.bind(row.request)
    assert row.is_untouched
    prepared.estimate.observe(1000)
    prepared.bind(row.request)
    assert row.is_right
    engine.fail("run", RuntimeError("no"))
    other = Row(1, 2, 3, 4)
    prepared.bind(other.request)
    assert other.is_untouched
    engine.heal()
    await prepared.execute(other.request)
    assert other.is_right
    await until(lambda: prepared.has_let_go(other.request))  # What failed is not in use.
