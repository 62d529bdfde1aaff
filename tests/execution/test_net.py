"""A network is awaited: inputs, results, deadlines, cancelling, and the turns of the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
)
from tests.rigs import (
    HOUR,
    INLINE,
    ONES,
    ROW,
    SHAPE,
    ManualWatchdog,
    attempt,
    both,
    calculator,
    compiled,
    counter,
    double,
    doubler,
    floats,
    free,
    gated,
    runtime,
    until,
    until_inline,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


class Jump:
    """A clock that a test moves on, in place of that of the workers."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self._now_ns: Callable[[], int] = nn._core.clock.now_ns

    def __call__(self) -> int:
        return self._now_ns() + self.ahead_ns


# -- inputs and results


async def test_a_network_computes() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_inputs_by_position_and_by_name_and_several_outputs() -> None:
    async with runtime() as rt:
        net = await rt.compile(calculator())
        first = await net(ROW, ONES)
        second = await net({"b": [[1, 1, 1, 1]], "a": ROW})
        assert isinstance(first, tuple)
        for total, product in (first, second):
            assert total.tolist() == [[2, 3, 4, 5]]
            assert product.tolist() == ROW.tolist()


@both
async def test_a_caller_may_reuse_its_arrays_at_once(options: nn.Options) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        calls = []
        for value in range(1, 9):
            mine = np.full(SHAPE, value, np.float32)
            calls.append(await attempt(group, partial(net, mine)))
            mine[...] = -1
        for value, call in enumerate(calls, 1):
            assert await call.failure() is None
            assert call.result.tolist() == [[2 * value] * 4]


async def test_inputs_are_copied_before_the_first_suspension() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        mine = ROW.copy()
        call = await attempt(group, lambda: net(mine[:, ::-1]))
        await engine.when(lambda c: c.waiting == 1)
        mine[...] = 0
        engine.gate.open()
        await call.done.wait()
        assert call.result.tolist() == [[8, 6, 4, 2]]


async def test_results_are_fresh() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        first = await net(ROW)
        second = await net(ONES)
        assert not np.shares_memory(first, second)
        second[...] = 0
        assert first.tolist() == [[2, 4, 6, 8]]
        assert first.flags.owndata


async def test_out_is_written_and_returned() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        whole = np.zeros((1, 8), np.float32)
        mine = whole[:, ::2]
        assert await net(ROW, out=mine) is mine
        assert whole.tolist() == [[2, 0, 4, 0, 6, 0, 8, 0]]
        two = await rt.compile(calculator())
        outs = (np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32))
        result = await two(ROW, ROW, out=outs)
        assert result[0] is outs[0]
        assert outs[1].tolist() == [[1, 4, 9, 16]]


async def test_out_is_left_alone_when_the_call_fails() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        mine = np.full(SHAPE, 7, np.float32)
        engine.fail("run", RuntimeError("boom"))
        with pytest.raises(GeneralFailure):
            await net(ROW, out=mine)
        with pytest.raises(InvalidArgument):
            await net(np.zeros(3, np.float32), out=mine)
        assert mine.tolist() == [[7] * 4]


async def test_out_may_be_the_input() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        mine = ROW.copy()
        await net(mine, out=mine)
        assert mine.tolist() == [[2, 4, 6, 8]]


@both
async def test_measuring_gives_timings(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await compiled(rt, doubler(), options)
        result, timing = await net.measured(ROW)
        assert result.tolist() == [[2, 4, 6, 8]]
        assert isinstance(timing, nn.Timing)
        assert 0 < timing.time_on_device_ns <= timing.time_in_driver_ns < 2**63


async def test_ports_say_what_a_network_takes() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        assert [(port.name, port.shape, port.dtype) for port in net.inputs] == [
            ("x", SHAPE, np.dtype(np.float32))
        ]
        assert [port.name for port in net.outputs] == ["y"]


@both
async def test_every_call_starts_from_zero_state(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(counter())
        for _ in range(20):
            assert (await net(ROW)).tolist() == ROW.tolist()


@both
async def test_ten_tasks_get_what_one_gets_alone(options: nn.Options) -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((64, 64)).astype(np.float32)
    builder = nn.ModelBuilder()
    value = builder.input("x", (1, 64))
    for _ in range(4):
        value = builder.tanh(builder.fully_connected(value, weights))
    builder.output("y", value)
    inputs = [rng.standard_normal((1, 64)).astype(np.float32) for _ in range(10)]
    async with runtime(options=options) as rt:
        net = await rt.compile(builder.build())
        alone = [await net(each) for each in inputs]

        async def repeat(number: int) -> None:
            for _ in range(20):
                found = await net(inputs[number])
                assert np.array_equal(found, alone[number])
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(repeat, number)
    assert len({each.tobytes() for each in alone}) == 10


# -- deadlines


@both
async def test_a_deadline_that_has_passed_is_persistent(options: nn.Options) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await compiled(rt, doubler(), options)
        runs = engine.counters.run
        for past in (nn.within(ms=-1), nn.within(s=-1e9), nn.Deadline(0), nn.within()):
            with pytest.raises(MissedDeadlinePersistent):
                await net(ROW, deadline=past)
        assert engine.counters.run == runs
        assert (await net(ROW, deadline=nn.within(**HOUR))).tolist() == [[2, 4, 6, 8]]


async def test_a_deadline_that_passes_in_the_queue_is_persistent(watchdog: ManualWatchdog) -> None:
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0)
    async with runtime(engine, options=options) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        first = await attempt(group, lambda: net(ROW))
        await engine.when(lambda c: c.waiting == 1)
        deadline = nn.within(**HOUR)
        second = await attempt(group, lambda: net(ROW, deadline=deadline))
        watchdog.ring(deadline)
        assert type(await second.failure()) is MissedDeadlinePersistent
        assert not first.done.is_set()
        engine.gate.open_wide()
        await first.done.wait()
        assert engine.counters.run == 1


async def test_a_deadline_that_passes_during_the_run_is_transient(watchdog: ManualWatchdog) -> None:
    engine = gated(steps=2)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        deadline = nn.within(**HOUR)
        call = await attempt(group, lambda: net(ROW, deadline=deadline))
        await engine.when(lambda c: c.waiting == 1)
        watchdog.ring(deadline)
        error = await call.failure()
        assert type(error) is MissedDeadlineTransient
        assert error.transient
        engine.gate.open()
        await engine.when(lambda c: c.rewind == 1)
        assert engine.counters.step == 1


async def test_the_answer_comes_at_the_deadline_although_the_device_hangs() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        engine.hang()
        deadline = nn.within(ms=100)
        with pytest.raises(MissedDeadline):
            await net(ROW, deadline=deadline)
        assert deadline.passed
        assert engine.counters.finished == 0


@pytest.mark.usefixtures("collected")
async def test_a_late_result_is_discarded_and_its_memory_quarantined(
    watchdog: ManualWatchdog,
) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        await net(ROW)
        pools = rt.statistics().memory.pools
        engine.hang(at=1)
        deadline = nn.within(**HOUR)
        call = await attempt(group, lambda: net(floats(9, 9, 9, 9), deadline=deadline))
        await engine.when(lambda c: c.hanging == 1)
        watchdog.ring(deadline)
        assert type(await call.failure()) is MissedDeadlineTransient
        assert rt.statistics().workers.quarantined == 1
        results = [await net(ROW) for _ in range(3)]
        assert rt.statistics().memory.pools == pools + 1
        engine.release()
        await free(rt)
        assert rt.statistics().workers.quarantined == 0
        results.append(await net(ROW))
        assert [result.tolist() for result in results] == [[[2, 4, 6, 8]]] * 4


@pytest.mark.usefixtures("collected")
async def test_quarantined_memory_is_used_again_when_the_device_lets_go(
    watchdog: ManualWatchdog,
) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        pools = rt.statistics().memory.pools
        net = await rt.compile(doubler())
        engine.hang()
        async with anyio.create_task_group() as group:
            call = await attempt(group, lambda: net(ROW))
            await engine.when(lambda c: c.hanging == 1)
            call.scope.cancel()
        assert rt.statistics().memory.pools == pools + 1
        engine.heal()
        engine.release()
        await free(rt)
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert rt.statistics().memory.pools == pools + 1
        await net.aclose()
        await until(lambda: rt.statistics().memory.pools == pools)


@pytest.mark.parametrize("late", [False, True], ids=["in time", "late"])
async def test_an_inline_run_is_judged_at_its_end(
    monkeypatch: pytest.MonkeyPatch, late: bool, watchdog: ManualWatchdog
) -> None:
    clock = Jump()
    engine = NullEngine(compute=double)
    async with runtime(engine, options=INLINE) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        monkeypatch.setattr("nnasync._core.workers.inline.now_ns", clock)
        deadline = nn.within(**HOUR)
        threads = []

        def compute(inputs: Any) -> Any:
            threads.append(threading.get_ident())
            if late:
                clock.ahead_ns += 2 * 3600 * 10**9
            return double(inputs)

        engine.compute = compute
        if late:
            with pytest.raises(MissedDeadlineTransient):
                await net(ROW, deadline=deadline)
        else:
            assert (await net(ROW, deadline=deadline)).tolist() == [[2, 4, 6, 8]]
        assert threads == [threading.get_ident()]


async def test_a_refusal_for_a_full_queue_is_transient() -> None:
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0, queue_limit=2)
    async with runtime(engine, options=options) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        calls = [await attempt(group, lambda: net(ROW))]
        await engine.when(lambda c: c.waiting == 1)
        calls += [await attempt(group, lambda: net(ROW)) for _ in range(2)]
        with pytest.raises(ResourceExhaustedTransient) as caught:
            await net(ROW)
        assert caught.value.transient
        engine.gate.open_wide()
        for call in calls:
            assert await call.failure() is None


# -- cancelling


async def test_cancelling_ends_the_await_at_once_and_frees_the_device_at_the_next_step() -> None:
    engine = gated(steps=3)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        async with anyio.create_task_group() as group:
            call = await attempt(group, lambda: net(ROW))
            await engine.when(lambda c: c.waiting == 1)
            call.scope.cancel()
        assert call.scope.cancelled_caught
        assert engine.counters.waiting == 1
        engine.gate.open()
        await engine.when(lambda c: c.rewind == 1)
        assert engine.counters.step == 1
        engine.gate.open_wide()
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_cancelling_a_call_in_the_queue_withdraws_it() -> None:
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0)
    async with runtime(engine, options=options) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        first = await attempt(group, lambda: net(ROW))
        await engine.when(lambda c: c.waiting == 1)
        second = await attempt(group, lambda: net(ROW))
        second.scope.cancel()
        third = await attempt(group, lambda: net(ONES))
        engine.gate.open_wide()
        await third.done.wait()
        assert third.result.tolist() == [[2] * 4]
        assert first.result.tolist() == [[2, 4, 6, 8]]
        assert second.scope.cancelled_caught
        assert engine.counters.run == 2


@both
async def test_a_call_in_a_cancelled_scope_does_not_run(options: nn.Options) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await compiled(rt, doubler(), options)
        runs = engine.counters.run
        with anyio.CancelScope() as scope:
            scope.cancel()
            await net(ROW)
        assert scope.cancelled_caught
        assert engine.counters.run == runs


async def test_calls_that_end_early_use_the_same_memory_again() -> None:
    """Where there is too much work, each call that is late must not make the next one dearer."""
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0)
    async with runtime(engine, options=options) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        first = await attempt(group, lambda: net(ROW))
        await engine.when(lambda c: c.waiting == 1)
        bound: list[int] = []
        for _ in range(24):
            call = await attempt(group, lambda: net(ONES))
            call.scope.cancel()
            await call.done.wait()
            bound.append(engine.counters.bind)
        assert bound[-1] == bound[4]  # Memory is made ahead beside the first of them.
        engine.gate.open_wide()
        await first.done.wait()
        assert (await net(ONES)).tolist() == [[2] * 4]


async def test_memory_is_not_used_again_while_the_device_runs_on() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        hanging = await attempt(group, lambda: net(ROW))
        await engine.when(lambda c: c.waiting == 1)
        hanging.scope.cancel()
        await hanging.done.wait()
        bound = engine.counters.bind
        other = await attempt(group, lambda: net(ONES))
        assert engine.counters.bind == bound + 1
        engine.gate.open_wide()
        await other.done.wait()
        assert other.result.tolist() == [[2] * 4]


async def test_a_timeout_of_the_caller_works() -> None:
    engine = NullEngine(compute=double)
    engine.hang()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        with pytest.raises(TimeoutError), anyio.fail_after(0.02):
            await net(ROW)
        assert rt.statistics().workers.quarantined <= 1


async def test_cancelled_calls_do_not_disturb_those_beside_them() -> None:
    engine = gated(steps=2)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        inputs = [floats(n, n, n, n) for n in range(10)]
        calls = [await attempt(group, partial(net, x)) for x in inputs]
        for call in calls[::2]:
            call.scope.cancel()
        engine.gate.open_wide()
        for number in range(1, 10, 2):
            await calls[number].done.wait()
            assert calls[number].result.tolist() == [[2 * number] * 4]


# -- the loop


async def test_cheap_calls_run_on_the_thread_of_the_loop() -> None:
    threads = set()

    def compute(inputs: Any) -> Any:
        threads.add(threading.get_ident())
        return double(inputs)

    engine = NullEngine(compute=compute)
    async with runtime(engine, options=INLINE) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        threads.clear()
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
    assert threads == {threading.get_ident()}


async def test_budget_zero_never_runs_on_the_thread_of_the_loop() -> None:
    threads = set()

    def compute(inputs: Any) -> Any:
        threads.add(threading.get_ident())
        return double(inputs)

    async with runtime(NullEngine(compute=compute)) as rt:
        net = await rt.compile(doubler())
        for _ in range(50):
            await net(ROW)
        assert rt.statistics().workers.inline_runs == 0
    assert threading.get_ident() not in threads


async def test_others_get_their_turns_beside_a_tight_loop() -> None:
    async with runtime(options=nn.Options(cores=2, stall_budget_us=200)) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        turns = 0
        done = False

        async def other() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            for _ in range(100_000):
                await net(ROW)
                if turns >= 5:
                    break
            done = True
        assert turns >= 5


# -- use after close


async def test_a_closed_network_refuses_everything() -> None:
    async with runtime() as rt:
        net, other = await rt.compile(doubler()), await rt.compile(doubler())
        assert rt.statistics().nets == 2
        await net.close()
        net.close()
        assert rt.statistics().nets == 1
        with pytest.raises(BadState, match="closed"):
            await net(ROW)
        with pytest.raises(BadState, match="closed"):
            await net.launch(ROW)
        with pytest.raises(BadState, match="closed"):
            net.burst()
        assert (await other(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.usefixtures("collected")
async def test_a_closed_network_gives_its_memory_back() -> None:
    async with runtime() as rt:
        before = rt.statistics().memory.pools
        net = await rt.compile(doubler())
        await net(ROW)
        assert rt.statistics().memory.pools > before
        await net.close()
        await until(lambda: rt.statistics().memory.pools == before)


async def test_a_network_closes_while_a_call_is_in_flight() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        call = await attempt(group, lambda: net(ROW))
        await engine.when(lambda c: c.waiting == 1)
        closing = net.close()
        engine.gate.open_wide()
        await closing
        await call.done.wait()
        assert call.error is not None or call.result.tolist() == [[2, 4, 6, 8]]
