"""The contract of a policy as a test, for those who write one.

    def test_my_policy() -> None:
        check_policy_contract(MyPolicy)

`hypothesis` (the extra `testing`) makes up sequences of what a scheduler asks and tells: jobs of
all priorities, lengths and deadlines are submitted, handed out, stopped and queued again, cancelled
and too late, at any moment and in any order. Two objects of the policy hear the same, so that one
with a clock, chance or memory outside of itself gives itself away. What is looked at: nothing
raises, no job is lost, handed out twice or without being queued; a core stays idle only under a
policy that says that it may, and only until the time that it names; and after `reset` everything is
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import NEVER_NS, Priority
from nnasync.scheduler import Estimate, Job, Policy, PolicyError, Scheduler

__all__ = ["check_policy_contract"]

_ALL = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)
_LENGTHS_NS = (1_000, 1_000_000, 20_000_000, 3_000_000_000)
_ASKED_AT_MOST = 10_000


def check_policy_contract(
    make: Callable[[], Policy | None],
    *,
    clients: int = 3,
    examples: int = 100,
    steps: int = 50,
    shortens: bool = True,
) -> None:
    """Tests the policies that `make` makes against the contract; each call makes an equal one.

    Jobs are of so many `clients`; 0 is the application itself. None stands for the default rule.
    It tries as many `examples` of so many `steps` at most. Raises PolicyError where one breaks the
    contract, and prints it, after it was made as short as may be if it `shortens`; an error of
    hypothesis where the same sequence does not break it each time.
    """

    class Machine(_Contract):
        def __init__(self) -> None:
            super().__init__(make, clients)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shortens else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


class _Contract(RuleBasedStateMachine):
    """Tells two equal policies the same, and compares their answers with what is allowed."""

    def __init__(self, make: Callable[[], Policy | None], clients: int) -> None:
        super().__init__()
        self._make = make
        self._clients = clients
        self._now_ns = 0

    @initialize(servers=st.integers(1, 3))
    def begin(self, servers: int) -> None:
        """Makes the policies for so many servers."""
        self._servers = servers
        self._sides = [_Side(self._make(), servers, self._clients) for _ in range(2)]

    @rule(
        priority=st.sampled_from(_ALL),
        length_ns=st.sampled_from(_LENGTHS_NS),
        due_in_ns=st.sampled_from((None, -1, *_LENGTHS_NS)),
        client=st.integers(0, 2),
    )
    def submit(
        self, priority: Priority, length_ns: int, due_in_ns: int | None, client: int
    ) -> None:
        """Submits a job; a policy may refuse one with a deadline."""
        deadline_ns = NEVER_NS if due_in_ns is None else self._now_ns + due_in_ns
        client %= self._clients
        self._both(lambda s: s.submit(priority, length_ns, deadline_ns, client, self._now_ns))

    @precondition(lambda self: len(self._sides[0].running) < self._servers)
    @rule()
    def hand_out(self) -> None:
        """Asks for a job, because a core is free."""
        self._both(lambda side: side.next(self._now_ns))

    @precondition(lambda self: self._sides[0].running)
    @rule(
        which=st.integers(0, 2), ran_ns=st.sampled_from((0, *_LENGTHS_NS)), is_stopped=st.booleans()
    )
    def end(self, which: int, ran_ns: int, is_stopped: bool) -> None:
        """Ends a running job, cancels it, or stops and queues it again."""
        self._now_ns += ran_ns
        self._both(lambda side: side.end(which, ran_ns, self._now_ns, is_stopped=is_stopped))

    @precondition(lambda self: self._sides[0].queued)
    @rule(which=st.integers(0, 100))
    def withdraw(self, which: int) -> None:
        """Takes a queued job out, because it is cancelled or its deadline has passed."""
        self._both(lambda side: side.withdraw(which))

    @precondition(lambda self: self._sides[0].running)
    @rule()
    def ask_who_gives_way(self) -> None:
        """Asks which running job gives way, as all cores are taken."""
        self._both(lambda side: side.preempted(self._now_ns))

    @rule(by_ns=st.sampled_from((1, *_LENGTHS_NS)))
    def pass_time(self, by_ns: int) -> None:
        """Advances the time while nothing happens."""
        self._now_ns += by_ns
        self._both(lambda side: side.due_ns(self._now_ns))

    def teardown(self) -> None:
        """Hands out everything that is left, then begins another run, which must find nothing."""
        for side in getattr(self, "_sides", ()):
            side.drain(self._now_ns)
            side.begin_again(self._servers)

    def _both(self, ask: Callable[[_Side], object]) -> None:
        one, other = map(ask, self._sides)
        if one != other:
            raise PolicyError(
                f"two equal policies that were told the same differ, {one} and {other}: they go by "
                "something else than the jobs and the time"
            )


class _Side:
    """One policy in its scheduler, with the checks of both; jobs are known by numbers."""

    def __init__(self, policy: Policy | None, servers: int, clients: int) -> None:
        self._policy = policy
        self._scheduler = Scheduler(servers=servers, queue_limit=10**6, policy=policy)
        for _ in range(clients - 1):
            self._scheduler.open_client(queue_limit=10**6)
        self._estimates = {length_ns: Estimate() for length_ns in _LENGTHS_NS}
        self._numbers: dict[Job, int] = {}
        self.queued: list[Job] = []
        self.running: list[Job] = []
        self._check()

    def submit(
        self, priority: Priority, length_ns: int, deadline_ns: int, client: int, now_ns: int
    ) -> str:
        job = Job(priority, self._estimates[length_ns], deadline_ns, client)
        self._numbers[job] = len(self._numbers)
        try:
            self._scheduler.submit(job, now_ns)
        except MissedDeadlinePersistent as error:
            self._check()
            return f"refusal of job {self._numbers[job]}: {error}"
        self._check()
        self.queued.append(job)
        return "no refusal"

    def next(self, now_ns: int) -> str:
        job = self._scheduler.next(now_ns, _ALL)
        self._check()
        for late in self._scheduler.take_expired():
            self.queued.remove(late)
        if job is None:
            if self.queued and self._is_work_conserving:
                raise PolicyError(f"a core stays idle while {len(self.queued)} jobs are queued")
            return "no job"
        self.queued.remove(job)
        self.running.append(job)
        return f"job {self._numbers[job]}"

    def end(self, which: int, ran_ns: int, now_ns: int, *, is_stopped: bool) -> None:
        job = self.running.pop(which % len(self.running))
        job.active_ns += ran_ns
        if is_stopped:
            self._scheduler.requeue(job, now_ns)
            self.queued.append(job)
        else:
            job.estimate.observe(max(1, job.active_ns))
        self._scheduler.ran(job, ran_ns)
        self._check()

    def withdraw(self, which: int) -> None:
        job = self.queued.pop(which % len(self.queued))
        if not self._scheduler.withdraw(job):
            raise PolicyError(f"job {self._numbers[job]} was lost: it is not queued any more")
        self._check()

    def preempted(self, now_ns: int) -> str:
        job = self._scheduler.preempted(self.running, now_ns)
        self._check()
        return "nobody" if job is None else f"job {self._numbers[job]}"

    def due_ns(self, now_ns: int) -> int:
        due_ns = self._scheduler.look_again_ns(now_ns)
        self._check()
        return due_ns

    def drain(self, now_ns: int) -> None:
        """Hands everything out, one after the other.

        Advances the time where the policy asks for it.
        """
        while self.running:
            self.end(0, 1, now_ns, is_stopped=False)
        for _ in range(_ASKED_AT_MOST):
            if not self.queued:
                break
            if self.next(now_ns) != "no job":
                self.end(0, 1, now_ns, is_stopped=False)
            elif self.queued:
                now_ns = self.due_ns(now_ns)
        else:
            raise PolicyError(f"{len(self.queued)} jobs are kept back for ever")
        if self._scheduler.next(now_ns, _ALL) is not None:
            raise PolicyError("a job was handed out twice")
        self._check()

    def begin_again(self, servers: int) -> None:
        """Begins another run with the same policy; nothing of the first one may be left in it."""
        again = _Side(self._policy, servers, clients=1)
        again.submit(Priority.MEDIUM, _LENGTHS_NS[0], NEVER_NS, 0, 0)
        again.drain(0)

    @property
    def _is_work_conserving(self) -> bool:
        return self._policy is None or self._policy.is_work_conserving

    def _check(self) -> None:
        if self._scheduler.failure is not None:
            raise self._scheduler.failure
