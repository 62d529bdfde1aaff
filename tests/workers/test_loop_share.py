"""The thread of a loop takes its share of what is queued, and leaves the rest to workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import anyio
import pytest

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Wakeup, yield_now
from nnasync._core.workers import Given, StopFlag, Task
from nnasync.errors import GeneralFailure
from nnasync.hal import NEVER_NS, Priority
from tests.rigs import ManualWatchdog
from tests.workers.steering import HIGH, LOW, MEDIUM, MS, PATIENCE_S, Rig, Steps, until, wait

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop(
        "It asks asyncio for its turns; on trio workers alone take what is queued."
    ),
]

Rigs = Callable[..., Rig]
SECOND_NS = 1000.0 * MS


def spread(rig: Rig, call: object, priority: Priority = MEDIUM, *, run_ns: float = MS) -> Task:
    """Queue an execution that might as well run on the thread of the loop."""
    task = rig.task(call, priority)
    task.is_spread = True
    task.estimate.samples = 1
    task.estimate.ns = task.estimate.best_ns = run_ns
    rig.workers.submit(task)
    return task


def occupied(rig: Rig, *, run_ns: float = SECOND_NS) -> Steps:
    """Have the worker run something that takes so long, as far as anybody knows."""
    call = Steps()
    spread(rig, call, run_ns=run_ns)
    call.reached()
    return call


async def done(task: Task) -> None:
    with anyio.fail_after(PATIENCE_S):
        await task.fence


async def done_here(rig: Rig, task: Task) -> None:
    """Have the thread of the loop take it."""
    rig.workers.loop_share.arm()
    await done(task)


class Noted:
    """A call that notes that it ran, and on which thread."""

    def __init__(self, name: str, seen: list[str], error: BaseException | None = None) -> None:
        self.name, self.seen, self.error = name, seen, error
        self.thread, self.falls_back = "", True

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.seen.append(self.name)
        self.thread, self.falls_back = threading.current_thread().name, stop.falls_back
        if self.error is not None:
            raise self.error
        return True

    def rewind(self) -> None:
        """There is nothing to forget."""


async def test_it_takes_what_would_wait_for_a_worker(rigs: Rigs) -> None:
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    call = Noted("second", seen)
    task = spread(rig, call)
    rig.workers.loop_share.arm()
    assert not seen, "the loop turns first"
    await done(task)
    assert call.thread == threading.current_thread().name
    assert not call.falls_back, "that might hold up the loop"
    assert task.estimate.samples == 2
    assert rig.workers.statistics().inline_runs == 1
    first.permit()


class Ending:
    """A call that has a worker end what that runs, and sees it end."""

    def __init__(self, worker: Steps, other: Task) -> None:
        self.worker, self.other = worker, other

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.worker.permit()
        self.other.fence.wait_blocking(PATIENCE_S)
        return True

    def rewind(self) -> None:
        """There is nothing to forget."""


async def test_what_ends_while_it_runs_one_need_not_wake_the_loop(rigs: Rigs) -> None:
    rig, heard, wakeup = rigs(2), list[str](), Wakeup.current()
    call = Steps()
    other = spread(rig, call, run_ns=SECOND_NS)
    call.reached()
    other.fence.add_callback(lambda _: wakeup.post(lambda: heard.append("other")))
    task, before = spread(rig, Ending(call, other)), wakeup.wakeups
    task.fence.add_callback(lambda _: heard.append("mine"))
    await done_here(rig, task)
    assert heard == ["mine", "other"]
    assert wakeup.wakeups == before


async def test_it_leaves_to_a_worker_what_that_will_take_soon(rigs: Rigs) -> None:
    rig, seen = rigs(2), list[str]()
    first = occupied(rig, run_ns=0)
    call = Noted("second", seen)
    task = spread(rig, call, run_ns=1000 * SECOND_NS)
    rig.workers.loop_share.arm()
    for _ in range(3):
        await yield_now()
    assert not seen
    first.permit()
    await done(task)
    assert call.thread != threading.current_thread().name
    assert call.falls_back


async def test_it_takes_one_in_each_turn_and_the_most_urgent_first(rigs: Rigs) -> None:
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    last = spread(rig, Noted("medium", seen))
    spread(rig, Noted("high", seen), HIGH)
    rig.workers.loop_share.arm()
    rig.workers.loop_share.arm()
    asyncio.get_running_loop().call_soon(seen.append, "the loop")
    await done(last)
    assert seen == ["high", "the loop", "medium"]
    first.permit()


async def test_its_runs_count_against_the_stall_budget(rigs: Rigs) -> None:
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    task = spread(rig, Noted("second", seen))
    here = rig.workers.turns.here
    here.spent_ns = here.budget_ns
    rig.workers.loop_share.arm()
    await yield_now()
    await yield_now()
    assert not seen, "there is no room in this turn"
    here.turned(here.number)
    await done(task)
    first.permit()


async def test_no_more_workers_go_on_than_there_are_cores_beside_its_own(rigs: Rigs) -> None:
    rig, seen = rigs(2), list[str]()
    before = [Steps(), Steps()]
    ending = [rig.submit(each) for each in before]
    for each in before:
        each.reached()
    first = Steps()
    spread(rig, first)
    call = Noted("second", seen)
    task = spread(rig, call)
    for each, end in zip(before, ending, strict=True):
        each.permit()
        wait(end)
    first.reached()
    until(lambda: rig.workers.is_at_rest)
    assert not seen, "it is left to the thread of the loop"
    await done_here(rig, task)
    assert call.thread == threading.current_thread().name
    first.permit()


async def test_it_takes_nothing_that_must_not_run_here(rigs: Rigs) -> None:
    rig, seen = rigs(1), list[str]()
    first = occupied(rig)
    task = rig.submit(Noted("second", seen))
    rig.workers.loop_share.arm()
    for _ in range(3):
        await yield_now()
    assert not seen
    first.permit()
    await done(task)


async def test_a_failure_is_told_and_others_go_on(rigs: Rigs) -> None:
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    broken = spread(rig, Noted("broken", seen, GeneralFailure("out of order")))
    good = spread(rig, Noted("good", seen))
    rig.workers.loop_share.arm()
    with pytest.raises(GeneralFailure, match="out of order"):
        await done(broken)
    await done(good)
    assert seen == ["broken", "good"]
    first.permit()


async def test_it_asks_again_in_the_next_loop_of_its_thread(rigs: Rigs) -> None:
    """A loop that ended with a turn still asked for does not keep the next one from its share."""
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    tasks = list[Task]()

    def two_loops() -> None:
        for turns in (False, True):
            loop = asyncio.new_event_loop()
            tasks.append(spread(rig, Noted(f"{turns}", seen)))
            asyncio._set_running_loop(loop)
            rig.workers.loop_share.arm()
            asyncio._set_running_loop(None)
            if turns:
                loop.run_until_complete(tasks[-1].fence)
            loop.close()

    thread = threading.Thread(target=two_loops)
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == ["False", "True"]
    first.permit()
    for task in tasks:
        wait(task)


async def test_what_is_posted_to_another_loop_of_its_thread_is_not_called_here(rigs: Rigs) -> None:
    """A turn that is still to come in one loop is none of the loop that asked last."""
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    wakeup: Wakeup | None = None

    class Posts(Noted):
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            assert wakeup is not None
            wakeup.post(lambda: seen.append("of the other loop"))
            return super().run(stop, given)

    def turn(loop: asyncio.AbstractEventLoop, *calls: Callable[[], object]) -> None:
        for call in (*calls, loop.stop):
            loop.call_soon(call)
        loop.run_forever()

    def know_it() -> None:
        nonlocal wakeup
        wakeup = Wakeup.current()

    def two_loops() -> None:
        one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
        task = spread(rig, Posts("here", seen))
        turn(one, rig.workers.loop_share.arm)
        turn(other, know_it, rig.workers.loop_share.arm)
        turn(one)
        assert seen == ["here"]
        turn(other)
        assert seen == ["here", "of the other loop"]
        wait(task)
        one.close()
        other.close()

    await anyio.to_thread.run_sync(two_loops)
    first.permit()


async def test_it_looks_again_where_the_worker_takes_longer_than_expected(rigs: Rigs) -> None:
    """Whoever was left to a worker that hangs does not wait for that for ever."""
    rig, seen = rigs(2), list[str]()
    first = occupied(rig, run_ns=0)
    call = Noted("second", seen)
    task = spread(rig, call, run_ns=10 * MS)
    rig.workers.loop_share.arm()
    await done(task)
    assert call.thread == threading.current_thread().name
    first.permit()


async def test_an_interrupt_ends_the_run_and_reaches_who_runs_the_loop(rigs: Rigs) -> None:
    """What meant the whole program is not the failure of one call."""
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)
    tasks = list[Task]()

    def interrupted() -> None:
        loop = asyncio.new_event_loop()
        tasks.append(spread(rig, Noted("interrupted", seen, KeyboardInterrupt())))
        tasks.append(spread(rig, Noted("behind", seen)))
        loop.call_soon(rig.workers.loop_share.arm)
        waiting = asyncio.ensure_future(tasks[0].fence, loop=loop)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(waiting)
        loop.run_until_complete(tasks[1].fence)
        # Else it would be told of at some time, within another test.
        assert isinstance(waiting.exception(), GeneralFailure)
        loop.close()

    await anyio.to_thread.run_sync(interrupted)
    with pytest.raises(GeneralFailure, match="KeyboardInterrupt"):
        await done(tasks[0])
    assert seen == ["interrupted", "behind"]
    first.permit()


async def test_low_work_begins_when_the_thread_of_the_loop_has_no_more_to_do(rigs: Rigs) -> None:
    rig, low = rigs(2, aging_ns=NEVER_NS), Steps(permits=1)
    first = occupied(rig)
    low_tasks = list[Task]()

    class Submits(Noted):
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            low_tasks.append(rig.submit(low, LOW))
            return super().run(stop, given)

    await done_here(rig, spread(rig, Submits("second", [])))
    await done(low_tasks[0])
    first.permit()


async def test_memory_is_let_go_where_whoever_hears_of_the_end_means_the_whole_program(
    rigs: Rigs,
) -> None:
    rig, seen = rigs(2), list[str]()
    first = occupied(rig)

    def exits(_: object) -> None:
        raise SystemExit

    def interrupted() -> None:
        loop = asyncio.new_event_loop()
        task, behind = (spread(rig, Noted(name, seen)) for name in ("second", "behind"))
        task.fence.add_callback(exits)
        task.when_released(lambda: seen.append("let go"))
        loop.call_soon(rig.workers.loop_share.arm)
        with pytest.raises(SystemExit):
            loop.run_until_complete(task.fence)
        loop.run_until_complete(done(behind))
        loop.close()

    await anyio.to_thread.run_sync(interrupted)
    assert seen == ["second", "let go", "behind"], "and who goes on all the same has the rest"
    first.permit()


async def test_what_is_due_for_its_age_gets_a_thread_where_the_worker_hangs(rigs: Rigs) -> None:
    """Only a worker may take that, and no other one is coming."""
    rig, seen = rigs(2, aging_ns=1), list[str]()
    first = occupied(rig)
    task = spread(rig, Noted("second", seen))
    rig.workers.loop_share.arm()
    await done(task)
    first.permit()


async def test_what_waits_behind_one_that_is_too_late_is_not_forgotten(rigs: Rigs) -> None:
    rig, seen = rigs(2, watchdog=ManualWatchdog()), list[str]()
    first = occupied(rig)
    late = rig.task(Noted("late", seen), deadline_ns=now_ns() + 3_600_000 * MS)
    late.is_spread = True
    rig.workers.submit(late)
    task = spread(rig, Noted("behind", seen))
    late.deadline_ns = now_ns()
    rig.workers.loop_share.arm()
    await yield_now()
    await yield_now()
    rig.workers._expire(late)
    await done(task)
    assert seen == ["behind"]
    first.permit()
