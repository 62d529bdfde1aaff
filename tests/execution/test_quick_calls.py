"""Quick calls: plain ones, large inputs that are read in place, calls ahead of the first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.execution.quick_calls import QuickCalls
from nnasync._core.workers import inline
from nnasync._core.workers.turns import Turn
from nnasync.device import InlinePreparedModel, PreparedModel, QuickPreparedModel
from nnasync.errors import GeneralFailure, InvalidArgument, MissedDeadline
from nnasync.scheduler import Estimate
from tests.rigs import (
    HOUR,
    INLINE,
    POOL,
    REFERENCE,
    ROW,
    attempt,
    both,
    counter,
    double,
    doubler,
    gated,
    runtime,
    until_inline,
)

PLAIN = nn.Options(cores=1, inline_budget_us=1e6, stall_budget_us=1e6, competition_budget_ms=0)
"""On a busy machine, too, no run takes so long that other cores are thought of."""

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def summed() -> nn.Model:
    """A model with an input so large that it is read where it is."""
    builder = nn.ModelBuilder("summed")
    x = builder.input("x", (100, 100))
    builder.output("y", builder.add(x, x))
    return builder.build()


@pytest.mark.one_loop("There is no short way on trio.")
@pytest.mark.parametrize("deadline_ns", [1, 10**15])
async def test_a_call_that_is_late_costs_the_next_one_no_memory(
    monkeypatch: pytest.MonkeyPatch, deadline_ns: int
) -> None:
    """It was refused, or has ended after its deadline: nothing uses its memory any more."""
    async with runtime(options=PLAIN) as rt, rt.compile(doubler()) as net:
        await until_inline(rt, net, ROW)
        await until_inline(rt, net, ROW)
        quick = net._quick
        assert isinstance(quick, QuickCalls)
        run, times = quick._run, iter([0, 2 * 10**15])
        with monkeypatch.context() as patch:
            patch.setattr(inline, "now_ns", lambda: next(times))
            with pytest.raises(MissedDeadline):
                await net(ROW, deadline=nn.Deadline(deadline_ns))
        assert quick._run is run is not None
        assert ((await net(ROW)) == 2 * ROW).all()


@both
async def test_a_large_input_of_any_form(options: nn.Options) -> None:
    """What an engine computes is a copy of what it was given, whatever its strides."""
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(summed())
        whole = np.arange(20_000, dtype=np.float32).reshape(100, 200)
        if options is INLINE:
            await until_inline(rt, net, np.zeros((100, 100), np.float32))
        for mine in (whole[:, :100].copy(), whole[:, ::2], whole[:, 100:], whole[::-1, :100]):
            assert (await net(mine) == 2 * mine).all()
            mine[...] = 0
        same = np.ones((100, 100), np.dtype("f4", copy=True))
        assert same.dtype is not net.inputs[0].dtype
        assert (await net(same) == 2).all()
        with pytest.raises(InvalidArgument, match="shape"):
            await net(whole)


async def test_a_large_input_is_copied_before_the_first_suspension() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(summed())
        mine = np.ones((100, 100), np.float32)
        call = await attempt(group, lambda: net(mine))
        await engine.when(lambda c: c.waiting == 1)
        mine[...] = 0
        engine.gate.open()
        await call.done.wait()
        assert (call.result == 2).all()


# -- calls ahead of the first


async def test_the_reference_has_made_calls_before_the_first() -> None:
    """It is measured, and so runs on the thread of the loop, and nothing of that is counted."""
    options = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=1e6)
    async with runtime(options=options) as rt:
        net = await rt.compile(doubler())
        assert rt.statistics().workers.inline_runs == 0
        assert rt.statistics().workers.worker_runs == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert rt.statistics().workers.inline_runs == 1


async def test_an_engine_that_does_not_ask_for_it_is_not_run_ahead() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=INLINE) as rt:
        net = await rt.compile(doubler())
        assert engine.counters.run == 0
        await net(ROW)
        assert engine.counters.run == 1


async def test_a_rehearsal_fails_in_silence() -> None:
    broken = False

    def compute(inputs: Any) -> Any:
        if broken:
            raise GeneralFailure("out of order")
        return double(inputs)

    async with runtime(NullEngine(compute=compute), options=INLINE) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        before = rt.statistics().workers.inline_runs
        broken = True
        await net._warm_up()
        broken = False
        assert rt.statistics().workers.inline_runs == before
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


# -- plain calls: nothing between the array and the engine but what must be


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that went the longer way."""
    seen: list[object] = []
    usual = nn.Net._call_in_full

    async def noted(self: nn.Net[Any], arrays: Any, *others: Any, **named: Any) -> Any:
        seen.append(arrays[0])
        return await usual(self, arrays, *others, **named)

    monkeypatch.setattr(nn.Net, "_call_in_full", noted)
    return seen


async def test_a_plain_call_is_answered_as_any_other(
    longer: list[object], anyio_backend_name: str
) -> None:
    """On trio all calls go the longer way, since its cancellation is not told by few looks."""
    async with runtime(NullEngine(compute=double), options=PLAIN) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        await net(ROW)
        longer.clear()
        x = np.array([[1, 2, 3, 4]], np.float32)
        for call in (net(x), net(x, deadline=nn.within(s=60))):
            assert (await call).tolist() == [[2, 4, 6, 8]]
        assert bool(longer) == (anyio_backend_name == "trio")
        first, second = await net(x), await net(x + 1)
        assert first.tolist() == [[2, 4, 6, 8]], "each call has an array of its own"
        assert second.tolist() == [[4, 6, 8, 10]]


@pytest.mark.one_loop("The ways are the same on every loop.")
async def test_what_is_not_plain_goes_the_longer_way(longer: list[object]) -> None:
    async with runtime(NullEngine(compute=double), options=PLAIN) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        x = np.array([[1, 2, 3, 4]], np.float32)
        await net(x)
        longer.clear()
        others: list[Callable[[], Awaitable[Any]]] = [
            lambda: net(x.tolist()),
            lambda: net(x, out=np.empty_like(x)),
            lambda: net(x, priority=nn.Priority.HIGH),
            lambda: net({net.inputs[0].name: x}),
        ]
        for other in others:
            assert np.array_equal(await other(), 2 * x)
        assert len(longer) == len(others)
        for wrong in (x[:, :3], x.astype(np.float64)[:, :2]):
            with pytest.raises(InvalidArgument):
                await net(wrong)
        with pytest.raises(InvalidArgument, match="deadline must be"):
            await net(x, deadline=20)  # type: ignore[arg-type]  # What is refused.
        await net.aclose()
        with pytest.raises(nn.BadState, match="closed"):
            await net(x)


@both
async def test_a_plain_call_of_a_cancelled_task_does_not_run(options: nn.Options) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        for _ in range(4):
            await net(ROW)
        before = engine.counters.run
        with anyio.CancelScope() as scope:
            scope.cancel()
            await net(ROW)
        assert scope.cancelled_caught
        assert engine.counters.run == before


async def test_a_plain_call_keeps_its_deadline() -> None:
    async with runtime(NullEngine(compute=double), options=PLAIN) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        await net(ROW)
        with pytest.raises(nn.MissedDeadline):
            await net(ROW, deadline=nn.Deadline(1))
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("falls_back", [True, False])
async def test_a_plain_call_that_fails(falls_back: bool) -> None:
    """The reference does it over on a worker, or the caller hears of the failure."""
    broken = False

    def compute(inputs: Any) -> Any:
        if broken:
            raise ValueError("out of order")
        return double(inputs)

    others = [REFERENCE] if falls_back else []
    async with runtime(NullEngine(compute=compute), *others, options=PLAIN) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        await net(ROW)
        broken = True
        if falls_back:
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
            assert net.report().fallbacks
        else:
            with pytest.raises(GeneralFailure, match="out of order"):
                await net(ROW)
        broken = False
        for _ in range(3):
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_a_plain_call_of_a_network_with_states_begins_from_zeros() -> None:
    """A call brings one of its inputs only, so no engine is given its array in place of all."""
    async with runtime(options=PLAIN) as rt:
        net = await rt.compile(counter(), devices=[REFERENCE])
        await until_inline(rt, net, ROW)
        for _ in range(3):
            assert (await net(ROW)).tolist() == [[1, 2, 3, 4]]
        async with net.burst() as burst:
            for times in range(1, 4):
                assert (await burst(ROW) == times * ROW).all()
        assert (await net(2 * ROW)).tolist() == [[2, 4, 6, 8]]


async def test_plain_calls_of_a_burst_are_counted() -> None:
    async with runtime(NullEngine(compute=double), options=PLAIN) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        async with net.burst() as burst:
            for _ in range(5):
                assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]
            assert (burst.statistics().submitted, burst.statistics().succeeded) == (5, 5)
            with pytest.raises(InvalidArgument):
                await burst(ROW, deadline=3)  # type: ignore[arg-type]  # What is refused.
        with pytest.raises(nn.BadState):
            await burst(ROW)


# -- plain calls that this thread must not run


def pin(net: nn.Net[Any], run_ns: float) -> None:
    """Have its runs taken for that long, whatever they took."""
    prepared: Any = net._prepared
    estimate: Estimate = prepared.estimate
    estimate.samples = 100
    estimate.ns = estimate.best_ns = estimate.floor_ns = estimate.high_ns = run_ns


@pytest.mark.one_loop("On trio all calls go the longer way.")
@pytest.mark.parametrize("priority", list(nn.Priority))
async def test_a_plain_call_that_a_worker_must_run_is_short_too(
    longer: list[object], priority: nn.Priority
) -> None:
    threads = set[str]()

    def compute(inputs: Any) -> Any:
        threads.add(threading.current_thread().name)
        return double(inputs)

    async with runtime(NullEngine(compute=compute), options=POOL) as rt:
        net = await rt.compile(doubler(), priority=priority)

        async def calls(number: int) -> None:
            for each in range(5):
                mine = (number + each) * ROW
                assert (await net(mine) == 2 * mine).all()

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(calls, number)
        assert not longer
        kind = "nnasync-low" if priority is nn.Priority.LOW else "nnasync-worker"
        assert all(name.startswith(kind) for name in threads)
        assert rt.statistics().workers.worker_runs == 20
        assert rt._workers.inline.beside == 0
        quick = net._quick
        assert isinstance(quick, QuickCalls)
        assert quick._slot is None, "no memory is kept for runs on this thread"


@asynccontextmanager
async def calling_again_and_again(*, bursts: bool) -> AsyncIterator[tuple[Any, Turn]]:
    """What is called, and a turn in which one run was and one more has just room."""
    options = msgspec.structs.replace(PLAIN, cores=2)
    async with runtime(options=options) as rt, rt.compile(doubler()) as net, net.burst() as burst:
        call: Any = burst if bursts else net
        for _ in range(2):
            await until_inline(rt, call, ROW)
        here = rt._workers.inline.turns.here
        here.turned(here.number)
        pin(net, 0.4e9)
        await call(ROW)
        assert here.spent_ns > 0
        pin(net, 0.4e9)
        here.spent_ns = 0.6e9
        yield call, here


@pytest.mark.one_loop("There is no short way on trio.")
@pytest.mark.parametrize("bursts", [False, True])
@pytest.mark.parametrize("is_alone", [True, False])
async def test_who_calls_again_and_again_lets_the_loop_turn_once_a_turn_is_full(
    is_alone: bool, bursts: bool
) -> None:
    """The next call has room then, and need not wait for a turn on the longer way."""
    async with calling_again_and_again(bursts=bursts) as (call, here):
        if not is_alone:
            here.arrive(-1, others_run=False)
        number = here.number
        assert (await call(ROW) == 2 * ROW).all()
        assert (here.number > number) is is_alone
        assert (here.spent_ns > 0) is not is_alone


@pytest.mark.one_loop("There is no short way on trio.")
@pytest.mark.parametrize("bursts", [False, True])
async def test_who_is_canceled_after_a_full_turn(bursts: bool) -> None:
    async with calling_again_and_again(bursts=bursts) as (call, _):
        tally, before = call._tally, call._tally.outcomes()
        task: Any = asyncio.current_task()
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await call(ROW)
        task.uncancel()
        after = tally.outcomes()
        assert after.pop(("cancelled", "")) == 1
        assert after == before
        assert (await call(ROW) == 2 * ROW).all()


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_a_network_moves_between_workers_and_the_thread_of_the_loop(
    longer: list[object],
) -> None:
    """It leaves that as soon as it is too long, and comes back when it is short again."""
    async with runtime(NullEngine(compute=double), options=PLAIN) as rt:
        net = await rt.compile(doubler())

        async def runs(run_ns: float, deadline: nn.Deadline | None = None) -> bool:
            """Whether a call runs on a worker, where its like take so long."""
            pin(net, run_ns)
            before = rt.statistics().workers.worker_runs
            assert (await net(ROW, deadline=deadline) == 2 * ROW).all()
            return rt.statistics().workers.worker_runs > before

        assert await runs(1e12)
        assert await runs(1e12)
        assert not longer
        assert not await runs(1e3)
        assert len(longer) == 1, "one call has to find out"
        assert not await runs(1e3)
        assert len(longer) == 1
        assert await runs(1e12)
        assert len(longer) == 1
        assert not await runs(1e3)
        assert await runs(1e12, nn.within(**HOUR))
        assert not await runs(1e3, nn.within(**HOUR))
        assert len(longer) == 1, "it was known all the time how it runs here"


class Older:
    """A prepared model of this process that knows nothing of quick runs, as drivers may have it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.asked = 0

    def run_now(self, *question: Any) -> Any:
        self.asked += 1
        return self.inner.run_now(*question)


def forwarded(name: str) -> Any:
    return lambda self, *given, **named: getattr(self.inner, name)(*given, **named)


for _protocol in (PreparedModel, InlinePreparedModel):
    for _name in vars(_protocol):
        if not (_name.startswith("_") or _name in vars(Older)):
            setattr(Older, _name, forwarded(_name))


async def test_a_model_without_quick_runs_still_runs_on_the_thread_of_its_caller() -> None:
    async with runtime(options=PLAIN) as rt:
        net = await rt.compile(doubler(), devices=[REFERENCE])
        x = np.ones(net.inputs[0].shape, net.inputs[0].dtype)
        await until_inline(rt, net, x)
        older: Any = Older(net._prepared)
        assert [isinstance(older, each) for each in (InlinePreparedModel, QuickPreparedModel)] == [
            True,
            False,
        ]
        assert net._take_over(msgspec.structs.replace(net._compilation, prepared=older))
        before = rt.statistics().workers.inline_runs
        assert (await net(x) == 2 * x).all()
        assert older.asked == 1
        async with net.burst() as burst:
            assert (await burst(x) == 2 * x).all()
        assert rt.statistics().workers.inline_runs == before + 2


async def test_a_caller_left_alone_still_leaves_turns_to_others_of_the_loop() -> None:
    """What was answered to it beside another caller is not its answer for ever."""
    turns, count = 0, 2_000

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    def compute(inputs: Any) -> Any:
        ends_ns = nn.now_ns() + 100_000
        while nn.now_ns() < ends_ns:
            pass
        return double(inputs)

    async def call(times: int) -> None:
        for _ in range(times):
            await net(ROW)

    options = nn.Options(cores=2, inline_budget_us=1000, stall_budget_us=1000)
    async with runtime(NullEngine(compute=compute), options=options) as rt:
        net = await rt.compile(doubler(), priority=nn.Priority.LOW)
        async with anyio.create_task_group() as group:
            group.start_soon(call, 100)
            group.start_soon(call, 100)
        async with anyio.create_task_group() as group:
            group.start_soon(count_turns)
            await call(count)
            group.cancel_scope.cancel()
    # Ten calls use up what a turn may be held up for.
    assert turns > count / 20
