"""What a scheduler counts of its clients."""

from __future__ import annotations

import pytest

from nnasync.errors import MissedDeadlinePersistent, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, ClientStatistics, Estimate, Job, Scheduler

LOW, HIGH = Priority.LOW, Priority.HIGH
ALL = (HIGH, Priority.MEDIUM, LOW)


def scheduler(*, room: int = NEVER_NS) -> Scheduler:
    return Scheduler(servers=1, queue_limit=9, room=room)


def of(queue: Scheduler, client: int) -> ClientStatistics:
    (found,) = (each for each in queue.statistics().clients if each.client == client)
    return found


def job(client: int, priority: Priority = HIGH, deadline_ns: int = NEVER_NS) -> Job:
    return Job(priority, Estimate(), client=client, deadline_ns=deadline_ns)


def test_an_application_alone_is_no_client() -> None:
    queue = scheduler()
    queue.submit(job(0), 0)
    assert queue.statistics().clients == ()


def test_what_ran_is_counted_with_its_time() -> None:
    queue = scheduler()
    client = queue.open_client(queue_limit=9, name="process 5")
    queue.submit(job(client), 0)
    queue.submit(job(client), 0)
    assert of(queue, client).queued == 2
    taken = queue.next(0, ALL)
    assert taken is not None
    queue.ran(taken, 700)
    queue.spent(client, 50)
    queue.spent(client, 200, runs=1)
    found = of(queue, client)
    assert (found.name, found.queued, found.used_ns, found.runs) == ("process 5", 1, 950, 2)


def test_a_preempted_execution_is_one_execution() -> None:
    queue = scheduler()
    client = queue.open_client(queue_limit=9)
    queue.submit(job(client), 0)
    first = queue.next(0, ALL)
    assert first is not None
    queue.requeue(first, 100)
    queue.ran(first, 100)
    assert of(queue, client).runs == 0
    again = queue.next(200, ALL)
    assert again is first
    queue.ran(again, 100)
    assert (of(queue, client).runs, of(queue, client).used_ns) == (1, 200)


def test_what_was_lost_is_counted_to_whom_it_was() -> None:
    queue = scheduler(room=2)
    one, other = (queue.open_client(queue_limit=9) for _ in range(2))
    with pytest.raises(MissedDeadlinePersistent):
        queue.submit(job(one, deadline_ns=5), 10)
    queue.submit(job(one, LOW, deadline_ns=20), 10)
    queue.submit(job(one, LOW), 10)
    with pytest.raises(ResourceExhaustedTransient):
        queue.submit(job(one, LOW), 10)
    displaced = queue.submit(job(other), 10)
    assert displaced is not None
    assert queue.next(30, (LOW,)) is None
    assert len(queue.take_expired()) == 1
    late = job(other, deadline_ns=40)
    queue.submit(late, 30)
    queue.withdraw(late, is_late=True)
    assert (of(queue, one).missed, of(queue, one).refused) == (2, 2)
    assert (of(queue, other).missed, of(queue, other).refused) == (1, 0)
    seen = queue.statistics()
    assert (seen.displaced, seen.refused, seen.missed, seen.expired) == (1, 1, 1, 2)


def test_clients_that_come_and_go_leave_nothing() -> None:
    queue = scheduler()
    for _ in range(1000):
        client = queue.open_client(queue_limit=9, name="process 5")
        queue.spent(client, 10, runs=1)
        queue.close_client(client)
    assert queue.statistics().clients == ()
    assert queue.only is not None
