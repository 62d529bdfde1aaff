"""Each policy hands out, refuses and stops what its order says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nnasync.errors import InvalidArgument, MissedDeadlinePersistent
from nnasync.hal import Priority
from nnasync.scheduler import (
    NEVER_NS,
    Estimate,
    Job,
    Policy,
    Scheduler,
    policy_names,
    resolve_policy,
)
from nnasync.scheduler.policies import BUILT_IN, FirstComeFirstServed, Reservation, Reservations

LOW, MEDIUM, HIGH = Priority
ALL = (HIGH, MEDIUM, LOW)
MS = 1_000_000
HOUR = 3_600_000 * MS


def job(
    priority: Priority = MEDIUM, takes: int = 1, deadline: int = NEVER_NS, client: int = 0
) -> Job:
    """A job whose runs are known to take so long."""
    estimate = Estimate()
    estimate.observe(takes)
    return Job(priority, estimate, deadline, client)


def scheduler(policy: str | Policy, *, servers: int = 1) -> Scheduler:
    return Scheduler(servers=servers, queue_limit=100, policy=resolve_policy(policy))


def order(policy: str | Policy, *jobs: Job) -> list[int]:
    """In which order jobs that were submitted at times 0, 1... are handed out."""
    queue = scheduler(policy)
    for now, each in enumerate(jobs):
        queue.submit(each, now)
    out = [queue.next(len(jobs), ALL) for _ in jobs]
    assert queue.next(len(jobs), ALL) is None
    assert queue.failure is None
    return [jobs.index(each) for each in out if each is not None]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("default", [3, 1, 2, 0]),
        ("fifo", [0, 1, 2, 3]),
        ("fixed-priority", [1, 3, 2, 0]),
        ("fixed-priority-preemptive", [1, 3, 2, 0]),
        ("deadline-monotonic", [3, 0, 1, 2]),
        ("edf", [3, 0, 1, 2]),
        ("edf-non-preemptive", [3, 0, 1, 2]),
        ("least-laxity", [0, 3, 1, 2]),
        ("shortest-job", [2, 3, 1, 0]),
        ("shortest-job-preemptive", [2, 3, 1, 0]),
        ("predicted-finish", [3, 0, 1, 2]),
    ],
)
def test_orders(policy: str, expected: list[int]) -> None:
    jobs = [
        job(LOW, takes=700, deadline=1000),
        job(HIGH, takes=300, deadline=2000),
        job(MEDIUM, takes=100),
        job(HIGH, takes=200, deadline=900),
    ]
    if policy == "predicted-finish":
        for each in jobs:
            each.deadline_ns *= 10 if each.deadline_ns < NEVER_NS else 1
    assert order(policy, *jobs) == expected


@pytest.mark.parametrize(
    ("policy", "running", "queued", "gives_way"),
    [
        ("default", job(LOW), job(MEDIUM), True),
        ("default", job(MEDIUM), job(MEDIUM), False),
        ("fifo", job(LOW), job(HIGH), False),
        ("fixed-priority", job(LOW), job(HIGH), False),
        ("fixed-priority-preemptive", job(LOW), job(HIGH), True),
        ("fixed-priority-preemptive", job(HIGH), job(HIGH, deadline=HOUR), False),
        ("edf", job(HIGH, deadline=20), job(LOW, deadline=19), True),
        ("edf", job(deadline=20), job(deadline=20), False),
        ("edf-non-preemptive", job(deadline=20), job(deadline=19), False),
        ("least-laxity", job(deadline=2 * HOUR), job(takes=10, deadline=HOUR), True),
        ("shortest-job-preemptive", job(takes=100), job(takes=50), True),
        ("shortest-job-preemptive", job(takes=100), job(takes=91), False),
        ("predicted-finish", job(deadline=HOUR), job(deadline=HOUR - 1), False),
    ],
)
def test_who_gives_way(policy: str, running: Job, queued: Job, gives_way: bool) -> None:
    """Ten nanoseconds after the first was handed out."""
    queue = scheduler(policy)
    queue.submit(running, 0)
    assert queue.next(0, ALL) is running
    assert queue.preempted([running], 5) is None
    queue.submit(queued, 10)
    assert queue.preempted([running], 10) is (running if gives_way else None)
    assert queue.failure is None


def test_the_remaining_time_counts_once_a_job_has_run() -> None:
    queue = scheduler("shortest-job-preemptive")
    long, short = job(takes=100), job(takes=30)
    queue.submit(long, 0)
    assert queue.next(0, ALL) is long
    long.active_ns += 80
    queue.requeue(long, 80)
    queue.ran(long, 80)
    queue.submit(short, 80)
    assert queue.next(80, ALL) is long


def test_what_is_predicted_to_be_late_is_refused_at_once() -> None:
    queue = scheduler("predicted-finish")
    first, second = job(takes=10 * MS, deadline=HOUR), job(takes=10 * MS, deadline=25 * MS)
    queue.submit(first, 0)
    assert queue.next(0, ALL) is first
    queue.submit(second, 0)
    with pytest.raises(MissedDeadlinePersistent, match="predicts an end in 26.000 ms"):
        queue.submit(job(takes=10 * MS, deadline=25 * MS), 4 * MS)
    queue.submit(job(takes=10 * MS, deadline=31 * MS), 4 * MS)
    assert queue.statistics().missed == 1


@pytest.mark.parametrize(("ran", "is_hopeless"), [(14, False), (18, True)])
def test_what_becomes_late_since_others_take_longer_is_given_up(
    ran: int, is_hopeless: bool
) -> None:
    """Two wait for 10 ms each behind one that was to take 10 ms; the first is due at 25 ms."""
    queue = scheduler("predicted-finish")
    first = job(takes=10 * MS, deadline=HOUR)
    second, third = job(takes=10 * MS, deadline=25 * MS), job(takes=10 * MS, deadline=35 * MS)
    queue.submit(first, 0)
    assert queue.next(0, ALL) is first
    queue.submit(second, 0)
    queue.submit(third, 0)
    queue.ran(first, ran * MS)
    assert queue.next(ran * MS, ALL) is (third if is_hopeless else second)
    assert queue.take_expired() == ([second] if is_hopeless else [])
    assert queue.failure is None
    assert queue.statistics().expired == is_hopeless


def test_nobody_is_given_up_while_runs_are_as_predicted() -> None:
    queue = scheduler("predicted-finish")
    first, second = job(takes=10 * MS, deadline=HOUR), job(takes=10 * MS, deadline=25 * MS)
    queue.submit(first, 0)
    assert queue.next(0, ALL) is first
    queue.submit(second, 0)
    queue.ran(first, 10 * MS)
    assert queue.next(16 * MS, ALL) is second  # A core was late, but nothing took longer.


@pytest.mark.parametrize("given", [3, None, [job()], ["a"]])
def test_a_policy_that_gives_up_what_it_does_not_have_is_caught(given: object) -> None:
    class Wrong(FirstComeFirstServed):
        def gives_up(self, now_ns: int) -> object:
            return given

    queue = scheduler(Wrong())
    each = job()
    queue.submit(each, 0)
    assert queue.next(0, ALL) is each
    assert "gives_up: it gave" in str(queue.failure)


def test_a_model_that_is_refused_for_its_estimate_is_tried_again() -> None:
    queue = scheduler("predicted-finish")
    estimate = Estimate()
    estimate.observe(30 * MS)
    refusals = 0
    while True:
        try:
            queue.submit(Job(MEDIUM, estimate, 20 * MS), 0)
            break
        except MissedDeadlinePersistent:
            refusals += 1
    assert 5 < refusals < 10


def test_a_soft_reservation_holds_against_a_flood() -> None:
    """A client with 3 of every 10 ms gets them beside one with 7 of 10 that always has work."""
    policy = Reservations({1: Reservation(3 * MS, 10 * MS), 2: Reservation(7 * MS, 10 * MS)})
    shares = served(policy, clients=(1, 2), until_ns=1000 * MS)
    assert shares[1] == pytest.approx(0.3, abs=0.01)
    assert shares[2] == pytest.approx(0.7, abs=0.01)


def test_a_soft_reservation_leaves_no_core_idle_and_a_hard_one_does() -> None:
    reserved = {1: Reservation(3 * MS, 10 * MS)}
    assert served(Reservations(reserved), clients=(1,), until_ns=1000 * MS)[1] == 1.0
    hard = served(Reservations(reserved, is_hard=True), clients=(1,), until_ns=1000 * MS)
    assert hard[1] == pytest.approx(0.3, abs=0.01)


def test_who_has_no_reservation_has_what_is_left() -> None:
    policy = Reservations({1: Reservation(3 * MS, 10 * MS)}, is_hard=True)
    shares = served(policy, clients=(0, 1), until_ns=1000 * MS)
    assert shares[1] == pytest.approx(0.3, abs=0.01)
    assert shares[0] == pytest.approx(0.7, abs=0.01)


def served(policy: Policy, *, clients: tuple[int, ...], until_ns: int) -> dict[int, float]:
    """The shares of one core of clients that always have two jobs of 1 ms queued."""
    queue = scheduler(policy)
    for _ in range(max(clients)):
        queue.open_client(queue_limit=100)
    now, ran = 0, dict.fromkeys(clients, 0)
    for client in clients:
        for _ in range(2):
            queue.submit(job(takes=MS, client=client), now)
    while now < until_ns:
        chosen = queue.next(now, ALL)
        if chosen is None:
            now = queue.look_again_ns(now)
            continue
        now += MS
        chosen.active_ns += MS
        queue.ran(chosen, MS)
        ran[chosen.client] += MS
        queue.submit(job(takes=MS, client=chosen.client), now)
    assert queue.failure is None
    return {client: ran_ns / now for client, ran_ns in ran.items()}


def test_a_reservation_interrupts_what_has_used_its_own_up() -> None:
    policy = Reservations({1: Reservation(3 * MS, 10 * MS), 2: Reservation(7 * MS, 30 * MS)})
    queue = scheduler(policy)
    for _ in range(2):
        queue.open_client(queue_limit=100)
    long, other = job(takes=20 * MS, client=1), job(takes=MS, client=2)
    queue.submit(long, 0)
    assert queue.next(0, ALL) is long
    queue.submit(other, 0)
    assert queue.preempted([long], MS) is None
    assert queue.look_again_ns(MS) == 3 * MS
    assert queue.preempted([long], 8 * MS) is None
    assert queue.preempted([long], 10 * MS) is long


@pytest.mark.parametrize("budget", [0, -1, 11])
def test_reservations_that_are_none(budget: int) -> None:
    with pytest.raises(InvalidArgument, match="a budget above 0 and up to its period"):
        Reservation(budget, 10)


# -- names


def test_names_lead_to_policies_with_these_names() -> None:
    assert policy_names()[: len(BUILT_IN) + 1] == ("default", *BUILT_IN)
    for name in BUILT_IN:
        told = {"clients": {1: {"budget_ms": 1, "period_ms": 2}}} if name == "reservations" else {}
        made = resolve_policy(name, **told)
        assert made is not None
        assert made.name == name
    assert resolve_policy(None) is resolve_policy("default") is None


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: resolve_policy("lifo"), "there is no policy 'lifo'; there are default, fifo"),
        (
            lambda: resolve_policy("fifo", depth=1),
            "got an unexpected keyword argument 'depth'; it takes preempts",
        ),
        (lambda: resolve_policy("default", aging=1), "the default policy has no parameters"),
        (lambda: resolve_policy("reservations"), "cannot be made"),
        (
            lambda: resolve_policy("reservations", clients={0: {"budget": 1}}),
            "client 0 has budget_ms and period_ms, not budget",
        ),
        (
            lambda: resolve_policy("predicted-finish", order="default"),
            "goes over an order, which 'default' is not",
        ),
        (lambda: resolve_policy(3), "int is not a policy: it lacks reset"),  # type: ignore[arg-type]  # to be refused
        (lambda: resolve_policy(Reservations), "Reservations is not a policy"),  # type: ignore[arg-type]  # to be refused
    ],
)
def test_what_is_no_policy_is_refused(ask: Callable[[], object], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        ask()
