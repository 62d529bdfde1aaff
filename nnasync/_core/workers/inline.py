"""The inline lane: executions on the caller's thread, within what its turn of the loop allows.

Which executions those are is told by `admission`, to which this brings what is known: the estimate,
the turn (`turns`), the workers. Most are so short that no hop is worth it; for them a few
comparisons decide. HIGH that finds all cores taken by executions goes inline as long as the loop is
not held up for more than the stall budget: a thread would have to win a core twice, to run and to
be heard of.

Executions of clients of a service run on threads of their bursts that way, beside the workers. They
count against their client's share and, while they run, against the budget of cores: where no core
is free, or another client that waits has had less, they take their place in the queue.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Wakeup, current_task
from nnasync._core.words import until_deadline
from nnasync._core.workers.admission import (
    CALL_NS,
    NEXT_TURN,
    RETURN,
    RUN,
    SPREAD,
    WORKER,
    Admission,
    delay_ns,
    loop_limit_ns,
    may_hold_loop,
    pays_to_spread,
    quickest,
)
from nnasync._core.workers.refusals import stopped
from nnasync._core.workers.running import Load, Running
from nnasync._core.workers.task import Call, Given, StopFlag, Task, contained, shielded
from nnasync._core.workers.turns import NO_TASK, Turn, Turns
from nnasync.errors import (
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    because,
)
from nnasync.hal import Priority
from nnasync.machine.decisions import Decisions
from nnasync.scheduler import NEVER_NS, Estimate, Scheduler
from nnasync.tracing import Tracer

_WEIGHED_EVERY = 8
_TRIFLE = 1 / 4
_SELDOM, _LESS_OFTEN = 0x2000, 0x4000
"""An estimate learns from one in eight runs that are trifles, and from one in four of a network
that is known well: what it learns from finds the caches full of something else after each run."""
_STEP, _ALL = 40_503, 0xFFFF
"""Which ones these are: multiples of the golden ratio fall evenly into any part of a circle.

So also where runs take turns: among every third or fourth one there are as many as among all.
"""
_WELL_KNOWN = 64
_UNUSUAL = 2.0


class InlineLane:
    """Decides what may run on the calling thread, and runs it; one per runtime."""

    def __init__(
        self,
        scheduler: Scheduler,
        lock: threading.Lock,
        tracer: Tracer,
        machine: Decisions,
        *,
        inline_budget_ns: int,
        stall_budget_ns: int,
        servers: int,
        on_workers: Running,
        load: Callable[[Priority], Load],
    ) -> None:
        """Takes `lock`, that of the scheduler, and what runs on workers.

        `servers` is how many workers may be busy beside the thread of the loop, `load` tells what
        those have to do that matters to a priority.
        """
        self.turns = Turns(stall_budget_ns)
        self.runs = self.ns = self.running = self.beside = 0
        self.closed = False
        self._scheduler = scheduler
        self.queued = scheduler.totals
        self._lock = lock
        self._tracer = tracer
        self._machine = machine
        self.hop_ns = machine.hop_ns
        self.launch_budget_ns = machine.launch_budget_ns
        """A launch runs on the caller's thread only if it takes less than waking another one."""
        self._inline_budget_ns = inline_budget_ns
        self._stall_budget_ns = stall_budget_ns
        # An application that allows more than the stall budget has said what is too long.
        self._far_ns = max(2 * stall_budget_ns, inline_budget_ns)
        self.servers = servers
        self._on_workers = on_workers
        self._load = load
        self._limits_ns = [loop_limit_ns(priority, inline_budget_ns) for priority in Priority]
        # What is shorter may hold the loop, whatever it did before.
        self._surely_ns = [RETURN * limit_ns for limit_ns in self._limits_ns]
        self._spread_from_ns = float(machine.spread_from_ns) if servers else math.inf
        self.short_ns = min(*self._surely_ns, self._spread_from_ns)
        # How much shorter it is decides nothing, so one in eight of such runs tells enough.
        self._trifle_ns = _TRIFLE * self.short_ns
        self.calm_ns = RETURN * self._far_ns

    def close(self) -> None:
        """Stops inline runs: no execution is short enough from now on."""
        self.closed = True
        self.calm_ns = 0.0

    def admission(
        self,
        priority: Priority,
        estimate: Estimate,
        budget_ns: float,
        client: int = 0,
        deadline_ns: int = NEVER_NS,
        *,
        arrives: bool = True,
    ) -> Admission:
        """Returns where an execution runs; this thread only if it takes `budget_ns` at most.

        `arrives` is whether it is a call's first question, which counts for what is usual.
        """
        best_ns, here, queued = estimate.best_ns, self.turns.here, self.queued
        if (
            best_ns < self.short_ns
            and estimate.high_ns < self.calm_ns
            and best_ns <= budget_ns
            and here.spent_ns + best_ns <= here.budget_ns
            and not (queued[1] or queued[2] or here.waiting or self.closed or client)
        ):
            return RUN
        if (
            not estimate.samples
            or best_ns > budget_ns
            or self.closed
            or (any(queued) and self._scheduler.waits_above(priority, client))
            or (client and not self._is_turn_of(client))
        ):
            return WORKER
        who = id(current_task()) if arrives else NO_TASK
        if arrives and (answer := here.answered(who, estimate, deadline_ns)) is not None:
            return answer
        if not self._may_hold_loop(priority, estimate, deadline_ns):
            return WORKER
        has_room = not here.must_wait(priority, best_ns)
        if best_ns < self._spread_from_ns or client:
            return RUN if has_room else NEXT_TURN
        load = self._load(priority)
        if arrives:
            here.arrive(who, others_run=load.is_company, busy=load.busy)
        admission = self._quickest(priority, estimate, here, load, deadline_ns, has_room=has_room)
        return here.answer(estimate, deadline_ns, admission) if arrives else admission

    def runs_now(self, priority: Priority, estimate: Estimate, here: Turn) -> bool:
        """Returns whether an execution that is worth a hop surely runs here now.

        That is where nothing is beside it, and where those in company run one after the other. It
        counts as its arrival.
        """
        if self._on_workers.busy:
            return False
        if estimate.best_ns >= self._surely_ns[priority]:
            return False
        who = id(current_task())
        if here.company.is_usual:
            if estimate.samples - estimate.weighed_at >= _WEIGHED_EVERY:
                self._pays_to_spread(estimate, here)
            here.is_shared = estimate.spreads
            if estimate.spreads:
                return False
        elif here.spent_ns > 0 and here.first != who:
            return False
        here.arrive(who, others_run=False)
        estimate.is_beside = False
        return True

    def elsewhere(
        self, priority: Priority, estimate: Estimate, here: Turn, deadline_ns: int = NEVER_NS
    ) -> Admission | None:
        """How an execution that does not run here now is queued, where that is certain; else None.

        WORKER where this thread must not run it. SPREAD, which is for whoever is free first, this
        thread or a worker: in company, where both may run it, several are better side by side, and
        no deadline hangs on which of both it is. It counts as its arrival.
        """
        is_short = estimate.best_ns < self._surely_ns[priority] and estimate.high_ns < self.calm_ns
        if not estimate.samples or not (
            is_short or self._may_hold_loop(priority, estimate, deadline_ns)
        ):
            here.leave()
            return WORKER
        if (
            not here.company.is_usual
            or deadline_ns != NEVER_NS
            or self._scheduler.only is None
            or priority is Priority.LOW
            or estimate.best_ns < self._spread_from_ns
        ):
            return None
        if estimate.samples - estimate.weighed_at >= _WEIGHED_EVERY:
            self._pays_to_spread(estimate, here)
        here.is_shared = estimate.spreads
        if not estimate.spreads:
            return None
        here.company.note(has_others=self.beside > 0, others=self.beside)
        here.leave()
        return SPREAD

    def run(
        self,
        call: Call,
        estimate: Estimate,
        deadline_ns: int,
        name: str,
        here: Turn,
        given: Given = None,
        *,
        is_alone: bool = False,
    ) -> int:
        """Runs a call on the calling thread, whose turn is `here`, and returns its duration.

        `is_alone` is whether surely nothing runs beside it. Raises MissedDeadlinePersistent before,
        MissedDeadlineTransient after the run, and whatever the device raises as a typed error.
        """
        started_ns = now_ns()
        # Whichever equals it is never as well: it is the quicker question.
        is_timed = deadline_ns is not NEVER_NS
        if is_timed and started_ns + estimate.floor_ns > deadline_ns:
            here.spend(0.0)  # Who asks again and again must let the loop turn some time, too.
            raise _refused(estimate, deadline_ns - started_ns)
        try:
            stop = _ALONE if is_alone else _UNSTOPPED
            finished = call.run(stop) if given is None else call.run(stop, given)
        except BaseException as error:
            here.spend(now_ns() - started_ns)
            shielded(call.rewind)
            if not isinstance(error, Exception):
                raise
            failure = contained(error, name)
            raise failure from failure.__cause__
        if not finished:
            here.spend(now_ns() - started_ns)
            shielded(call.rewind)
            raise stopped(name)
        ended_ns = now_ns()
        duration_ns = ended_ns - started_ns
        took_ns = duration_ns * 1.0
        if here.spent_ns > 0.0:
            here.spent_ns += took_ns + CALL_NS
        else:
            here.spend(took_ns)
        self.runs, self.ns = self.runs + 1, self.ns + duration_ns
        trifle_ns, high_ns, samples = self._trifle_ns, estimate.high_ns, estimate.samples
        place = samples * _STEP & _ALL
        if (place > _SELDOM and took_ns < trifle_ns and high_ns < trifle_ns) or (
            place > _LESS_OFTEN and samples > _WELL_KNOWN and took_ns < _UNUSUAL * high_ns
        ):
            estimate.samples = samples + 1
        else:
            estimate.observe(took_ns)
            if took_ns >= self._spread_from_ns:
                estimate.learn_manner(took_ns)
        if hooks := self._tracer.inline_run:
            for hook in hooks:
                hook(name, started_ns, ended_ns)
        if is_timed and ended_ns > deadline_ns:
            raise _too_late(ended_ns - deadline_ns)
        return duration_ns

    def run_for(
        self,
        client: int,
        call: Call,
        estimate: Estimate,
        deadline_ns: int,
        name: str,
        given: Given = None,
    ) -> int:
        """Runs a call as `run` does, and charges it to a client's share.

        0 is the application itself.
        """
        here = self.turns.here
        if not client:
            return self.run(call, estimate, deadline_ns, name, here, given)
        with self._lock:
            self.running += 1
        began_ns = now_ns()
        try:
            return self.run(call, estimate, deadline_ns, name, here, given)
        finally:
            self._charge(client, now_ns() - began_ns)

    def warming_up(self) -> Callable[[], None]:
        """Begins warm-up runs on this thread, which count only for the estimate.

        Call it before the runs, and call the function that it returns after them, without awaiting
        anything in between.
        """
        here, runs, ns = self.turns.here, self.runs, self.ns
        spent_ns = here.spent_ns

        def forget() -> None:
            self.runs, self.ns, here.spent_ns = runs, ns, spent_ns

        return forget

    def _may_hold_loop(self, priority: Priority, estimate: Estimate, deadline_ns: int) -> bool:
        """Whether an execution may run on the thread of the loop, be it now or later.

        HIGH that finds all cores taken may, up to the stall budget.
        """
        best_ns, high_ns = estimate.best_ns, estimate.high_ns
        limit_ns = self._limits_ns[priority]
        estimate.holds_loop = may_hold_loop(
            best_ns, high_ns, limit_ns, self._far_ns, did=estimate.holds_loop
        )
        if estimate.holds_loop or (
            priority is Priority.HIGH
            and self._inline_budget_ns > 0
            and best_ns <= self._stall_budget_ns
            and high_ns <= self._far_ns
            and self._is_full()
        ):
            return True
        if deadline_ns != NEVER_NS:
            left_ns, lag_ns, _ = _until(deadline_ns)
            if lag_ns + best_ns > left_ns:
                estimate.try_here_again()  # It is heard of too late from a worker.
        return False

    def _quickest(
        self,
        priority: Priority,
        estimate: Estimate,
        here: Turn,
        load: Load,
        deadline_ns: int,
        *,
        has_room: bool,
    ) -> Admission:
        """Returns where an execution that may hold the loop, and is worth a hop, ends soonest."""
        left_ns, lag_ns, wakeup = _until(deadline_ns)
        waiting, ahead_ns = here.ahead(priority)
        servers = self._servers_for(estimate, here, load)
        admission = quickest(
            self._machine,
            run_ns=estimate.best_ns,
            worker_run_ns=max(estimate.worker_ns, estimate.best_ns),
            has_room=has_room,
            waiting=waiting,
            ahead_ns=ahead_ns,
            delays_ns=delay_ns(estimate.best_ns, load.left_ns),
            expects_company=here.company.is_usual,
            free_workers=servers - load.busy,
            backlog_ns=load.backlog_ns,
            servers=servers,
            # What others have run on workers is heard of when the loop turns.
            others_end=load.is_company and here.spent_ns > 0,
            left_ns=left_ns,
            lag_ns=lag_ns,
        )
        if wakeup is not None and lag_ns > 0 and admission is RUN:
            wakeup.measure_lag()  # Else nothing would, where nothing is left to workers for it.
        if admission is not SPREAD and here.is_shared:
            estimate.try_worker_again()
        return admission

    def _servers_for(self, estimate: Estimate, here: Turn, load: Load) -> int:
        """Returns over how many workers executions may be spread, as measured for both ways."""
        company = here.company
        is_shared = company.is_usual or load.busy > 0
        if is_shared and (load.is_company or not load.busy):
            is_shared = self._pays_to_spread(estimate, here)
        else:
            here.is_shared = True
        estimate.is_beside = is_shared
        return self.servers if here.is_shared else 0

    def _pays_to_spread(self, estimate: Estimate, here: Turn) -> bool:
        estimate.weighed_at = estimate.samples
        here.is_shared = estimate.spreads = pays_to_spread(
            self._machine,
            alone_ns=estimate.alone_ns,
            beside_ns=estimate.beside_ns,
            worker_ns=estimate.worker_ns,
            servers=self.servers,
            others=here.company.others,
            did=estimate.spreads,
        )
        return here.is_shared

    def ran(self, task: Task, duration_ns: int, here: Turn, *, finished: bool) -> None:
        """Accounts for a run of a queued task that the thread of a loop has taken."""
        here.spend(duration_ns)
        self.runs += task.is_counted
        self.ns += duration_ns * task.is_counted
        if finished:
            task.estimate.observe_beside(task.active_ns)

    def _is_full(self) -> bool:
        """Returns whether executions occupy all cores."""
        return self._on_workers.busy + self.running > self.servers

    def _is_turn_of(self, client: int) -> bool:
        with self._lock:
            return not self._is_full() and not self._scheduler.is_over(client)

    def _charge(self, client: int, duration_ns: int) -> None:
        with self._lock:
            self.running -= 1
            self._scheduler.spent(client, duration_ns + int(CALL_NS), runs=1)


def _until(deadline_ns: int) -> tuple[float, float, Wakeup | None]:
    """Returns the time to a deadline, how late the loop hears of other threads, and its wake-up.

    Without a deadline the lag is not measured.
    """
    if deadline_ns == NEVER_NS:
        return math.inf, 0.0, None
    now, wakeup = now_ns(), Wakeup.here()
    return deadline_ns - now, 0.0 if wakeup is None else wakeup.lag.estimate_ns(now), wakeup


def _refused(estimate: Estimate, left_ns: int) -> MissedDeadlinePersistent:
    """Returns the error of a call whose deadline cannot be met, and notes the refusal."""
    needed_ns = estimate.floor_ns
    estimate.refused()
    return because(
        "admission",
        MissedDeadlinePersistent(
            f"{until_deadline(left_ns)}, and the execution needs at least {needed_ns / 1e6:.3f} ms"
        ),
    )


def _too_late(late_ns: int) -> MissedDeadlineTransient:
    """Returns the error of an execution that ended so long after its deadline."""
    text = f"the execution ended {late_ns / 1e6:.3f} ms after its deadline"
    return MissedDeadlineTransient(text)


_UNSTOPPED = StopFlag(falls_back=False)
_ALONE = StopFlag(falls_back=False)
_ALONE.has_others = False
