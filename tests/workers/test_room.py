"""What waits has a place, and whoever gives it up is answered, once, with the reason."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from nnasync._core.clock import now_ns
from nnasync._core.workers import Task
from nnasync.errors import NNError, ResourceExhaustedTransient
from nnasync.fences import Fence
from nnasync.scheduler import NEVER_NS, Estimate, Job
from tests.workers.steering import (
    HIGH,
    LOW,
    MEDIUM,
    MS,
    PATIENCE_S,
    Rig,
    Steps,
    failure,
    released,
    settles,
    wait,
)


def test_high_takes_the_place_of_the_newest_low(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1, queue_limit=2)
    running = Steps()
    first = rig.submit(running, HIGH)
    running.reached()
    lows = [rig.submit(Steps(permits=1), LOW) for _ in range(2)]
    with pytest.raises(ResourceExhaustedTransient, match="2 executions are queued already"):
        rig.submit(Steps(), LOW)
    with pytest.raises(ResourceExhaustedTransient, match="2 executions are queued") as caught:
        rig.workers.check_room(Job(LOW, Estimate()))
    assert caught.value.reason == "queue_full"
    assert rig.workers.statistics().scheduler.refused == 2
    rig.workers.check_room(Job(HIGH, Estimate()))
    ends = settles(lows[1])
    high = rig.submit(Steps(permits=1), HIGH)
    assert "gave its place to work of higher priority" in str(failure(lows[1]))
    released(lows[1]).wait_blocking(PATIENCE_S)
    assert len(ends) == 1
    running.permit()
    for task in (first, high, lows[0]):
        wait(task)
    assert rig.workers.statistics().scheduler.displaced == 1
    assert rig.workers.statistics().live == 0


def test_what_waits_for_fences_has_a_place_and_gives_it_up(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1, queue_limit=2)
    held = [rig.task(Steps(), LOW) for _ in range(2)]
    for task in held:
        rig.workers.hold(task)
    with pytest.raises(ResourceExhaustedTransient):
        rig.workers.hold(rig.task(Steps(), LOW))
    high = rig.task(Steps(permits=1), HIGH)
    rig.workers.hold(high)
    assert isinstance(failure(held[1]), ResourceExhaustedTransient)
    rig.workers.submit_held(held[1])
    rig.workers.abandon(held[0])
    rig.workers.submit_held(high)
    wait(high)
    assert rig.workers.statistics().scheduler.waiting == 0
    assert rig.workers.statistics().live == 0


def test_who_gave_way_is_told_though_there_is_no_thread(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rigs(1, queue_limit=1)
    low = rig.task(Steps(), LOW)
    rig.workers.hold(low)

    def broken(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", broken)
    with pytest.raises(ResourceExhaustedTransient, match="no thread"):
        rig.submit(Steps(), HIGH)
    monkeypatch.undo()
    assert "gave its place" in str(failure(low))
    assert rig.workers.statistics().live == 0
    assert rig.workers.statistics().scheduler.waiting == 0


def test_places_under_races(rigs: Callable[..., Rig]) -> None:
    """Threads hold, submit and cancel more than there are places: all is answered, all are free."""
    rig = rigs(2, queue_limit=5)
    tasks: list[Task] = []
    most: list[int] = []

    def load(seed: int) -> None:
        random_ = random.Random(seed)
        for _ in range(200):
            in_ns = random_.randrange(1, 20 * MS)
            deadline_ns = now_ns() + in_ns if random_.random() < 0.2 else NEVER_NS
            priority = random_.choice((LOW, MEDIUM, HIGH))
            task = rig.task(Steps(permits=1), priority, deadline_ns)
            tasks.append(task)
            try:
                if random_.random() < 0.5:
                    fence = Fence()
                    rig.workers.hold(task, [fence])
                    rig.workers.submit_held(task)
                else:
                    rig.workers.submit(task)
            except NNError as error:
                task.fence.fail(error.with_traceback(None))
                task.release()
            if random_.random() < 0.1:
                rig.workers.abandon(random_.choice(tasks))
            most.append(rig.workers.statistics().scheduler.waiting)

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for task in tasks:
        released(task).wait_blocking(PATIENCE_S)
        assert task.fence.done
    assert max(most) <= 5 + 2 * rig.workers.cores
    found = rig.workers.statistics()
    assert found.live == found.scheduler.waiting == 0
