"""The worker threads, the queue in front of them, and the inline lane."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from nnasync import tracing
from nnasync._core.clock import EarliestAlarm, Watchdog, now_ns
from nnasync._core.due_turn import LONG_NS, DueTurn
from nnasync._core.endings import close_at_exit, renewed_in_child
from nnasync._core.workers.admission import Company
from nnasync._core.workers.attempt import attempted
from nnasync._core.workers.crew import Crew
from nnasync._core.workers.demotion import Demotion, LowOsPriority
from nnasync._core.workers.helper_threads import HelperThreads
from nnasync._core.workers.inline import InlineLane
from nnasync._core.workers.loop_share import LoopShare
from nnasync._core.workers.neighbors import Neighbors
from nnasync._core.workers.refusals import closed, missed, stopped, unwatched
from nnasync._core.workers.running import ALL, HANGS_AFTER_NS, LOW, REGULAR, Load, Running
from nnasync._core.workers.surroundings import Surroundings
from nnasync._core.workers.task import ABORT, GO, YIELD, Task
from nnasync._core.workers.turns import Turn
from nnasync._core.workers.worker_thread import Worker, WorkersStatistics
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    MissedDeadline,
    NNError,
    Refused,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence, FenceStatus
from nnasync.hal import Priority
from nnasync.machine.decisions import Decisions, decide
from nnasync.scheduler import AGING_NS, NEVER_NS, Job, Policy, PolicyError, Scheduler, displaced
from nnasync.tracing import Tracer, vlog
from nnasync.tracing.spans import belongs_to, leaves

logger = logging.getLogger(__name__)


class Workers:
    """The threads, the queue in front of them and the inline lane of one runtime."""

    due_turn: DueTurn | None = None
    """The one of the loop, which long executions let go first where it is late."""

    def __init__(
        self,
        *,
        cores: int,
        inline_budget_ns: int,
        stall_budget_ns: int,
        queue_limit: int,
        watchdog: Watchdog,
        tracer: Tracer,
        on_start: Callable[[Worker], object] | None = None,
        low_os_priority: LowOsPriority = False,
        low_engine_priority: bool = True,
        aging_ns: int = AGING_NS,
        machine: Decisions | None = None,
        policy: Policy | None = None,
        nicer: bool = False,
    ) -> None:
        """`machine` is what follows from its costs; `policy` None is the default rule.

        `on_start` is called on each new thread, and lowers its OS priority if it gives way, or is
        to be nicer than the loop, as threads are with `nicer` while others leave the cores alone.
        """
        self.cores, self.queue_limit, self._loop_ns = cores, queue_limit, inline_budget_ns
        self.watchdog, self.tracer, self._on_start = watchdog, tracer, on_start
        self._demotion = Demotion(low_os_priority, engines=low_engine_priority)
        limits = {"queue_limit": queue_limit, "room": queue_limit}
        self._scheduler = Scheduler(servers=cores, aging_ns=aging_ns, policy=policy, **limits)
        self._scheduler.on_failure = self._policy_failed
        self._lock = renewed_in_child(threading.Lock())
        self._running, self._live = Running(), set[Task]()
        self._neighbors = Neighbors(watchdog, self._lock, self._running, nicer=nicer)
        self._crew = Crew(cores, self._demotion, self._neighbors.niceness, self._work)
        self.inline = InlineLane(
            self._scheduler,
            self._lock,
            tracer,
            machine or decide(None, stall_budget_ns),
            inline_budget_ns=inline_budget_ns,
            stall_budget_ns=stall_budget_ns,
            servers=cores - 1,
            on_workers=self._running,
            load=self._load,
        )
        self.turns = self.inline.turns
        work = self._scheduler, self._lock, self.inline, self._running, self._crew.coming, self._run
        self.loop_share = LoopShare(*work, self._crew.idle_worker, self._low_worker)
        shared = watchdog, self._lock, self._demotion, self._running, self._crew.workers
        self._surroundings = Surroundings(*shared, lambda: self.inline.ns, self._low_worker)
        self._neighbors.on_crowd = self._demotion.have_starter
        self.helper_threads = HelperThreads(watchdog, tracer)
        belongs_to(tracer)  # Inline runs are on the thread of the loop.
        self._closed = False
        self._aging = EarliestAlarm(watchdog, self._age)
        self._policy_failed(self._scheduler.failure)
        self._hot, self._holds_back = 0, False
        self._company = Company()
        close_at_exit(self)
        self._worker_runs = self._worker_ns = self._preemptions = 0
        _log_executions(tracer)

    def is_busy(self) -> bool:
        """Whether executions run beside that of the calling thread, now or usually.

        Not where they are better one after the other. To be asked when an execution begins, since
        each time counts for what is usual.
        """
        mine, here = self._crew.here is not None, self.turns.here
        waits = here.waiting or any(self._scheduler.totals)
        has_others = self._running.busy > mine or bool(waits)
        self._company.note(has_others=has_others)
        return here.is_shared and (has_others or self._company.is_usual)

    @property
    def is_at_rest(self) -> bool:
        """Whether each thread runs something or waits for work; none is between the two."""
        return self._crew.idle_count + len(self._running) >= len(self._crew.workers)

    # -- clients

    def open_client(self, *, queue_limit: int, name: str = "") -> int:
        """Register a client that may have this many waiting executions; returns its number.

        Executions bear that number; `name` is for statistics. Clients have equal shares of the
        cores, and of the places where executions wait; priorities count within them.
        """
        with self._lock:
            return self._scheduler.open_client(queue_limit=queue_limit, name=name)

    def close_client(self, client: int) -> None:
        """Forget a client as soon as nothing of it is left; what comes later is refused."""
        with self._lock:
            self._scheduler.close_client(client)

    def spent(self, client: int, duration_ns: int) -> None:
        """Charge a client's share for work done for it other than executions."""
        with self._lock:
            self._scheduler.spent(client, duration_ns)

    # -- the queue

    def check_room(self, job: Job) -> None:
        """Raise Refused where one more execution would find no place to wait, or be too late.

        Cheap, from any thread, and true for that moment only.
        """
        with self._lock:
            self._scheduler.check_room(job, now_ns())

    def submit(self, task: Task) -> None:
        """Queue a task whose dependencies are met; raises Refused or DeviceUnavailable.

        It may get the place of another one, which is answered: see `scheduler.room`. Each execution
        that hangs on the device costs a thread, so a model of which many do is refused with
        ResourceExhaustedTransient until the device lets go of some.
        """
        task.ready_ns = now = now_ns()
        giver: Job | None = None
        try:
            with self._lock:
                if self._closed:
                    raise closed()
                if task.fence.status is not FenceStatus.PENDING:
                    return
                self._live.add(task)
                try:
                    if self._running.lost:
                        self._running.check_hanging(task)
                    giver = self._scheduler.submit(task, now)
                    worker = self._worker_for(task)
                except (Refused, DeviceUnavailable):
                    self._scheduler.withdraw(task)
                    self._live.discard(task)
                    raise
        finally:
            if giver is not None:
                self.displace(giver)
        for hook in self.tracer.task_submitted:
            hook(task)
        if task.deadline_ns != NEVER_NS:
            self.arm(task)
        if worker is not None:
            worker.wake()

    def arm(self, task: Task) -> None:
        """Have the task's deadline watched."""
        if task.deadline_ns == NEVER_NS or task.alarm is not None:
            return
        try:
            alarm = self.watchdog.arm(task.deadline_ns, lambda: self._expire(task))
        except (BadState, RuntimeError) as error:
            # The task may be running by now: it is its fence that has to tell.
            self.settle(task, unwatched(error))
            return
        task.alarm = alarm
        if task.fence.done:
            alarm.disarm()

    def hold(self, task: Task, fences: Sequence[Fence] = ()) -> None:
        """Take charge of a task that waits for `fences`, and has its place; raises as `submit`."""
        self.displace(self.take_in(task))
        for hook in self.tracer.task_waits:
            for fence in fences:
                hook(task, fence)

    def take_in(self, task: Task) -> Job | None:
        """As `hold`, but returns the task that loses its place, for `displace` to answer."""
        giver: Job | None = None
        with self._lock:
            if self._closed:
                raise closed()
            if not task.fence.done:
                giver = self._scheduler.hold(task)
                self._live.add(task)
        self.arm(task)
        return giver

    def displace(self, job: Job | None) -> None:
        """Answer an execution that gave its place up; not to be called with a lock held."""
        if isinstance(job, Task):
            self.settle(job, displaced(job))

    def submit_held(self, task: Task) -> None:
        """Queue a held task whose dependencies are met; a refusal settles it."""
        try:
            self.submit(task)
        except (Refused, DeviceUnavailable) as error:
            self.settle(task, error.with_traceback(None))

    def settle(self, task: Task, error: NNError) -> bool:
        """Answer a task with an error unless it is answered; its work is withdrawn or aborted."""
        settled = task.fence.fail(error)
        with self._lock:
            task.stop.raised = ABORT
            running = task in self._running
            if not running:
                self._scheduler.withdraw(task, is_late=isinstance(error, MissedDeadline))
                self._live.discard(task)
        if running:
            task.stop.abort_apart()
        if task.alarm is not None and (settled or not running):
            task.alarm.disarm()
        for hook in self.tracer.task_answered if settled else ():
            hook(task, error)
        if not running:
            task.release()
        elif settled and not self._closed:
            at_ns = now_ns() + HANGS_AFTER_NS
            with contextlib.suppress(BadState, RuntimeError):
                task.alarm = self.watchdog.arm(at_ns, lambda: self._write_off(task))
        return settled

    def abandon(self, task: Task) -> None:
        """Cancel a task whose waiter has gone; the device becomes free at the next operation."""
        self.settle(task, Cancelled(f"{task.name} was cancelled"))

    def expect(self, priority: Priority, model: object) -> None:
        """Note a prepared model, weakly; LOW work that runs alone gives way to its first."""
        with self._lock:
            self._demotion.expect(priority, model)
            for task, worker in self._running.pairs():
                if self._demotion.is_outdated(worker) and not task.stop.raised:
                    task.stop.raised = YIELD

    def expect_no_more(self, model: object) -> None:
        """Note that a prepared model was closed."""
        with self._lock:
            self._demotion.expect_no_more(model)

    def dismiss(self, owner: object, error: NNError) -> None:
        """Answer what is in flight of the prepared model of this owner with an error."""
        with self._lock:
            live = [task for task in self._live if task.owner is owner]
        for task in live:
            self.settle(task, error)

    def enter_fast_state(self) -> None:
        """Enter the fast state: a worker thread is started and kept ready."""
        with self._lock:
            self._hot += 1
            crew = self._crew
            if not (self._closed or crew.has_idle(REGULAR) or crew.is_full(REGULAR)):
                with contextlib.suppress(ResourceExhaustedTransient):
                    crew.start(REGULAR)

    def leave_fast_state(self) -> None:
        """Leave the fast state."""
        with self._lock:
            self._hot -= 1

    def statistics(self) -> WorkersStatistics:
        """Counts so far, and what runs now."""
        with self._lock:
            return WorkersStatistics(
                threads=len(self._crew.workers),
                running=len(self._running),
                live=len(self._live),
                hot=self._hot,
                inline_runs=self.inline.runs,
                inline_ns=self.inline.ns,
                worker_runs=self._worker_runs,
                worker_ns=self._worker_ns,
                preemptions=self._preemptions,
                quarantined=sum(task.fence.done for task in self._running),
                scheduler=self._scheduler.statistics(),
            )

    def close(self) -> None:
        """Settle everything with DeviceUnavailable and let the threads end when they can."""
        with self._lock:
            self._closed = True
            self.inline.close()
            # Dependants come after what they wait for: each shall hear of the closing itself.
            live = sorted(self._live, key=lambda task: task.launched_ns, reverse=True)
        for task in live:
            self.settle(task, closed("the runtime was closed while this was in flight"))
        with self._lock:
            self._aging.disarm()
            self._surroundings.close()
            self._neighbors.close()
            idle = self._crew.close()
        for worker in idle:
            worker.wake()
        self.helper_threads.close()
        leaves(self.tracer)

    def join(self, timeout_s: float) -> int:
        """Wait for the threads, in all at most so long; the number of those that still run."""
        end_ns = now_ns() + int(timeout_s * 1e9)
        living = Worker.join_all(self._crew.workers, end_ns)
        self.helper_threads.join(max(0.0, (end_ns - now_ns()) / 1e9))
        return living

    def _load(self, priority: Priority) -> Load:
        with self._lock:
            return self._running.load(priority, self._scheduler, now_ns(), self._loop_ns)

    # -- choosing threads; the lock is held

    def _worker_for(self, task: Task) -> Worker | None:
        is_governed = self._scheduler.is_governed
        is_low = task.priority is Priority.LOW and not is_governed
        finishing = self._crew.here
        if (
            finishing is not None
            and finishing.finishing
            and (finishing.priorities is LOW) is is_low
        ):
            finishing.finishing = False
            return None
        if is_low:
            if not self._aging.is_armed:  # Else it rings before this one is due.
                self._watch_age()
            return self._low_worker()
        if is_governed:
            self._watch_age()
        if self._running.counts[0] or task.priority > 1 or is_governed:
            self._running.make_room(task.priority, self._scheduler, self.cores, now_ns)
        servers, spread = self.inline.servers, self._running.spread
        shares = task.is_spread and self._scheduler.only is not None and servers > 0
        if shares and (spread >= servers or spread + self._crew.coming() >= servers):
            self._holds_back = True
            return None  # A core is that of the loop's thread, which runs the like of it.
        return self._crew.idle_worker(REGULAR)

    def _is_left_to_loop(self) -> bool:
        """Returns whether the next task is for the loop's thread, since workers run enough."""
        if not 0 < self.inline.servers <= self._running.spread or self._closed:
            return False
        first = self._scheduler.first(now_ns(), REGULAR)
        if not (isinstance(first, Task) and first.is_spread):
            return False
        self._holds_back = True
        return True

    def _may_start_low(self) -> bool:
        if not self._scheduler.totals[0]:
            return False
        running = self._running
        return running.busy < self.cores or running.low_is_due(self._scheduler, now_ns())

    def _low_worker(self) -> Worker | None:
        is_wanted = self._may_start_low() and self._scheduler.totals[0] > self._crew.coming(LOW)
        return self._crew.idle_worker(LOW) if is_wanted else None

    # -- aging: work that is due gets a thread, and keeps it for a while; the lock is held

    def _watch_age(self) -> None:
        """Have an alarm armed for when time alone changes what may run."""
        if not self._closed:
            self._aging.arm(self._running.look_again_ns(self._scheduler, now_ns()))

    def _policy_failed(self, failure: PolicyError | None) -> None:
        """Have the default rule begin at once, and the failure told where no lock is held."""
        self._failure = failure
        if failure is not None:
            self._aging.arm(now_ns())

    def _age(self) -> None:
        """Callback of the alarm; takes the lock."""
        woken: list[Worker | None] = []
        with self._lock:
            self._aging.rang()
            if self._closed:
                return
            if self._scheduler.queued(REGULAR[:1]):
                self._running.make_room(Priority.HIGH, self._scheduler, self.cores, now_ns)
            self._running.make_room(Priority.MEDIUM, self._scheduler, self.cores, now_ns)
            failure, self._failure = self._failure, None
            with contextlib.suppress(ResourceExhaustedTransient):
                woken.append(self._low_worker())
                if failure is not None or self._scheduler.is_governed:
                    wanted = min(self.cores - self._running.busy, self._scheduler.queued(REGULAR))
                    woken += (self._crew.idle_worker(REGULAR) for _ in range(wanted))
            self._watch_age()
        for worker in woken:
            if worker is not None:
                worker.wake()
        if failure is not None:
            logger.warning("%s; the default rule goes on in its place", failure, exc_info=failure)

    # -- the life of a worker thread

    def _work(self, worker: Worker) -> None:
        self._crew.joins(worker)
        belongs_to(self.tracer)
        if self._on_start is not None:
            self._on_start(worker)
        while True:
            task = self._take(worker)
            if task is not None:
                is_long = task.estimate.best_ns > LONG_NS
                if is_long and self.due_turn and task.priority is not Priority.HIGH:
                    self.due_turn.wait_if_late()
                urgent = worker.urgent
                if urgent is None:
                    self._run(task)
                else:
                    urgent.run(self._run, task, is_high=task.priority is Priority.HIGH)
            elif self._closed:
                return
            elif not worker.leaving:
                worker.park()
            if worker.leaving:
                with self._lock:
                    self._crew.leaves(worker)
                return

    def _take(self, worker: Worker) -> Task | None:
        low: Worker | None = None
        job: Task | None = None
        with self._lock:
            worker.finishing = worker.coming = False
            if self._crew.is_outdated(worker):
                worker.leaving = True
                is_low = worker.priorities is LOW
                with contextlib.suppress(ResourceExhaustedTransient):
                    low = self._low_worker() if is_low else self._crew.idle_worker(REGULAR)
            else:
                job, low = self._next_for(worker)
            expired = self._scheduler.take_expired() if self._scheduler.expired else ()
        if low is not None:
            low.wake()
        for task in expired:
            self._expire(task)
        return job

    def _next_for(self, worker: Worker) -> tuple[Task | None, Worker | None]:
        """The next task of a thread.

        If there is none it becomes idle, and another thread may be woken.
        """
        is_regular = worker.priorities is REGULAR
        has_low = is_regular and self._scheduler.totals[Priority.LOW]
        asked = ALL if has_low and self._scheduler.low_goes_first() else worker.priorities
        # Whatever is queued when the runtime closes does not begin: closing answers it.
        budget = not self._closed and (
            not self._is_left_to_loop() if is_regular else self._may_start_low()
        )
        job = self._scheduler.next(now_ns(), asked) if budget else None
        if isinstance(job, Task):
            self._running.begin(job, worker)
            if not self._neighbors.is_looking:
                self._neighbors.look_on()
            if job.priority is Priority.LOW:
                self._surroundings.begins(job)
            if job.shielded_until_ns or self._scheduler.is_governed:
                self._watch_age()
            if is_regular:
                if self._running.counts[0] or job.priority > 1 or self._scheduler.is_governed:
                    self._running.make_room(job.priority, self._scheduler, self.cores, now_ns)
                if self._holds_back and not job.is_spread:
                    # What was to follow on this thread would wait for something else.
                    self._holds_back = False
                    with contextlib.suppress(ResourceExhaustedTransient):
                        more = self._scheduler.queued(REGULAR) > self._crew.coming()
                        return job, self._crew.idle_worker(REGULAR) if more else None
            return job, None
        low = None
        if not self._closed:
            if self._scheduler.is_governed:
                self._watch_age()
            self._crew.rests(worker)
            if has_low:  # Its core is free again, and only LOW work can be waiting for one.
                with contextlib.suppress(ResourceExhaustedTransient):
                    low = self._low_worker()
        return None, low

    def _run(self, task: Task, here: Turn | None = None) -> NNError | None:
        """Run a task that was taken; on the thread of a loop in its turn `here`. Its failure."""
        task.stop.falls_back = here is None
        finished, failure, duration_ns, ended_ns = attempted(task, self.tracer)
        if here is not None:
            self.inline.ran(task, duration_ns, here, finished=finished)
        else:
            self._worker_runs += task.is_counted
            self._worker_ns += duration_ns * task.is_counted
            if finished:
                task.estimate.observe_on_worker(task.active_ns)
        self._conclude(task, finished, failure, duration_ns, ended_ns)
        return failure

    def _conclude(
        self, task: Task, finished: bool, failure: NNError | None, duration_ns: int, ended_ns: int
    ) -> None:
        with self._lock:
            worker = self._running.end(task)
            if worker.lost:
                self._return(worker)
            preempted = not (finished or failure or task.fence.done) and task.stop.raised == YIELD
            if preempted:
                task.stop.raised = GO
                self._preemptions += 1
                self._scheduler.requeue(task, ended_ns)
                self._watch_age()
            else:
                self._live.discard(task)
                worker.finishing = not (self._closed or worker.leaving)
            if self._scheduler.only is None:
                self._scheduler.ran(task, duration_ns)
        if preempted:
            return
        task.finished_ns = ended_ns
        task.finished = finished
        if task.alarm is not None:
            task.alarm.disarm()
        error = None if finished else failure or stopped(task.name)
        try:
            if finished and ended_ns >= task.deadline_ns:
                self._expire(task)
            elif task.fence.signal() if error is None else task.fence.fail(error):
                for hook in self.tracer.task_answered:
                    hook(task, task.fence.error)
        finally:
            task.release()  # Also where a callback of the fence means the whole program.

    def _write_off(self, task: Task) -> None:
        """Give up a thread whose device does not return from a settled task."""
        with self._lock:
            if self._closed or not self._running.lose(task):
                return
            regular = low = None
            with contextlib.suppress(ResourceExhaustedTransient):
                regular = (
                    self._crew.idle_worker(REGULAR) if self._scheduler.queued(REGULAR) else None
                )
            with contextlib.suppress(ResourceExhaustedTransient):
                low = self._low_worker()
        for replacement in (regular, low):
            if replacement is not None:
                replacement.wake()

    def _return(self, worker: Worker) -> None:
        """Count on a lost thread again, or have it end where another took its place."""
        worker.leaving = worker.lost = self._crew.is_full(worker.priorities)

    def _expire(self, job: Job) -> None:
        if not isinstance(job, Task):
            raise BadState("the workers were handed a job that is not a task")
        self.settle(job, missed(job))


def _log_executions(tracer: Tracer) -> None:
    """Has executions told in the log, where the environment asks for that."""
    if vlog.is_on("execution") or vlog.is_on("manager"):
        tracer.add(tracing.ExecutionLog())
