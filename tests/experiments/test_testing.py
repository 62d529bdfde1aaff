"""The contract test: every policy that comes with nnasync passes, and broken ones do not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis.errors import Flaky, FlakyFailure

from nnasync.experiments.testing import check_policy_contract
from nnasync.hal import NEVER_NS
from nnasync.scheduler import Job, Policy, PolicyError, policy_names, resolve_policy
from nnasync.scheduler.policies import FirstComeFirstServed, Reservation, Reservations

MS = 1_000_000
RESERVED = {0: Reservation(2 * MS, 10 * MS), 1: Reservation(30 * MS, 100 * MS)}

MADE: dict[str, Callable[[], Policy | None]] = {
    name: partial(resolve_policy, name) for name in policy_names() if name != "reservations"
}
MADE |= {
    f"reservations, is_hard={is_hard}": partial(Reservations, RESERVED, is_hard=is_hard)
    for is_hard in (False, True)
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_what_comes_with_nnasync(make: Callable[[], Policy | None]) -> None:
    check_policy_contract(make, examples=15, steps=40)


class Losing(FirstComeFirstServed):
    """Every fifth job is forgotten."""

    def push(self, job: Job, now_ns: int) -> None:
        if job.sequence % 5 != 4:
            super().push(job, now_ns)


class Twice(FirstComeFirstServed):
    def next(self, now_ns: int) -> Job | None:
        job = super().next(now_ns)
        if job is not None and job.sequence == 1:
            self.push(job, now_ns)
        return job


class Deaf(FirstComeFirstServed):
    """What is withdrawn is handed out still."""

    def remove(self, job: Job) -> None:
        pass


class Idle(FirstComeFirstServed):
    """One core is left idle, without a word of that."""

    out = 0

    def next(self, now_ns: int) -> Job | None:
        if self.out:
            return None
        self.out += 1
        return super().next(now_ns)

    def ran(self, job: Job, duration_ns: int) -> None:
        self.out -= 1


class ForEver(FirstComeFirstServed):
    """It may leave a core idle, and does so for ever."""

    is_work_conserving = False

    def next(self, now_ns: int) -> Job | None:
        return None

    def due_ns(self, now_ns: int) -> int:
        return now_ns + 1


class Timeless(ForEver):
    def due_ns(self, now_ns: int) -> int:
        return NEVER_NS


class Raising(FirstComeFirstServed):
    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        return running[len(running)]


class Strange(FirstComeFirstServed):
    """It stops what does not run."""

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        return self._first()[-1] if len(self) else None  # type: ignore[index]  # one is queued


class Chance(FirstComeFirstServed):
    def key(self, job: Job, now_ns: int) -> float:
        return random.random()


class Remembering(FirstComeFirstServed):
    """It counts over all objects of its kind."""

    count = itertools.count()

    def key(self, job: Job, now_ns: int) -> float:
        return next(self.count) % 3


class Hoarding(FirstComeFirstServed):
    """It does not forget."""

    is_new = True

    def reset(self, servers: int) -> None:
        if self.is_new:
            super().reset(servers)
            self.is_new = False
        else:
            self.push(Job(0, None), 0)  # type: ignore[arg-type]  # nobody's

    name = "hoarding"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Losing, "it gave None while|was lost|stays idle"),
        (Twice, "handed out already|handed out twice"),
        (Deaf, "which is not queued"),
        (Idle, "it gave None while"),
        (ForEver, "kept|for ever"),
        (Timeless, "no time to ask again"),
        (Raising, "preempted: it raised IndexError"),
        (Strange, "which is not among those that run"),
        (Chance, "two equal policies .* differ"),
        (Hoarding, "a job of nobody"),
    ],
)
def test_what_breaks_the_contract(make: Callable[[], Policy], text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        check_policy_contract(make, shortens=False)


def test_what_depends_on_more_than_it_is_told() -> None:
    """It differs from time to time, so it may be hypothesis that notices first."""
    with pytest.raises((PolicyError, Flaky, FlakyFailure)):
        check_policy_contract(Remembering, shortens=False)
