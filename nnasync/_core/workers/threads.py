"""The worker threads, the queue in front of them, and the inline lane."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from nnasync import tracing
from nnasync._core.clock import EarliestAlarm, Watchdog, now_ns
from nnasync._core.endings import close_at_exit, joined_at_exit, renewed_in_child
from nnasync._core.workers.admission import Company
from nnasync._core.workers.demotion import Demotion, LowOsPriority
from nnasync._core.workers.helper_threads import HelperThreads
from nnasync._core.workers.inline import InlineLane
from nnasync._core.workers.refusals import closed, missed, no_thread, unwatched
from nnasync._core.workers.running import Load, Running
from nnasync._core.workers.task import ABORT, GO, YIELD, Task, contained
from nnasync._core.workers.worker_thread import ThreadStarter, Worker, WorkersStatistics
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadline,
    NNError,
    Refused,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.machine.decisions import Decisions, decide
from nnasync.scheduler import AGING_NS, NEVER_NS, Job, Scheduler, displaced
from nnasync.tracing import Tracer, vlog
from nnasync.tracing.spans import belongs_to, leaves

HANGS_AFTER_NS = 100_000_000
"""After this time, a settled execution that still runs counts for no thread and no core."""

_ALL = tuple(Priority)
_REGULAR = (Priority.HIGH, Priority.MEDIUM)
_LOW = (Priority.LOW,)
_LOOK_AGAIN_NS = 50_000_000


class Workers:
    """The threads, the queue in front of them and the inline lane of one runtime."""

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
    ) -> None:
        """`machine` is what follows from its costs.

        `on_start` is called on each new thread, and lowers its OS priority if it gives way.
        """
        self.cores, self._loop_ns = cores, inline_budget_ns
        self.queue_limit = queue_limit
        self.watchdog = watchdog
        self.tracer = tracer
        self._on_start = on_start
        self._demotion = Demotion(low_os_priority, engines=low_engine_priority)
        self._thread_starter = ThreadStarter() if self._demotion.has_threads else None
        self._scheduler = Scheduler(
            servers=cores, queue_limit=queue_limit, aging_ns=aging_ns, room=queue_limit
        )
        self._lock = renewed_in_child(threading.Lock())
        self._idle: dict[tuple[Priority, ...], list[Worker]] = {_REGULAR: [], _LOW: []}
        self._workers: list[Worker] = []
        self._running = Running()
        self._live: set[Task] = set()
        self._by_thread: dict[int, Worker] = {}
        self.inline = InlineLane(
            self._scheduler,
            self._lock,
            tracer,
            machine or decide(None, stall_budget_ns),
            inline_budget_ns=inline_budget_ns,
            stall_budget_ns=stall_budget_ns,
            servers=cores - 1,
            busy=lambda: self._running.busy,
            load=self._load,
        )
        self.turns = self.inline.turns
        self.helper_threads = HelperThreads(watchdog, tracer)
        belongs_to(tracer)  # Inline runs are on the thread of the loop.
        self._closed = False
        self._aging = EarliestAlarm(watchdog, self._age)
        self._hot = 0
        self._company = Company()
        close_at_exit(self)
        self._worker_runs = self._worker_ns = self._preemptions = 0
        if vlog.is_on("execution") or vlog.is_on("manager"):
            tracer.add(tracing.ExecutionLog())

    @property
    def is_busy(self) -> bool:
        """Whether executions other than that of the calling thread run or wait, now or usually.

        To be asked when an execution begins, since each time counts for what is usual.
        """
        mine = threading.get_ident() in self._by_thread
        waits = self.turns.here.waiting or any(self._scheduler.totals)
        has_others = self._running.busy > mine or bool(waits)
        self._company.note(has_others=has_others)
        return has_others or self._company.is_usual

    @property
    def is_at_rest(self) -> bool:
        """Whether each thread runs something or waits for work; none is between the two."""
        idle = sum(map(len, self._idle.values()))
        return idle + len(self._running) >= len(self._workers)

    # -- clients

    def open_client(self, *, queue_limit: int) -> int:
        """Register a client that may have this many waiting executions; returns its number.

        Executions bear that number. Clients have equal shares of the cores, and of the places where
        executions wait; priorities count within them.
        """
        with self._lock:
            return self._scheduler.open_client(queue_limit=queue_limit)

    def close_client(self, client: int) -> None:
        """Forget a client as soon as nothing of it is left; what comes later is refused."""
        with self._lock:
            self._scheduler.close_client(client)

    def spent(self, client: int, duration_ns: int) -> None:
        """Charge a client's share for work done for it other than executions."""
        with self._lock:
            self._scheduler.spent(client, duration_ns)

    # -- the queue

    def check_room(self, priority: Priority, client: int = 0) -> None:
        """Raise ResourceExhaustedTransient where one more execution would find no place to wait.

        Cheap, from any thread, and true for that moment only.
        """
        with self._lock:
            self._scheduler.check_room(priority, client)

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
                if task.fence.done:
                    return
                self._live.add(task)
                try:
                    self._running.check_hanging(task)
                    giver = self._scheduler.submit(task, now)
                    worker = self._worker_for(task)
                except (Refused, DeviceUnavailable):
                    self._scheduler.withdraw(task)
                    self._live.discard(task)
                    raise
        finally:
            self.displace(giver)
        for hook in self.tracer.task_submitted:
            hook(task)
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
        if settled:
            self._report(task)
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
            if not self._closed and not self._idle[_REGULAR] and not self._is_full(_REGULAR):
                with contextlib.suppress(ResourceExhaustedTransient):
                    self._start(_REGULAR)

    def leave_fast_state(self) -> None:
        """Leave the fast state."""
        with self._lock:
            self._hot -= 1

    def statistics(self) -> WorkersStatistics:
        """Counts so far, and what runs now."""
        with self._lock:
            return WorkersStatistics(
                threads=len(self._workers),
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
            self._closed = self.inline.closed = True
            # Dependants come after what they wait for: each shall hear of the closing itself.
            live = sorted(self._live, key=lambda task: task.launched_ns, reverse=True)
        for task in live:
            self.settle(task, closed("the runtime was closed while this was in flight"))
        with self._lock:
            self._aging.disarm()
            if self._thread_starter is not None:
                self._thread_starter.close()
            idle = self._idle[_REGULAR] + self._idle[_LOW]
            self._idle = {_REGULAR: [], _LOW: []}
        for worker in idle:
            worker.wake()
        self.helper_threads.close()
        leaves(self.tracer)

    def join(self, timeout_s: float) -> int:
        """Wait for the threads, in all at most so long; the number of those that still run."""
        end_ns = now_ns() + int(timeout_s * 1e9)
        for worker in list(self._workers):
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, (end_ns - now_ns()) / 1e9))
        self.helper_threads.join(max(0.0, (end_ns - now_ns()) / 1e9))
        return sum(w.thread is not None and w.thread.is_alive() for w in self._workers)

    def _load(self, priority: Priority) -> Load:
        with self._lock:
            return self._running.load(priority, self._scheduler, now_ns(), self._loop_ns)

    # -- choosing threads; the lock is held

    def _worker_for(self, task: Task) -> Worker | None:
        finishing = self._by_thread.get(threading.get_ident())
        if finishing is not None and finishing.finishing and task.priority in finishing.priorities:
            finishing.finishing = False
            return None
        if task.priority is Priority.LOW:
            self._watch_age()
            return self._low_worker()
        self._make_room(task.priority)
        return self._idle_worker(_REGULAR)

    def _may_start_low(self) -> bool:
        has_core = self._running.busy < self.cores
        return self._scheduler.queued(_LOW) > 0 and (has_core or self._low_is_due())

    def _low_worker(self) -> Worker | None:
        coming = sum(each.coming for each in self._workers if each.priorities is _LOW)
        is_wanted = self._scheduler.queued(_LOW) > coming and self._may_start_low()
        return self._idle_worker(_LOW) if is_wanted else None

    def _idle_worker(self, priorities: tuple[Priority, ...]) -> Worker | None:
        idle = self._idle[priorities]
        while idle:
            worker = idle.pop()
            if not self._demotion.is_outdated(worker):
                worker.coming = True
                return worker
            worker.leaving = True
            worker.wake()
        if not self._is_full(priorities):
            self._start(priorities)
        return None

    def _is_full(self, priorities: tuple[Priority, ...]) -> bool:
        counted = (
            each.priorities is priorities and not (each.lost or each.leaving)
            for each in self._workers
        )
        return sum(counted) >= self.cores

    def _make_room(self, priority: Priority) -> None:
        """Ask one execution to yield if cores are missing for those of this priority and above."""
        waiting = self._scheduler.queued(_REGULAR if priority is Priority.MEDIUM else _REGULAR[:1])
        if len(self._running) + waiting <= self.cores:
            return
        now = now_ns()
        if self._running.staying(now) + waiting <= self.cores:
            return
        victim = self._running.victim(
            priority,
            now,
            # What runs on a thread of the other set has it as its client's share.
            lambda task, worker: (
                worker.priorities is not _REGULAR or self._scheduler.displaces(task, priority)
            ),
        )
        if victim is not None:
            victim.stop.raised = YIELD

    def _start(self, priorities: tuple[Priority, ...]) -> None:
        demoted = priorities is _LOW and self._demotion.demotes_threads
        worker = Worker(priorities, demoted=demoted)
        name = f"nnasync-{'low' if priorities is _LOW else 'worker'}-{len(self._workers)}"
        worker.thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
        try:
            if self._closed:
                raise RuntimeError("the runtime is closed")
            if self._thread_starter is not None and threading.get_ident() in self._by_thread:
                self._thread_starter.start(worker.thread)
            else:
                worker.thread.start()
        except RuntimeError as error:
            raise no_thread(f"no thread for executions: {error}") from error
        joined_at_exit(worker.thread)
        self._workers.append(worker)

    # -- aging: work that is due gets a thread, and keeps it for a while; the lock is held

    def _low_is_due(self) -> bool:
        """Whether LOW may overdraw the budget for its age: one execution at a time."""
        is_due = self._scheduler.due_ns(Priority.LOW) <= now_ns()
        return is_due and not any(each.priority is Priority.LOW for each in self._running.held())

    def _watch_age(self) -> None:
        """Have an alarm armed for when LOW is due, or when running work loses its shield."""
        now = now_ns()
        shields = (task.shielded_until_ns for task in self._running)
        at_ns = min(
            max(self._scheduler.due_ns(Priority.LOW), now + _LOOK_AGAIN_NS),
            min((shield for shield in shields if shield > now), default=NEVER_NS),
        )
        if not self._closed:
            self._aging.arm(at_ns)

    def _age(self) -> None:
        """Callback of the alarm; takes the lock."""
        low = None
        with self._lock:
            self._aging.rang()
            if self._closed:
                return
            if self._scheduler.queued(_REGULAR[:1]):
                self._make_room(Priority.HIGH)
            self._make_room(Priority.MEDIUM)
            with contextlib.suppress(ResourceExhaustedTransient):
                low = self._low_worker()
            self._watch_age()
        if low is not None:
            low.wake()

    # -- the life of a worker thread

    def _work(self, worker: Worker) -> None:
        self._by_thread[threading.get_ident()] = worker
        belongs_to(self.tracer)
        if self._on_start is not None:
            self._on_start(worker)
        while True:
            task = self._take(worker)
            if task is not None:
                self._run(task)
            elif self._closed:
                return
            elif not worker.leaving:
                worker.park()
            if worker.leaving:
                with self._lock:
                    self._workers.remove(worker)
                    del self._by_thread[threading.get_ident()]
                return

    def _take(self, worker: Worker) -> Task | None:
        low: Worker | None = None
        job: Task | None = None
        with self._lock:
            worker.finishing = worker.coming = False
            if self._demotion.is_outdated(worker):
                worker.leaving = True
                with contextlib.suppress(ResourceExhaustedTransient):
                    low = self._low_worker()
            else:
                job, low = self._next_for(worker)
            expired = self._scheduler.take_expired()
        if low is not None:
            low.wake()
        for task in expired:
            self._expire(task)
        return job

    def _next_for(self, worker: Worker) -> tuple[Task | None, Worker | None]:
        """The next task of a thread.

        If there is none it becomes idle, and another thread may be woken.
        """
        is_regular = worker.priorities is _REGULAR
        asked = _ALL if is_regular and self._scheduler.low_goes_first() else worker.priorities
        # Whatever is queued when the runtime closes does not begin: closing answers it.
        budget = not self._closed and (is_regular or self._may_start_low())
        job = self._scheduler.next(now_ns(), asked) if budget else None
        if isinstance(job, Task):
            self._running.begin(job, worker)
            job.stop.demoted = self._demotion.demotes_engine_threads(job.priority)
            if job.shielded_until_ns:
                self._watch_age()
            if is_regular:
                self._make_room(job.priority)
            return job, None
        low = None
        if not self._closed:
            self._idle[worker.priorities].append(worker)
            # Its core is free again, and only LOW work can be waiting for one.
            with contextlib.suppress(ResourceExhaustedTransient):
                low = self._low_worker() if is_regular else None
        return None, low

    def _run(self, task: Task) -> None:
        begun_ns = now_ns()
        task.started_ns = task.started_ns or begun_ns
        for hook in self.tracer.task_started:
            hook(task, begun_ns)
        failure: NNError | None = None
        finished = False
        try:
            finished = task.call.run(task.stop)
        except BaseException as error:
            failure = contained(error, task.name)
        ended_ns = now_ns()
        task.active_ns += ended_ns - begun_ns
        if task.is_counted:
            self._worker_runs += 1
            self._worker_ns += ended_ns - begun_ns
        for run_hook in self.tracer.task_ran:
            run_hook(task, begun_ns, ended_ns, finished)
        self._conclude(task, finished, failure, begun_ns, ended_ns)

    def _conclude(
        self, task: Task, finished: bool, failure: NNError | None, begun_ns: int, ended_ns: int
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
            self._scheduler.ran(task, ended_ns - begun_ns)
        if preempted:
            return
        task.finished_ns = ended_ns
        task.finished = finished
        if task.alarm is not None:
            task.alarm.disarm()
        if finished:
            task.estimate.observe_on_worker(task.active_ns)
            if ended_ns >= task.deadline_ns:
                self._expire(task)
            elif task.fence.signal():
                self._report(task)
        elif not task.fence.done:
            text = f"{task.name} stopped without having been asked to"
            if task.fence.fail(failure or GeneralFailure(text)):
                self._report(task)
        task.release()

    def _report(self, task: Task) -> None:
        """Tell instruments of a task's answer."""
        for hook in self.tracer.task_answered:
            hook(task, task.fence.error)

    def _write_off(self, task: Task) -> None:
        """Give up a thread whose device does not return from a settled task."""
        with self._lock:
            if self._closed or not self._running.lose(task):
                return
            regular = low = None
            with contextlib.suppress(ResourceExhaustedTransient):
                regular = self._idle_worker(_REGULAR) if self._scheduler.queued(_REGULAR) else None
            with contextlib.suppress(ResourceExhaustedTransient):
                low = self._low_worker()
        for replacement in (regular, low):
            if replacement is not None:
                replacement.wake()

    def _return(self, worker: Worker) -> None:
        """Count on a lost thread again, or have it end where another took its place."""
        worker.leaving = worker.lost = self._is_full(worker.priorities)

    def _expire(self, job: Job) -> None:
        if not isinstance(job, Task):
            raise BadState("the workers were handed a job that is not a task")
        self.settle(job, missed(job))
