"""Fenced executions: chains on the workers, failing dependencies, durations, execution info."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import anyio
import pytest

from nnasync._core.clock import now_ns, within
from nnasync._core.engine_device.launched import Launched
from nnasync._core.wakeup import Wakeup
from nnasync.errors import (
    BadState,
    Cancelled,
    GeneralFailure,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
)
from nnasync.fences import Fence, signaled
from nnasync.hal import (
    NOT_AVAILABLE,
    DataLocation,
    ErrorStatus,
    ExecutionConfig,
    Request,
    RequestArgument,
    Timing,
)
from tests.engine_device.rig import (
    MS,
    Rig,
    Row,
    busy_until,
    finished,
    free,
    look_cheap,
    null,
    reached,
    until_inline,
)
from tests.rigs import Deadlines, ManualWatchdog

pytestmark = pytest.mark.anyio

Rigs = Callable[..., Rig]


async def test_info_before_and_after(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    launched = await prepared.execute_fenced(row.request, config=ExecutionConfig(measure=True))
    await reached(engine, lambda now: now.waiting == 1)
    with pytest.raises(BadState):
        await launched.get_execution_info()
    assert engine.gate is not None
    engine.gate.open()
    assert await finished(launched.fence) is None
    info = await launched.get_execution_info()
    assert info.status is ErrorStatus.NONE
    for timing in (info.timing_launched, info.timing_fenced):
        assert 0 < timing.time_on_device_ns <= timing.time_in_driver_ns != NOT_AVAILABLE
    assert info.timing_fenced.time_in_driver_ns <= info.timing_launched.time_in_driver_ns
    assert row.is_right


async def test_fenced_timing_begins_at_the_last_fence(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row, fence = await rig.prepare(), Row(), Fence()
    launched = await prepared.execute_fenced(row.request, [fence], ExecutionConfig(measure=True))
    busy_until(now_ns() + 20 * MS)
    fence.signal()
    assert await finished(launched.fence) is None
    info = await launched.get_execution_info()
    launched_ns, fenced_ns = (
        timing.time_in_driver_ns for timing in (info.timing_launched, info.timing_fenced)
    )
    assert launched_ns >= fenced_ns + 20 * MS


@pytest.mark.parametrize("inline", [False, True])
async def test_no_timing_unless_measured(rigs: Rigs, inline: bool) -> None:
    rig = rigs(null(), inline_budget_ns=10**9 if inline else 0)
    prepared, row = await rig.prepare(), Row()
    if inline:
        await until_inline(rig, prepared, row.request)
    for measure in (False, True):
        launched = await prepared.execute_fenced(
            row.request, config=ExecutionConfig(measure=measure)
        )
        assert await finished(launched.fence) is None
        info = await launched.get_execution_info()
        assert info.status is ErrorStatus.NONE
        assert (info.timing_launched != Timing()) == measure
        assert (info.timing_fenced != Timing()) == measure


async def test_cheap_launch_is_over_on_return(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    look_cheap(prepared)
    row.x[...] = 3
    launched = await prepared.execute_fenced(row.request, [signaled(), signaled()])
    assert launched.fence.done
    assert row.is_right
    launched.cancel()
    assert (await launched.get_execution_info()).status is ErrorStatus.NONE


async def test_failing_launch_tells_by_its_fence(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    look_cheap(prepared)
    engine.fail("run", KeyError("layer"))
    for _ in range(2):  # inline, then on a worker
        launched = await prepared.execute_fenced(row.request, config=ExecutionConfig(measure=True))
        error = await finished(launched.fence)
        assert isinstance(error, GeneralFailure)
        info = await launched.get_execution_info()
        assert info.status is ErrorStatus.GENERAL_FAILURE
        assert info.timing_launched == info.timing_fenced == Timing()
        rig.workers.inline._inline_budget_ns = 0


async def test_chain_runs_in_order_and_wakes_the_loop_once(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row() for _ in range(8)]
    for row, following in itertools.pairwise(rows):
        following.x[...] = 0
        following.request = Request(
            (RequestArgument(location=DataLocation(0, 64, 16)),),
            (RequestArgument(location=DataLocation(1, 64, 16)),),
            (row.pool, following.pool),
        )
    fences: list[Fence] = []
    for row in rows:
        launched = await prepared.execute_fenced(row.request, fences[-1:])
        fences.append(launched.fence)
    await reached(engine, lambda now: now.waiting == 1)
    done = anyio.Event()

    async def wait_for_the_last() -> None:
        await fences[-1]
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait_for_the_last)
        await anyio.wait_all_tasks_blocked()
        before = Wakeup.current().statistics()
        assert engine.gate is not None
        engine.gate.open_wide()
        with anyio.fail_after(60):
            await done.wait()
    after = Wakeup.current().statistics()
    assert after.posted - before.posted == after.wakeups - before.wakeups == 1
    assert rows[-1].y.tolist() == [[256, 512, 768, 1024]]


async def test_launch_waits_for_all_its_fences(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row, fences = await rig.prepare(), Row(), [Fence(), Fence(), Fence()]
    launched = await prepared.execute_fenced(row.request, [*fences, fences[0], signaled()])
    for fence in fences:
        assert not launched.fence.done
        assert engine.counters.run == 0
        fence.signal()
    assert await finished(launched.fence) is None
    assert row.is_right


async def failed(launched: Launched) -> Exception:
    error = await finished(launched.fence)
    assert error is not None
    return error


@pytest.mark.parametrize("when", ["before", "after"])
async def test_failed_dependency_fails_all_its_dependants(rigs: Rigs, when: str) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row() for _ in range(3)]
    fence, first_error = Fence(), ValueError("the camera is gone")
    if when == "before":
        fence.fail(first_error)
    pending = Fence()
    launched = [await prepared.execute_fenced(rows[0].request, [pending, fence])]
    for row in rows[1:]:
        launched.append(await prepared.execute_fenced(row.request, [launched[-1].fence]))
    fence.fail(first_error)
    for each in launched:
        error = await failed(each)
        assert isinstance(error, GeneralFailure)
        assert "the camera is gone" in str(error)
        assert error.__cause__ is first_error
        assert (await each.get_execution_info()).status is ErrorStatus.GENERAL_FAILURE
    pending.signal()
    await free(rig)
    assert engine.counters.run == 0
    assert all(row.is_untouched for row in rows)


async def test_cancelled_launch_fails_its_dependants(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, rows = await rig.prepare(), [Row(), Row()]
    first = await prepared.execute_fenced(rows[0].request)
    second = await prepared.execute_fenced(rows[1].request, [first.fence])
    await reached(engine, lambda now: now.waiting == 1)
    first.cancel()
    assert isinstance(await failed(first), Cancelled)
    assert isinstance((await failed(second)).__cause__, Cancelled)
    first.cancel()
    second.cancel()
    assert isinstance(first.fence.error, Cancelled)


async def test_duration_counts_from_the_last_fence(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, row, fence = await rig.prepare(), Row(), Fence()
    launched = await prepared.execute_fenced(
        row.request, [fence], ExecutionConfig(duration_ns=10 * MS, deadline_ns=within(s=3600).at_ns)
    )
    task = launched._task
    assert rig.watchdog.pending() == 1
    busy_until(now_ns() + 20 * MS)
    assert not launched.fence.done
    fence.signal()
    error = await failed(launched)
    assert isinstance(error, MissedDeadline)
    assert task.fence.signaled_at_ns - fence.signaled_at_ns >= 10 * MS


async def test_duration_without_fences_counts_from_the_launch(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    launched = await prepared.execute_fenced(
        row.request, config=ExecutionConfig(duration_ns=10 * MS)
    )
    assert isinstance(await failed(launched), MissedDeadline)


async def test_the_earlier_of_deadline_and_duration_counts(rigs: Rigs) -> None:
    engine, watchdog = null(gated=True), ManualWatchdog()
    rig = rigs(engine, watchdog=watchdog)
    prepared, row, fence = await rig.prepare(), Row(), Fence()
    deadline = within(s=1800)
    launched = await prepared.execute_fenced(
        row.request, [fence], ExecutionConfig(duration_ns=3600 * 10**9, deadline_ns=deadline.at_ns)
    )
    fence.signal()
    await reached(engine, lambda now: now.waiting == 1)
    assert [alarm.at_ns for alarm in watchdog.alarms] == [deadline.at_ns]
    watchdog.ring(deadline)
    assert isinstance(await failed(launched), MissedDeadlineTransient)
    info = await launched.get_execution_info()
    assert info.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT


async def test_deadline_passes_behind_a_fence_that_never_comes(
    rigs: Rigs, deadlines: Deadlines
) -> None:
    rig = rigs(null())
    prepared, row, never = await rig.prepare(), Row(), Fence()
    deadline = within(s=3600)
    launched = await prepared.execute_fenced(
        row.request, [never], ExecutionConfig(deadline_ns=deadline.at_ns)
    )
    deadlines.let_pass(deadline)
    assert isinstance(await failed(launched), MissedDeadlinePersistent)
    never.signal()
    await free(rig)
    assert row.is_untouched


async def test_launch_raises_what_the_caller_can_cause(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    with pytest.raises(MissedDeadlinePersistent):
        await prepared.execute_fenced(
            row.request, config=ExecutionConfig(deadline_ns=within(ms=-1).at_ns)
        )
    with pytest.raises(InvalidArgument):
        await prepared.execute_fenced(Request((), (), ()), [Fence()])
    assert rig.workers.statistics().live == 0
