"""Workers under a policy: its order on all cores, its preemption, and what follows its failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from nnasync._core.clock import now_ns
from nnasync._core.workers import GO, YIELD, Given, StopFlag
from nnasync.errors import MissedDeadlinePersistent
from nnasync.scheduler import NEVER_NS, Job, Policy, resolve_policy
from nnasync.scheduler.policies import (
    FirstComeFirstServed,
    Reservation,
    Reservations,
)
from tests.workers.steering import HIGH, LOW, MEDIUM, MS, Rig, Steps, until, wait

pytestmark = pytest.mark.usefixtures("no_leaks")

Rigs = Callable[..., Rig]
HOUR_NS = 3_600_000 * MS


def policy(name: str) -> Policy:
    made = resolve_policy(name)
    assert made is not None
    return made


class Noted(Steps):
    """A call that notes when it begins."""

    def __init__(self, order: list[str], name: str) -> None:
        super().__init__(permits=1)
        self.order, self.name = order, name

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.order.append(self.name)
        return super().run(stop, given)


def order_of(rig: Rig) -> list[str]:
    """In which order calls that wait behind a busy core begin."""
    busy, order = Steps(), list[str]()
    tasks = [rig.submit(busy)]
    busy.reached()
    for name, priority, in_hours in [
        ("low", LOW, 1),
        ("high", HIGH, 3),
        ("medium", MEDIUM, 2),
    ]:
        call = Noted(order, name)
        tasks.append(rig.submit(call, priority, now_ns() + in_hours * HOUR_NS))
    busy.permit()
    for task in tasks:
        wait(task)
    return order


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("fifo", ["low", "high", "medium"]),
        ("fixed-priority", ["high", "medium", "low"]),
        ("edf-non-preemptive", ["low", "medium", "high"]),
        ("least-laxity", ["low", "medium", "high"]),
        ("predicted-finish", ["low", "medium", "high"]),
    ],
)
def test_the_order_is_the_policys_on_one_set_of_threads(
    rigs: Rigs, name: str, order: list[str]
) -> None:
    rig = rigs(1, policy=policy(name))
    assert order_of(rig) == order
    found = rig.workers.statistics()
    assert found.threads == 1
    assert found.scheduler.policy == name
    assert found.scheduler.queued == (0, 0, 0)


@pytest.mark.parametrize("cores", [1, 2])
def test_what_is_stopped_makes_room_and_goes_on_later(rigs: Rigs, cores: int) -> None:
    """LOW stops HIGH here: its deadline is earlier."""
    rig = rigs(cores, policy=policy("edf"))
    now = now_ns()
    calls = [Steps(2) for _ in range(cores)]
    tasks = [
        rig.submit(call, HIGH, now + (5 + number) * HOUR_NS) for number, call in enumerate(calls)
    ]
    for call in calls:
        call.reached()
    urgent = Steps(permits=1)
    tasks.append(rig.submit(urgent, LOW, now + HOUR_NS))
    *others, last = calls
    assert last.stop is not None
    assert last.stop.raised == YIELD
    assert all(call.stop is not None and call.stop.raised == GO for call in others)
    last.permit()
    wait(tasks[-1])
    for call in calls:
        call.permit(2)
    for task in tasks:
        wait(task)
    assert rig.workers.statistics().preemptions == 1
    assert last.results == [2]


def test_nothing_is_stopped_while_a_core_is_free(rigs: Rigs) -> None:
    rig = rigs(2, policy=policy("edf"))
    first, second = Steps(), Steps(permits=1)
    task = rig.submit(first, deadline_ns=now_ns() + 2 * HOUR_NS)
    first.reached()
    wait(rig.submit(second, deadline_ns=now_ns() + HOUR_NS))
    assert first.stop is not None
    assert first.stop.raised == GO
    first.permit()
    wait(task)


def test_a_refusal_reaches_the_caller(rigs: Rigs) -> None:
    rig = rigs(1, policy=policy("predicted-finish"))
    busy = Steps()
    task = rig.task(busy)
    task.estimate.observe(HOUR_NS)
    rig.workers.submit(task)
    busy.reached()
    late = rig.task(Steps(), deadline_ns=now_ns() + HOUR_NS // 2)
    late.estimate.observe(MS)
    with pytest.raises(MissedDeadlinePersistent, match="'predicted-finish' predicts an end in"):
        rig.workers.submit(late)
    busy.permit()
    wait(task)


def test_a_policy_that_waits_is_asked_again(rigs: Rigs) -> None:
    """A hard reservation: 2 of every 20 ms; a run of 2 ms uses it up, and the next one waits."""
    rig = rigs(1, policy=Reservations({0: Reservation(2 * MS, 20 * MS)}, is_hard=True))
    first = Steps()
    task = rig.submit(first)
    first.reached()
    began = now_ns()
    until(lambda: now_ns() - began > 2 * MS)
    second = rig.submit(Steps(permits=1))
    first.permit()
    wait(task)
    wait(second)
    assert second.started_ns - task.ready_ns >= 20 * MS  # The period begins when it is queued.
    assert rig.workers.statistics().scheduler.policy == "reservations"


class Bad(FirstComeFirstServed):
    """First come first served for a while; then it does its worst."""

    name = "bad"
    good = 2

    def next(self, now_ns: int) -> Job | None:
        self.good -= 1
        return super().next(now_ns) if self.good >= 0 else self.worst(now_ns)

    def worst(self, now_ns: int) -> Job | None:
        raise ZeroDivisionError("of no use")


class Forgetful(Bad):
    name = "forgetful"

    def worst(self, now_ns: int) -> Job | None:
        super(Bad, self).next(now_ns)
        return None


class Repeating(Bad):
    name = "repeating"
    last: Job | None = None

    def next(self, now_ns: int) -> Job | None:
        self.last = super().next(now_ns)
        return self.last

    def worst(self, now_ns: int) -> Job | None:
        return self.last


class Inventive(Bad):
    name = "inventive"

    def worst(self, now_ns: int) -> Job | None:
        return Job(HIGH, (super(Bad, self).next(now_ns) or self.last_resort()).estimate)

    def last_resort(self) -> Job:
        raise LookupError("nothing to copy")


class Starving(Bad):
    """It says that it keeps jobs back on purpose, for ever."""

    name = "starving"
    is_work_conserving = False

    def worst(self, now_ns: int) -> Job | None:
        return None


class Stopping(Bad):
    name = "stopping"
    good = 10**9

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        return self.next(now_ns)


BAD = [Bad, Forgetful, Repeating, Inventive, Starving, Stopping]


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("kind", BAD)
def test_no_call_is_lost_to_a_bad_policy(
    rigs: Rigs, kind: type[Bad], cores: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rig = rigs(cores, policy=kind(), aging_ns=5 * MS)
    busy = [Steps() for _ in range(cores)]
    tasks = [rig.submit(call, MEDIUM) for call in busy]
    for call in busy:
        call.reached()
    calls = [Steps(permits=1) for _ in range(12)]
    tasks += [
        rig.submit(call, (LOW, MEDIUM, HIGH)[number % 3]) for number, call in enumerate(calls)
    ]
    for call in busy:
        call.permit()
    for task in tasks:
        wait(task)
    assert [call.results for call in busy + calls] == [[1]] * len(tasks)
    found = rig.workers.statistics()
    assert (found.scheduler.policy, found.scheduler.policy_failures) == ("default", 1)
    assert f"policy {kind.name!r}" in found.scheduler.policy_failure
    assert found.scheduler.queued == (0, 0, 0)
    until(lambda: f"policy {kind.name!r}" in caplog.text)
    assert "the default rule goes on in its place" in caplog.text


def test_a_policy_that_cannot_begin_is_told_too(
    rigs: Rigs, caplog: pytest.LogCaptureFixture
) -> None:
    class Unable(Bad):
        def reset(self, servers: int) -> None:
            if servers == 3:
                raise ValueError("three are too many")
            super().reset(servers)

    rig = rigs(3, policy=Unable())
    wait(rig.submit(Steps(permits=1), LOW))
    until(lambda: "three are too many" in caplog.text)
    assert rig.workers.statistics().scheduler.policy == "default"


def test_low_is_kept_off_the_cores_again_after_a_failure(rigs: Rigs) -> None:
    """The default rule is whole again: LOW has a set of threads of its own."""
    rig = rigs(1, policy=Bad())
    first, low, high = Steps(), Steps(), Steps()
    tasks = [rig.submit(first, MEDIUM)]
    first.reached()
    tasks += [rig.submit(low, LOW), rig.submit(high, HIGH)]
    rig.workers._scheduler._governed.policy.good = 0  # type: ignore[union-attr]  # its next answer is bad
    first.permit()
    high.reached()
    assert not low.threads
    high.permit()
    low.reached()
    assert low.threads[0].startswith("nnasync-low")
    low.permit()
    for task in tasks:
        wait(task)
    assert tasks[0].deadline_ns == NEVER_NS
