"""A policy that breaks its contract ends its reign, and no job is lost for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, Job, Policy, PolicyError, Scheduler
from nnasync.scheduler.policies import FirstComeFirstServed

LOW, MEDIUM, HIGH = Priority
ALL = (HIGH, MEDIUM, LOW)
PATIENCE_NS = 1000


def job(priority: Priority = MEDIUM, deadline: int = NEVER_NS, client: int = 0) -> Job:
    return Job(priority, Estimate(), deadline, client)


def governed(policy: Policy) -> Scheduler:
    return Scheduler(servers=1, queue_limit=100, aging_ns=PATIENCE_NS // 10, policy=policy)


class Spoilt(FirstComeFirstServed):
    """First come first served, but for one call that does something else from some time on."""

    name = "spoilt"

    def __init__(self, call: str, spoil: Callable[..., object], *, good: int = 0) -> None:
        super().__init__()
        right, self.left = getattr(self, call), good

        def asked(*arguments: Any) -> object:
            self.left -= 1
            return right(*arguments) if self.left >= 0 else spoil(*arguments)

        setattr(self, call, asked)


def fails(*_: object) -> object:
    raise ZeroDivisionError("of no use")


def ends(*_: object) -> object:
    raise SystemExit(3)


STRANGER = job()


@pytest.mark.parametrize(
    ("call", "spoil", "text"),
    [
        ("push", fails, "push: it raised ZeroDivisionError: of no use"),
        ("next", fails, "next: it raised ZeroDivisionError"),
        ("next", ends, "next: it raised SystemExit: 3"),
        ("remove", fails, "remove: it raised ZeroDivisionError"),
        ("ran", fails, "ran: it raised ZeroDivisionError"),
        ("preempted", fails, "preempted: it raised ZeroDivisionError"),
        ("due_ns", fails, "due_ns: it raised ZeroDivisionError"),
        ("needed_ns", fails, "needed_ns: it raised ZeroDivisionError"),
        ("next", lambda now: None, r"next: it gave None while \d jobs were queued"),
        ("next", lambda now: STRANGER, "next: it gave a job of nobody, which is not queued"),
        ("next", lambda now: "me", "next: it gave a str, which is not queued"),
        ("next", lambda now: [], "next: it gave a list, which is not queued"),
        ("preempted", lambda jobs, now: STRANGER, "preempted: it gave a job of nobody"),
        ("due_ns", lambda now: "soon", "due_ns: it gave 'soon', not a time in nanoseconds"),
        ("needed_ns", lambda one, now: "long", "needed_ns: it gave 'long'"),
        ("needed_ns", lambda one, now: float("nan"), "needed_ns: it gave nan"),
    ],
)
def test_what_a_policy_does_wrong(call: str, spoil: Callable[..., object], text: str) -> None:
    """The first and last calls are right ones of the scheduler; it never hears of the rest."""
    queue = governed(Spoilt(call, spoil))
    told: list[PolicyError] = []
    queue.on_failure = told.append
    low, middle, high, gone = job(LOW), job(MEDIUM, 10**9), job(HIGH), job(HIGH)
    for each in (low, middle, high, gone):
        queue.submit(each, 0)
    assert queue.withdraw(gone)
    first = queue.next(1, ALL)
    assert first in (low, high)  # Whoever had the say by then.
    queue.preempted([first], 2)
    queue.look_again_ns(2)
    queue.ran(first, 10)
    rest = [queue.next(20, ALL), queue.next(20, ALL)]
    assert {first, *rest} == {low, middle, high}
    assert rest == [middle, low] if first is high else rest == [high, middle]
    assert queue.next(20, ALL) is None
    with pytest.raises(PolicyError, match=f"policy 'spoilt', {text}"):
        raise queue.failure or AssertionError("nothing was noticed")
    assert told == [queue.failure]
    found = queue.statistics()
    assert (found.policy, found.policy_failures) == ("default", 1)
    assert found.policy_failure == str(queue.failure)
    assert found.queued == (0, 0, 0)
    assert not queue.is_governed


def test_a_job_that_is_handed_out_twice() -> None:
    first, second = job(), job()
    queue = governed(Spoilt("next", lambda now: first, good=1))
    queue.submit(first, 0)
    queue.submit(second, 0)
    assert [queue.next(1, ALL) for _ in range(3)] == [first, second, None]
    assert "a job that was handed out already" in str(queue.failure)


def test_a_job_that_a_policy_forgets_is_found_again() -> None:
    """Where the policy says that nothing is left, something is."""
    queue = governed(Spoilt("push", lambda *_: None, good=2))
    jobs = [job() for _ in range(3)]
    for each in jobs:
        queue.submit(each, 0)
    assert [queue.next(1, ALL) for _ in range(4)] == [*jobs, None]
    assert "it gave None while 1 jobs were queued" in str(queue.failure)


class Lazy(FirstComeFirstServed):
    """Keeps everything back, and says when it is to be asked again."""

    is_work_conserving = False
    again_ns = 10

    def next(self, now_ns: int) -> Job | None:
        return None

    def due_ns(self, now_ns: int) -> int:
        return now_ns + self.again_ns


def test_a_policy_may_keep_jobs_back_for_a_while_only() -> None:
    queue, kept = governed(Lazy()), job()
    queue.submit(kept, 0)
    assert queue.next(5, ALL) is None
    assert queue.next(5 + PATIENCE_NS, ALL) is None
    assert queue.failure is None
    assert queue.next(6 + PATIENCE_NS, ALL) is kept
    assert "kept 1 jobs back" in str(queue.failure)


@pytest.mark.parametrize("again_ns", [0, -1, NEVER_NS])
def test_a_policy_that_keeps_jobs_back_says_until_when(again_ns: int) -> None:
    policy, kept = Lazy(), job()
    policy.again_ns = again_ns
    queue = governed(policy)
    queue.submit(kept, 0)
    assert queue.next(5, ALL) is kept
    assert "no time to ask again" in str(queue.failure)


def test_a_policy_without_a_beginning() -> None:
    queue, one = governed(Spoilt("reset", fails)), job()
    assert not queue.is_governed
    queue.submit(one, 0)
    assert queue.next(0, ALL) is one


def test_what_is_too_late_is_not_run_whatever_the_policy_says() -> None:
    queue = governed(FirstComeFirstServed())
    late, other = job(deadline=10), job()
    queue.submit(late, 0)
    queue.submit(other, 0)
    with pytest.raises(MissedDeadlinePersistent, match="the deadline had passed"):
        queue.submit(job(deadline=10), 10)
    assert queue.next(10, ALL) is other
    assert queue.take_expired() == [late]
    assert queue.statistics().waiting == 0
    assert queue.failure is None


def test_after_a_failure_clients_have_their_shares_again() -> None:
    """And a client that went while the policy was in force is forgotten when its work is done."""
    queue = governed(Spoilt("next", fails, good=1))
    mine, other = queue.open_client(queue_limit=9), queue.open_client(queue_limit=9)
    ran = job(client=mine)
    queue.submit(ran, 0)
    assert queue.next(0, ALL) is ran
    left = [job(client=mine), job(client=other)]
    for each in left:
        queue.submit(each, 0)
    queue.close_client(mine)
    queue.ran(ran, 5_000)
    assert [queue.next(5_000, ALL) for _ in range(2)] == left[::-1]
    assert queue.failure is not None
    for each in left:
        queue.ran(each, 1)
    assert not queue.has_room(HIGH, mine)
    assert queue.has_room(HIGH, other)


def test_places_are_given_up_under_a_policy_as_well() -> None:
    queue = Scheduler(servers=1, queue_limit=1, room=1, policy=FirstComeFirstServed())
    low, high = job(LOW), job(HIGH)
    queue.submit(low, 0)
    assert queue.submit(high, 0) is low
    assert queue.next(0, ALL) is high
    assert queue.failure is None


def test_everything_queued_counts_as_urgent_but_in_the_figures() -> None:
    """So nothing that comes later runs before it on the thread of a loop."""
    queue = governed(FirstComeFirstServed())
    queue.submit(job(LOW), 0)
    assert queue.waits_above(HIGH)
    assert queue.totals == [0, 0, 1]
    assert queue.is_over(0)
    assert queue.statistics().queued == (1, 0, 0)
    assert queue.queued_of(0) == 1
    assert queue.next(0, ALL) is not None
    assert not queue.waits_above(HIGH)


def test_the_same_object_serves_again_after_a_reset() -> None:
    policy = FirstComeFirstServed()
    governed(policy).submit(job(), 0)
    queue, one = governed(policy), job()
    queue.submit(one, 0)
    assert [queue.next(0, ALL), queue.next(0, ALL)] == [one, None]
    assert queue.failure is None
