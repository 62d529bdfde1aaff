"""A burst is a stream: order, depth, the state it carries, deadlines, cancelling, fast state."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync.burst import BurstController, LocalChannel
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlinePersistent,
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
    count,
    counter,
    double,
    doubler,
    floats,
    gated,
    runtime,
    total,
    until,
    until_inline,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


# -- inputs and results are those of a call


@both
async def test_a_burst_computes(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(calculator())
        async with net.burst() as burst:
            for n in range(1, 30):
                sum, product = await burst(ROW, [[n] * 4])
                assert sum.tolist() == (ROW + n).tolist()
                assert product.tolist() == (ROW * n).tolist()
            sum, _ = await burst({"b": ROW, "a": ROW})
            assert sum.tolist() == [[2, 4, 6, 8]]


@both
async def test_results_are_fresh_or_in_the_caller_s_array(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            first = await burst(ROW)
            second = await burst(ONES)
            assert not np.shares_memory(first, second)
            second[...] = 0
            assert first.tolist() == [[2, 4, 6, 8]]
            mine = np.zeros(SHAPE, np.float32)
            assert await burst(ROW, out=mine) is mine
            assert mine.tolist() == [[2, 4, 6, 8]]


async def test_the_caller_may_reuse_its_array_at_once() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            mine = ROW.copy()
            calls = []
            for _ in range(4):
                calls.append(await attempt(group, partial(burst, mine)))
                mine += 1
            engine.gate.open_wide()
            for number, call in enumerate(calls):
                assert await call.failure() is None
                assert call.result.tolist() == (2 * (ROW + number)).tolist()


@both
async def test_measuring_gives_timings(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await compiled(rt, doubler(), options)
        async with net.burst() as burst:
            result, timing = await burst.measured(ROW)
            assert result.tolist() == [[2, 4, 6, 8]]
            assert isinstance(timing, nn.Timing)
            assert 0 < timing.time_on_device_ns <= timing.time_in_driver_ns < 2**63


@pytest.mark.parametrize(
    "arguments",
    [(), (ROW, ROW), (np.zeros((2, 2), np.float32),), (np.zeros(SHAPE),), ({"total": ROW},)],
)
async def test_a_wrong_call_is_refused_and_changes_nothing(arguments: Any) -> None:
    wrong: Any = 0.01
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ROW)
            with pytest.raises(InvalidArgument):
                await burst(*arguments)
            with pytest.raises(InvalidArgument):
                await burst(ROW, deadline=wrong)
            with pytest.raises(InvalidArgument):
                await burst(ROW, out=np.zeros(3, np.float32))
            assert await total(burst) == [1, 2, 3, 4]
            assert burst.statistics().in_flight == 0
            assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]


# -- order and depth


async def test_calls_run_in_order_one_at_a_time() -> None:
    seen: list[float] = []
    running = 0

    def compute(inputs: Any) -> Any:
        nonlocal running
        running += 1
        assert running == 1
        seen.append(float(inputs[0][0, 0]))
        running -= 1
        return double(inputs)

    engine = gated(compute)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            calls = [await attempt(group, partial(burst, floats(n, n, n, n))) for n in range(8)]
            assert burst.statistics().in_flight == 8
            engine.gate.open_wide()
            for number, call in enumerate(calls):
                await call.done.wait()
                assert call.result.tolist() == [[2 * number] * 4]
    assert seen == list(range(8))


async def test_a_turn_of_the_loop_does_not_change_the_order() -> None:
    seen: list[float] = []

    def compute(inputs: Any) -> Any:
        seen.append(float(inputs[0][0, 0]))
        return double(inputs)

    options = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=0.001)
    async with runtime(NullEngine(compute=compute), options=options) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        async with net.burst(depth=64) as burst:
            await burst(ROW)
            seen.clear()
            asked: list[float] = []

            async def call(number: int) -> None:
                asked.append(number)
                await burst(floats(number, 0, 0, 0))

            async with anyio.create_task_group() as group:
                for number in range(32):
                    group.start_soon(call, number)
    assert len(seen) == 32
    assert seen == asked


@pytest.mark.parametrize("depth", [1, 2, 8])
async def test_beyond_its_depth_a_burst_refuses(depth: int) -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst(depth=depth, on_full="refuse") as burst:
            calls = [await attempt(group, lambda: burst(ROW)) for _ in range(depth)]
            with pytest.raises(ResourceExhaustedTransient, match=str(depth)) as caught:
                await burst(ROW)
            assert caught.value.transient
            engine.gate.open()
            await calls[0].done.wait()
            calls.append(await attempt(group, lambda: burst(ONES)))
            engine.gate.open_wide()
            for call in calls:
                assert await call.failure() is None
            assert calls[-1].result.tolist() == [[2] * 4]


async def test_depth_holds_although_calls_yield_first() -> None:
    engine = NullEngine(compute=double)
    options = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=0.001)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        async with net.burst(depth=2, on_full="refuse") as burst:
            await burst(ROW)
            most = 0
            outcomes: list[bool] = []

            async def call() -> None:
                nonlocal most
                try:
                    await burst(ROW)
                    outcomes.append(True)
                except ResourceExhaustedTransient:
                    outcomes.append(False)
                most = max(most, burst.statistics().in_flight)

            async with anyio.create_task_group() as group:
                for _ in range(6):
                    group.start_soon(call)
            assert len(outcomes) == 6
            assert outcomes.count(True) >= 2
            assert most <= 2


@pytest.mark.parametrize("depth", [0, -1])
async def test_a_depth_below_one_is_refused(depth: int) -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        with pytest.raises(InvalidArgument, match="depth"):
            net.burst(depth=depth)


# -- deadlines


@both
async def test_a_deadline_that_has_passed_is_persistent(options: nn.Options) -> None:
    engine = NullEngine(compute=count)
    async with runtime(engine, options=options) as rt:
        net = await compiled(rt, counter(), options)
        runs = engine.counters.run
        async with net.burst() as burst:
            for _ in range(3):
                with pytest.raises(MissedDeadlinePersistent):
                    await burst(ROW, deadline=nn.within(ms=-1))
            assert engine.counters.run == runs
            assert await total(burst) == [0, 0, 0, 0]
            deadline = nn.within(**HOUR)
            assert (await burst(ROW, deadline=deadline)).tolist() == ROW.tolist()


async def test_a_deadline_that_passes_behind_earlier_calls_is_persistent(
    watchdog: ManualWatchdog,
) -> None:
    engine = gated(count)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            deadline = nn.within(**HOUR)
            first = await attempt(group, lambda: burst(ROW))
            await engine.when(lambda c: c.waiting == 1)
            second = await attempt(group, lambda: burst(ONES, deadline=deadline))
            third = await attempt(group, lambda: burst(ROW))
            watchdog.ring(deadline)
            assert type(await second.failure()) is MissedDeadlinePersistent
            assert not first.done.is_set()
            engine.gate.open_wide()
            await third.done.wait()
            assert third.result.tolist() == (2 * ROW).tolist()
            assert engine.counters.run == 2


async def test_the_answer_comes_at_the_deadline_although_the_device_hangs() -> None:
    engine = NullEngine(compute=count)
    engine.hang()
    async with runtime(engine) as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            for _ in range(2):
                deadline = nn.within(ms=50)
                with pytest.raises(MissedDeadline):
                    await burst(ROW, deadline=deadline)
                assert deadline.passed
            statistics = burst.statistics()
            assert (statistics.failed, statistics.in_flight) == (2, 0)


def balanced(burst: nn.Burst) -> bool:
    """Whether each call was counted once."""
    counts = burst.statistics()
    return counts.submitted == counts.succeeded + counts.failed + counts.in_flight


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RuntimeError, ResourceExhaustedTransient), (BadState, DeviceUnavailable)],
)
async def test_a_queued_call_whose_deadline_nobody_watches_never_runs(
    watchdog: ManualWatchdog,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    kind: type[Exception],
) -> None:
    def refuse(at_ns: int, callback: object) -> Any:
        raise error("no alarm")

    engine = gated(count)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            first = await attempt(group, lambda: burst(ROW))
            await engine.when(lambda c: c.waiting == 1)
            with monkeypatch.context() as patch:
                patch.setattr(watchdog, "arm", refuse)
                second = await attempt(group, lambda: burst(ONES, deadline=nn.within(**HOUR)))
                assert type(await second.failure()) is kind
            assert balanced(burst)
            third = await attempt(group, lambda: burst(ROW, deadline=nn.within(**HOUR)))
            engine.gate.open_wide()
            await first.done.wait()
            await third.done.wait()
            assert third.result.tolist() == (2 * ROW).tolist()
            assert await total(burst) == (2 * ROW)[0].tolist()
            assert engine.counters.run == 2
            assert balanced(burst)


# -- the life of a burst


async def test_the_device_is_hot_while_a_burst_is_open() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        assert rt.statistics().workers.hot == 0
        burst = net.burst()
        assert not burst.statistics().hot
        async with burst:
            assert burst.statistics().hot
            assert rt.statistics().workers.hot == 1
            assert rt.statistics().workers.threads >= 1
            async with net.burst():
                assert rt.statistics().workers.hot == 2
        assert rt.statistics().workers.hot == 0
        assert not burst.statistics().hot


async def test_scratch_is_kept_while_a_burst_is_open() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        device = rt.device("null")
        assert isinstance(device, EngineDevice)
        async with net.burst() as burst:
            await burst(ROW)
            for _ in range(3):
                device.trim()
            assert engine.counters.trim == 0
        for _ in range(3):
            device.trim()
        assert engine.counters.trim > 0


async def test_statistics_count_every_call_once() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            await burst(ROW)
            await burst(ROW)
            with pytest.raises(MissedDeadlinePersistent):
                await burst(ROW, deadline=nn.within(ms=-1))
            found = burst.statistics()
            assert (found.submitted, found.succeeded, found.failed) == (3, 2, 1)


async def test_a_burst_is_used_inside_its_block_only() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        burst = net.burst()
        with pytest.raises(BadState, match="not open"):
            await burst(ROW)
        async with burst:
            with pytest.raises(BadState, match="once"):
                await burst.__aenter__()
            assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]
        with pytest.raises(BadState, match="not open"):
            await burst(ROW)
        with pytest.raises(BadState):
            await burst.__aenter__()
        burst.close()


async def test_closing_a_burst_ends_calls_in_flight() -> None:
    engine = gated(steps=2)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            calls = [await attempt(group, lambda: burst(ROW)) for _ in range(3)]
            await engine.when(lambda c: c.waiting == 1)
        for call in calls:
            assert type(await call.failure()) is DeviceUnavailable
        engine.gate.open()
        await engine.when(lambda c: c.rewind == 1)
        assert engine.counters.run == 1
        assert burst.statistics().failed == 3
        engine.gate.open_wide()
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_a_call_that_is_sent_while_the_burst_closes_ends_as_those_in_flight() -> None:
    """The thread that answers one sends the next; its line may be closed by then."""
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as tasks:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            first = await attempt(tasks, lambda: burst(ROW))
            second = await attempt(tasks, lambda: burst(ROW))

            def closed(*_: object) -> None:
                burst._open = False
                raise BadState("the channel is closed, or nobody listens yet")

            burst._line.send = closed  # type: ignore[union-attr, method-assign]  # Late.
            engine.gate.open_wide()
            await first.done.wait()
            assert isinstance(await second.failure(), DeviceUnavailable)
            burst._open = True


async def test_a_burst_gives_its_memory_back() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        await net(ROW)
        before = rt.statistics().memory.pools
        burst = net.burst()
        async with burst:
            await burst(ROW)
            assert rt.statistics().memory.pools > before
        del burst
        await until(lambda: rt.statistics().memory.pools <= before)


async def test_memory_of_missed_calls_does_not_pile_up() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            await burst(ROW)
            before = rt.statistics().memory.pools
            for _ in range(30):
                with pytest.raises(MissedDeadlinePersistent):
                    await burst(ROW, deadline=nn.within(ms=-1))
            assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]
            # What a traceback of a missed call holds goes with the next garbage collection.
            await until(lambda: gc.collect() >= 0 and rt.statistics().memory.pools <= before)


async def test_bursts_keep_state_under_cancelled_missed_and_failed_calls() -> None:
    """Many calls, some of which are given up at any moment: the state is the sum of the others."""
    rng = np.random.default_rng(3)
    bad = 0

    def compute(inputs: Any) -> Any:
        if inputs[0][0, 0] < 0:
            raise RuntimeError("negative")
        return count(inputs)

    async with runtime(NullEngine(compute=compute, steps=3)) as rt:
        net = await rt.compile(counter())
        async with net.burst(depth=4) as burst:
            good = 0
            for _ in range(20):
                async with anyio.create_task_group() as group:
                    kinds = [*rng.integers(0, 3, 3), rng.integers(0, 4)]
                    calls = []
                    for kind in kinds:
                        row = -ONES if kind == 1 else ONES
                        late = nn.within(us=50) if kind == 2 else None
                        calls.append(await attempt(group, partial(burst, row, deadline=late)))
                        if kind == 3:
                            calls[-1].scope.cancel()
                for call in calls:
                    await call.done.wait()
                good += sum(call.result is not None for call in calls)
                bad += sum(call.error is not None for call in calls)
                assert await total(burst) == [good] * 4
            found = burst.statistics()
            assert found.submitted == found.succeeded + found.failed == 80
            assert found.succeeded == good
    assert bad


async def test_a_tight_loop_of_burst_calls_lets_others_have_their_turns() -> None:
    async with runtime(options=nn.Options(cores=2, stall_budget_us=200)) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        turns, done = 0, False

        async def other() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with net.burst() as burst, anyio.create_task_group() as group:
            group.start_soon(other)
            for _ in range(100_000):
                await burst(ROW)
                if turns >= 5:
                    break
            done = True
        assert turns >= 5


async def test_ten_bursts_at_once_do_not_mix() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())

        async def stream(number: int) -> None:
            async with net.burst() as burst:
                for n in range(1, 15):
                    found = await burst(floats(number, 0, 0, 1))
                    assert found.tolist() == [[number * n, 0, 0, n]]

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(stream, number)


async def test_cheap_burst_calls_run_on_the_thread_of_the_loop() -> None:
    threads = set()

    def compute(inputs: Any) -> Any:
        threads.add(threading.get_ident())
        return double(inputs)

    async with runtime(NullEngine(compute=compute), options=INLINE) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        async with net.burst() as burst:
            threads.clear()
            assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]
    assert threads == {threading.get_ident()}


async def test_a_context_that_is_dropped_with_its_model_leaves_the_fast_state() -> None:
    async with runtime() as rt:
        device: Any = rt.devices[0]
        for _ in range(3):
            prepared = await device.prepare_model(doubler())
            channels = LocalChannel(), LocalChannel()
            controller = BurstController(*channels)
            controller.attach(await prepared.configure_execution_burst(controller, *channels))
            assert rt.statistics().workers.hot == 1
            del prepared, channels, controller

            def is_left() -> bool:
                gc.collect()  # Does nothing while the collector runs on another thread.
                rt._trim()
                return rt.statistics().workers.hot == 0

            await until(is_left)
