"""Launches: regions without copies, chains, deadlines, cancelling, what is raised where."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import (
    BadState,
    Cancelled,
    GeneralFailure,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
)
from nnasync.fences import Fence
from nnasync.hal import NOT_AVAILABLE
from nnasync.memory import Pool, Region
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
    failure,
    free,
    gated,
    runtime,
    until_inline,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


# -- outputs


@both
async def test_a_launch_gives_regions_and_a_fence(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(calculator())
        execution = await net.launch(ROW, ONES)
        await execution.fence
        total, product = execution.outputs
        assert isinstance(total, Region)
        assert (total.dtype, total.shape) == (np.dtype(np.float32), SHAPE)
        assert total.array.tolist() == [[2, 3, 4, 5]]
        assert np.asarray(product).tolist() == ROW.tolist()
        first, second = await execution.result()
        assert first.tolist() == [[2, 3, 4, 5]]
        assert not np.shares_memory(first, total.array)
        assert second.tolist() == ROW.tolist()


async def test_outputs_are_not_copies() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        await execution.fence
        region = execution.outputs[0]
        assert np.shares_memory(region.array, np.asarray(region))
        assert np.shares_memory(region.array, region.pool.array(np.float32, SHAPE, region.offset))


async def test_a_launch_returns_before_the_work_is_done() -> None:
    engine = gated()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        assert not execution.fence.done
        await engine.when(lambda c: c.waiting == 1)
        engine.gate.open()
        await execution.fence
        assert execution.outputs[0].array.tolist() == [[2, 4, 6, 8]]


async def test_the_caller_may_reuse_its_array_after_a_launch() -> None:
    engine = gated()
    async with runtime(engine) as rt:
        mine = ROW.copy()
        net = await rt.compile(doubler())
        execution = await net.launch({"x": mine})
        mine[...] = 0
        engine.gate.open()
        assert (await execution.result()).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("path", ["launch", "burst"])
async def test_inputs_are_copied_before_a_turn_of_the_loop(path: str) -> None:
    """Also where the inline work of this turn makes the call yield first."""
    engine = NullEngine(compute=double)
    options = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=0.001)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        mine = ROW.copy()
        async with net.burst() as burst, anyio.create_task_group() as group:
            await burst(ROW)

            async def other() -> None:
                mine[...] = 0

            await net(ROW)
            group.start_soon(other)
            if path == "launch":
                result = await (await net.launch(mine)).result()
            else:
                result = await burst(mine)
        assert result.tolist() == [[2, 4, 6, 8]]
        assert mine.tolist() == [[0, 0, 0, 0]]


@both
async def test_launches_start_from_zero_state(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(counter())
        for _ in range(20):
            assert (await (await net.launch(ROW)).result()).tolist() == ROW.tolist()


async def test_a_closed_execution_has_no_outputs_any_more() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        with await net.launch(ROW) as execution:
            await execution.fence
        with pytest.raises(BadState, match="closed"):
            await execution.result()


@pytest.mark.usefixtures("collected")
async def test_memory_is_reused_once_the_execution_is_closed() -> None:
    async with runtime() as rt:
        pools = rt.statistics().memory.pools
        net = await rt.compile(doubler())
        for _ in range(20):
            with await net.launch(ROW) as execution:
                await execution.fence
        assert rt.statistics().memory.pools == pools + 1
        held = [await net.launch(ROW) for _ in range(3)]
        for execution in held:
            await execution.fence
        assert len({id(execution.outputs[0].pool) for execution in held}) == 3


async def test_an_output_kept_alone_keeps_its_memory() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        await execution.fence
        region = execution.outputs[0]
        del execution
        gc.collect()
        for _ in range(3):
            await (await net.launch(ONES)).fence
            await net(ONES)
        assert region.array.tolist() == [[2, 4, 6, 8]]


# -- regions as inputs, chains


@both
async def test_a_chain_computes(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net, other = await rt.compile(doubler()), await rt.compile(doubler("other"))
        for _ in range(20):
            first = await net.launch(ROW)
            second = await other.launch(first.outputs, wait_for=[first.fence])
            third = await net.launch(*second.outputs, wait_for=[second])
            assert (await third.result()).tolist() == [[8, 16, 24, 32]]


async def test_the_intermediates_of_a_chain_may_be_dropped() -> None:
    engine = gated()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        for _ in range(4):
            execution = await net.launch(execution.outputs, wait_for=[execution.fence])
        gc.collect()
        beside = [await net.launch(ONES) for _ in range(6)]
        engine.gate.open_wide()
        assert (await execution.result()).tolist() == [[32, 64, 96, 128]]
        for each in beside:
            assert (await each.result()).tolist() == [[2] * 4]


async def test_the_source_of_a_launch_is_not_written_while_it_is_read() -> None:
    """The first stage is done and dropped, the second has not read its output yet."""
    quick, slow = NullEngine("quick", compute=double), gated(name="slow")
    async with runtime(quick, slow) as rt:
        net = await rt.compile(doubler(), devices=["quick"])
        other = await rt.compile(doubler(), devices=["slow"])
        first = await net.launch(ROW)
        second = await other.launch(first.outputs, wait_for=[first.fence])
        await first.fence
        await slow.when(lambda c: c.waiting == 1)
        del first
        gc.collect()
        for _ in range(5):
            await net(ONES)
            await (await net.launch(ONES)).fence
        slow.gate.open()
        assert (await second.result()).tolist() == [[4, 8, 12, 16]]


async def test_one_output_may_feed_several_launches() -> None:
    async with runtime() as rt:
        net, two = await rt.compile(doubler()), await rt.compile(calculator())
        first = await net.launch(ROW)
        region = first.outputs[0]
        second = await two.launch(region, region, wait_for=[first.fence])
        third = await two.launch({"a": region, "b": ONES}, wait_for=[first.fence, second.fence])
        assert (await second.result())[1].tolist() == [[4, 16, 36, 64]]
        assert (await third.result())[0].tolist() == [[3, 5, 7, 9]]


async def test_regions_are_read_when_the_fences_are_signaled() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        region = Pool.allocate(4096).region(128, 16, dtype=np.float32, shape=SHAPE)
        ready = Fence()
        execution = await net.launch(region, wait_for=[ready])
        region.array[...] = ROW
        ready.signal()
        assert (await execution.result()).tolist() == [[2, 4, 6, 8]]


async def test_a_chain_wakes_the_loop_once() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        chain = [await net.launch(ROW)]
        for _ in range(7):
            chain.append(await net.launch(chain[-1].outputs, wait_for=[chain[-1].fence]))
        waiting = await attempt(group, lambda: chain[-1].result())
        wakeups = rt.statistics().wakeups
        engine.gate.open_wide()
        await waiting.done.wait()
        assert rt.statistics().wakeups == wakeups + 1
        assert waiting.result.tolist() == (ROW * 2**8).tolist()


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_nothing_runs_inline_behind_an_unsignaled_fence(where: str) -> None:
    threads: list[int] = []

    def compute(inputs: Any) -> Any:
        threads.append(threading.get_ident())
        return double(inputs)

    async with runtime(NullEngine(compute=compute), options=INLINE) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        threads.clear()
        ready = Fence()
        execution = await net.launch(ROW, wait_for=[ready])
        signal: Callable[[], Any] = ready.signal
        if where == "thread":
            await anyio.to_thread.run_sync(signal)
        else:
            signal()
        await execution.fence
        assert len(threads) == 1
        assert threads[0] != threading.get_ident()


async def test_a_failed_dependency_fails_its_dependants_with_the_first_error_as_cause() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        boom = RuntimeError("boom")
        ready = Fence()
        first = await net.launch(ROW, wait_for=[ready])
        chain = [first]
        for _ in range(3):
            chain.append(await net.launch(chain[-1].outputs, wait_for=[chain[-1].fence]))
        engine.fail("run", boom)
        ready.signal()
        errors = [await failure(execution.fence) for execution in chain]
        assert all(isinstance(error, GeneralFailure) for error in errors)
        assert errors[0].__cause__ is boom
        for error in errors[1:]:
            assert error.__cause__ is first.fence.error
        assert engine.counters.run == 1
        for execution in chain:
            assert (await execution.info()).status is nn.ErrorStatus.GENERAL_FAILURE


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fence_that_fails_fails_the_launch(when: str) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        bad, good = Fence(), Fence()
        original = MissedDeadlineTransient("elsewhere")
        if when == "before":
            bad.fail(original)
        execution = await net.launch(ROW, wait_for=[good, bad])
        if when == "after":
            assert not execution.fence.done
            bad.fail(original)
        error = await failure(execution.fence)
        assert isinstance(error, GeneralFailure)
        assert error.__cause__ is original
        assert "elsewhere" in str(error)
        good.signal()
        assert engine.counters.run == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


# -- info


@both
async def test_information_comes_after_the_fence(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await compiled(rt, doubler(), options)
        ready = Fence()
        for fences in ([ready], []):
            execution = await net.launch(ROW, wait_for=fences, measure=True)
            if fences:
                with pytest.raises(BadState):
                    await execution.info()
                ready.signal()
            await execution.fence
            info = await execution.info()
            assert info.status is nn.ErrorStatus.NONE
            launched, fenced = info.timing_launched, info.timing_fenced
            assert launched.time_on_device_ns == fenced.time_on_device_ns
            assert 0 < fenced.time_on_device_ns <= fenced.time_in_driver_ns
            assert fenced.time_in_driver_ns <= launched.time_in_driver_ns < NOT_AVAILABLE


async def test_timings_are_there_only_if_asked_for() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        await execution.fence
        info = await execution.info()
        assert info.status is nn.ErrorStatus.NONE
        assert info.timing_launched == info.timing_fenced == nn.Timing()


# -- deadlines


async def test_a_deadline_that_has_passed_is_refused() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        with pytest.raises(MissedDeadlinePersistent):
            await net.launch(ROW, deadline=nn.within(ms=-1))
        with pytest.raises(MissedDeadlinePersistent):
            await net.launch(ROW, duration_s=0)
        assert engine.counters.run == 0


async def test_a_fence_that_never_comes_ends_at_the_deadline(watchdog: ManualWatchdog) -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        deadline = nn.within(**HOUR)
        execution = await net.launch(ROW, wait_for=[Fence()], deadline=deadline)
        await anyio.wait_all_tasks_blocked()
        assert not execution.fence.done
        watchdog.ring(deadline)
        error = await failure(execution.fence)
        assert type(error) is MissedDeadlinePersistent
        info = await execution.info()
        assert info.status is nn.ErrorStatus.MISSED_DEADLINE_PERSISTENT
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_a_deadline_during_the_run_is_transient(watchdog: ManualWatchdog) -> None:
    engine = NullEngine(compute=double)
    engine.hang()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        deadline = nn.within(**HOUR)
        execution = await net.launch(ROW, deadline=deadline)
        await engine.when(lambda c: c.hanging == 1)
        watchdog.ring(deadline)
        assert type(await failure(execution.fence)) is MissedDeadlineTransient
        info = await execution.info()
        assert info.status is nn.ErrorStatus.MISSED_DEADLINE_TRANSIENT
        assert rt.statistics().workers.quarantined == 1


async def test_a_duration_counts_from_the_last_fence(watchdog: ManualWatchdog) -> None:
    engine = gated()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        ready = Fence()
        execution = await net.launch(ROW, wait_for=[ready], duration_s=3600)
        armed = [alarm.at_ns for alarm in watchdog.alarms]
        before_ns = nn._core.clock.now_ns()
        ready.signal()
        await engine.when(lambda c: c.waiting == 1)
        limit = max(alarm.at_ns for alarm in watchdog.alarms)
        assert limit not in armed
        assert limit >= before_ns + 3600 * 10**9
        watchdog.ring(nn.Deadline(limit))
        assert type(await failure(execution.fence)) is MissedDeadlineTransient


# -- cancelling


async def test_cancelling_the_wait_does_not_cancel_the_work() -> None:
    engine = gated()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)

        async def wait() -> None:
            await execution.fence

        async with anyio.create_task_group() as group:
            waiting = await attempt(group, wait)
            waiting.scope.cancel()
        assert waiting.scope.cancelled_caught
        assert not execution.fence.done
        engine.gate.open()
        assert (await execution.result()).tolist() == [[2, 4, 6, 8]]


async def test_cancelling_the_execution_cancels_the_work() -> None:
    engine = gated(steps=3)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        await engine.when(lambda c: c.waiting == 1)
        execution.cancel()
        assert type(await failure(execution.fence)) is Cancelled
        assert (await execution.info()).status is nn.ErrorStatus.GENERAL_FAILURE
        engine.gate.open()
        await engine.when(lambda c: c.rewind == 1)
        assert engine.counters.step == 1


async def test_cancelling_while_it_waits_for_a_fence() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        ready = Fence()
        first = await net.launch(ROW, wait_for=[ready])
        second = await net.launch(first.outputs, wait_for=[first.fence])
        first.cancel()
        assert type(await failure(first.fence)) is Cancelled
        error = await failure(second.fence)
        assert isinstance(error, GeneralFailure)
        assert type(error.__cause__) is Cancelled
        ready.signal()
        await free(rt)
        assert engine.counters.run == 0


async def test_cancelling_what_is_done_changes_nothing() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        await execution.fence
        execution.cancel()
        assert execution.fence.error is None
        assert (await execution.result()).tolist() == [[2, 4, 6, 8]]
        execution.close()
        execution.close()


async def test_closing_an_execution_in_flight_cancels_it() -> None:
    engine = gated(steps=2)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        await engine.when(lambda c: c.waiting == 1)
        execution.close()
        assert type(await failure(execution.fence)) is Cancelled
        engine.gate.open()
        await engine.when(lambda c: c.rewind == 1)


async def test_dropping_an_execution_in_flight_does_not_cancel_it() -> None:
    engine = gated()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        execution = await net.launch(ROW)
        fence = execution.fence
        del execution
        gc.collect()
        engine.gate.open()
        await fence
