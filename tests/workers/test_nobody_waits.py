"""Whatever is queued has somebody who comes for it, whichever thread goes on when.

The threads are those of `Workers`, and run their own code, but one at a time: each stops where it
is about to ask for work, where it parks, and in the call that it runs, and goes on when hypothesis
says so. So every interleaving of these stops can be had again. What must hold: where no thread is
on its way, work is queued only while as many threads run as may; and when calls come to their ends,
everything is answered.
"""

from __future__ import annotations

import enum
import functools
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nnasync._core.workers import Given, StopFlag, Task, Workers, attempt, threads
from nnasync._core.workers.running import REGULAR
from nnasync._core.workers.worker_thread import Worker
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import NEVER_NS, Estimate, resolve_policy
from nnasync.tracing import Tracer
from tests.rigs import ManualWatchdog
from tests.workers.steering import HIGH, LOW, MEDIUM, MS, PATIENCE_S

AGING_NS = 2_000 * MS


class Stop(enum.Enum):
    """Where a thread waits until it is told to go on."""

    COMES = "about to ask for work"
    PARKED = "parked"
    RUNS = "in a call"
    OVER = "ended"


class Scripted:
    """A thread of the workers, which goes on to its next stop when it is told."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.at = Stop.COMES
        self.finishes = True
        self.turn, self.begun = threading.Semaphore(0), threading.Semaphore(0)
        self.has_begun = False
        self.stop: StopFlag | None = None

    @property
    def is_coming(self) -> bool:
        """Whether it would ask for work if it went on."""
        is_woken = self.at is Stop.PARKED and not self.worker.signal.locked()
        return self.at is Stop.COMES or is_woken


def submit(workers: Workers, task: Task, _: Fence) -> None:
    """Submit a task when another one has ended."""
    workers.submit(task)


class Waiting(RuleBasedStateMachine):
    """Submits, cancels, lets threads go on and time pass, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.scripted: dict[Worker, Scripted] = {}
        self.tasks: list[Task] = []
        self.back = threading.Semaphore(0)
        self.here = threading.local()
        self.now_ns = AGING_NS
        self.patches = pytest.MonkeyPatch()
        take = Workers._take
        machine = self

        def begin(worker: Worker, name: str, work: Any, starter: object) -> None:
            machine.begin(worker, work)

        def park(worker: Worker) -> None:
            machine.hand_back(Stop.PARKED)
            assert worker.signal.acquire(blocking=False)

        def taken(workers: Workers, worker: Worker) -> Task | None:
            machine.hand_back(Stop.COMES)
            return take(workers, worker)

        self.patches.setattr(Worker, "begin", begin)
        self.patches.setattr(Worker, "park", park)
        self.patches.setattr(Workers, "_take", taken)
        for module in (threads, attempt):
            self.patches.setattr(module, "now_ns", lambda: self.now_ns)

    @initialize(cores=st.integers(1, 3), policy=st.sampled_from([None, None, "edf"]))
    def open(self, cores: int, policy: str | None) -> None:
        self.cores = cores
        self.watchdog = ManualWatchdog()
        self.workers = Workers(
            cores=cores,
            inline_budget_ns=MS,
            stall_budget_ns=MS,
            queue_limit=1000,
            watchdog=self.watchdog,
            tracer=Tracer(),
            aging_ns=AGING_NS,
            policy=resolve_policy(policy),
        )

    # -- threads, one at a time

    def begin(self, worker: Worker, work: Any) -> None:
        """Start a thread, which stops at once."""
        scripted = self.scripted[worker] = Scripted(worker)

        def body() -> None:
            self.here.scripted = scripted
            try:
                work(worker)
            finally:
                scripted.at = Stop.OVER
                self.back.release()

        worker.thread = threading.Thread(target=body, name="nnasync-scripted", daemon=True)
        worker.thread.start()
        assert scripted.begun.acquire(timeout=PATIENCE_S), "a thread never asks for work"

    def hand_back(self, at: Stop) -> Scripted:
        """Stop the calling thread until it is told to go on."""
        scripted: Scripted = self.here.scripted
        scripted.at = at
        # Another thread may have started this one, and waits for its first stop.
        back = self.back if scripted.has_begun else scripted.begun
        scripted.has_begun = True
        back.release()
        scripted.turn.acquire()
        return scripted

    def go_on(self, scripted: Scripted) -> None:
        """Let a thread go on to its next stop."""
        scripted.turn.release()
        assert self.back.acquire(timeout=PATIENCE_S), "a thread waits for what nobody does"

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """What all tasks call: it ends, or stops if it was asked to, when it is told."""
        self.here.scripted.stop = stop
        return self.hand_back(Stop.RUNS).finishes

    def rewind(self) -> None:
        """Nothing is kept of a stopped run."""

    def those(self, at: Stop) -> list[Scripted]:
        return [each for each in self.scripted.values() if each.at is at]

    def coming(self) -> list[Scripted]:
        return [each for each in self.scripted.values() if each.is_coming]

    def asked_to_stop(self) -> list[Scripted]:
        return [
            each for each in self.those(Stop.RUNS) if each.stop is not None and each.stop.raised
        ]

    # -- what happens

    def task(self, priority: Priority, is_spread: bool) -> Task:
        task = Task(self, priority, Estimate(), NEVER_NS, f"task {len(self.tasks)}")
        task.is_spread = is_spread and priority is not LOW
        self.tasks.append(task)
        return task

    @rule(priority=st.sampled_from((HIGH, MEDIUM, LOW)), is_spread=st.booleans())
    def submit(self, priority: Priority, is_spread: bool) -> None:
        self.workers.submit(self.task(priority, is_spread))

    @precondition(lambda self: any(not task.fence.done for task in self.tasks))
    @rule(
        which=st.integers(0, 100),
        priority=st.sampled_from((HIGH, MEDIUM, LOW)),
        is_spread=st.booleans(),
        count=st.integers(1, 3),
    )
    def submit_behind(self, which: int, priority: Priority, is_spread: bool, count: int) -> None:
        """Tasks are submitted by the thread that ends another one."""
        open_ones = [task for task in self.tasks if not task.fence.done]
        first = open_ones[which % len(open_ones)]
        for _ in range(count):
            then = self.task(priority, is_spread)
            first.fence.add_callback(functools.partial(submit, self.workers, then))

    @precondition(lambda self: self.coming())
    @rule(which=st.integers(0, 100))
    def ask(self, which: int) -> None:
        """A thread that is on its way asks for work."""
        coming = self.coming()
        self.go_on(coming[which % len(coming)])

    @precondition(lambda self: self.those(Stop.RUNS))
    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        """A call ends."""
        running = self.those(Stop.RUNS)
        running[which % len(running)].finishes = True
        self.go_on(running[which % len(running)])

    @precondition(lambda self: self.asked_to_stop())
    @rule(which=st.integers(0, 100))
    def give_way(self, which: int) -> None:
        """A call stops, as it was asked to."""
        asked = self.asked_to_stop()
        asked[which % len(asked)].finishes = False
        self.go_on(asked[which % len(asked)])

    @precondition(lambda self: self.tasks)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        self.workers.abandon(self.tasks[which % len(self.tasks)])

    @rule(by_ns=st.sampled_from((1, 150 * MS, 2 * AGING_NS)))
    def pass_time(self, by_ns: int) -> None:
        """Time passes, and alarms go off: work is due for its age, and what hangs is given up."""
        self.now_ns += by_ns
        for alarm in list(self.watchdog.alarms):
            callback = alarm._callback
            if callback is not None and alarm.at_ns <= self.now_ns:
                self.watchdog._kill(alarm)
                callback()

    # -- what must hold

    @invariant()
    def somebody_comes(self) -> None:
        """Where no thread is on its way, as many run as may."""
        if not hasattr(self, "workers") or self.coming():
            return
        scheduler, held = self.workers._scheduler, self.workers._running.pairs()
        regular = sum(not w.lost and w.priorities is REGULAR for _, w in held)
        # What might run on the thread of a loop leaves it a core, so the next of it may wait.
        is_kept = self.workers._running.spread >= self.cores - 1 > 0
        least = self.cores - is_kept
        if scheduler.queued(REGULAR):
            assert regular >= least, f"{regular} of {self.cores} threads run, and work is queued"
        if scheduler.queued((LOW,)):
            busy = self.workers._running.busy
            assert busy >= least, f"{busy} of {self.cores} threads run, and LOW is queued"

    def teardown(self) -> None:
        """All calls come to their ends: everything is answered, and the threads end."""
        try:
            if hasattr(self, "workers"):
                self.let_all_end()
                unanswered = [task.name for task in self.tasks if not task.fence.done]
                self.workers.close()
                self.let_all_end()
                assert self.workers.join(PATIENCE_S) == 0
                self.watchdog.close()
                assert not unanswered
        finally:
            self.patches.undo()

    def let_all_end(self) -> None:
        while able := self.coming() or self.those(Stop.RUNS):
            able[0].finishes = able[0].stop is None or not able[0].stop.raised
            self.go_on(able[0])


@pytest.mark.usefixtures("no_leaks")
def test_whatever_is_queued_has_somebody_who_comes_for_it() -> None:
    run_state_machine_as_test(
        Waiting,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
