"""The cores of a simulation: what becomes of requests, event by event.

*What a request goes through.* It is submitted at its planned time, and may be refused. It waits in
the queue until it is handed out, is given up when its deadline passes there, and may be displaced
by others, or cancelled. A run whose deadline passes stops at its next border, as the runtime has
it. One that is asked to give way stops at its next border, too, and is queued again.

*Events* are tuples in a heap: time, kind, a number that makes the order of equal ones that of their
making, and a request or a stream. At one instant runs end first, then requests come. An event that
has been overtaken, such as the end of a run that was asked to stop sooner, stays in the heap and is
passed over when its time comes.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from nnasync.errors import ExperimentError, Refused
from nnasync.experiments.checks import MOST, MOST_CORES, at_least
from nnasync.experiments.record import Outcome, Recorder, RunResult
from nnasync.experiments.simulation_requests import Request, Source, sources
from nnasync.experiments.workload import Stream
from nnasync.hal import NEVER_NS, Priority
from nnasync.scheduler import Job, Policy, PolicyError, Scheduler

ENDS, _COMES, _EXPIRES, _CANCELS, _LOOKS, _SAMPLES, _JOINS = range(7)
OTHERS = 7
"""Kinds from here on are a subclass's."""

_ALL = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)
_MET, _LATE = Outcome.MET, Outcome.LATE
_AT_ONE_INSTANT = 10_000

Event: TypeAlias = tuple[int, int, int, Any]


class Settings(NamedTuple):
    """The settings of a run, besides its streams and its policy."""

    cores: int
    seed: int
    queue_limit: int
    aging_ns: int


class Simulation:
    """One run in virtual time, on cores without overheads."""

    def __init__(
        self,
        streams: tuple[Stream, ...],
        settings: Settings,
        policy: Policy | None,
        recorder: Recorder,
    ) -> None:
        for name, value in zip(settings._fields, settings, strict=True):
            most = MOST_CORES if name == "cores" else math.inf
            at_least(name, value, 0 if name == "seed" else 1, most)
        self._cores = cores = settings.cores
        self._seed = settings.seed
        self._recorder = recorder
        self._sources = sources(streams, settings.seed, recorder.accounts, cores)
        self._scheduler = Scheduler(
            servers=cores,
            queue_limit=settings.queue_limit,
            aging_ns=settings.aging_ns,
            policy=policy,
        )
        self._totals = self._scheduler.totals
        self._is_governed = policy is not None
        self._lowest = min(source.priority for source in self._sources)
        # Where nobody goes before anybody but by deadline and arrival, nobody gives way.
        self._may_give_way = policy is not None or any(
            source.priority > self._lowest for source in self._sources
        )
        self._submits = self._enqueue
        if any(source.line is not None for source in self._sources):
            self._submits = self._submit
        for _ in range(max(source.client for source in self._sources)):
            self._scheduler.open_client(queue_limit=settings.queue_limit)
        self._events: list[Event] = []
        self._count = 0
        self._running: dict[Request, None] = {}
        self._free = list(range(cores))[::-1]
        self._busy_ns = self._preemptions = 0
        self._to_come = NEVER_NS
        self._looks_at_ns = NEVER_NS
        self._instant = self._at_one_instant = self._answered_ns = 0

    def run(self, duration_ns: int | None, requests: int | None) -> RunResult:
        """Runs to the end, and returns the record."""
        _check_end(self._sources, duration_ns, requests)
        if self._scheduler.failure is not None:
            raise self._scheduler.failure
        self._scheduler.on_failure = _raise
        if duration_ns is not None:
            self._recorder.until(duration_ns)
        self._to_come = NEVER_NS if requests is None else requests
        for source in self._sources:
            for _ in range(source.callers):
                self._plan(0, source)
        self._push(0, _SAMPLES, None)
        self._until(NEVER_NS if duration_ns is None else duration_ns)
        if any(self._totals) and not self._running and duration_ns is None:
            raise PolicyError("the policy kept requests in the queue when all had come")
        return self._recorder.result(
            "simulated",
            seed=self._seed,
            cores=self._cores,
            policy=self._scheduler.statistics().policy,
            duration_ns=self._answered_ns if duration_ns is None else duration_ns,
            busy_ns=self._busy_ns,
            preemptions=self._preemptions,
        )

    def _until(self, ends_ns: int) -> None:
        """Processes the events up to that time, or until there are none."""
        events, end, come = self._events, self._end, self._come
        while events:
            now, kind, _, what = heappop(events)
            if now > ends_ns:
                self._cut_off(ends_ns)
                break
            if kind == ENDS:
                if what.ends_ns == now:
                    end(now, what)
            elif kind == _COMES:
                come(now, what)
            elif kind == _EXPIRES:
                self._give_up(now, what, Outcome.EXPIRED)
            elif kind == _CANCELS:
                self._give_up(now, what, Outcome.CANCELLED)
            elif kind == _LOOKS:
                self._looks_at_ns = NEVER_NS
                self._hand_out(now)
            elif kind == _SAMPLES:
                self._sample()
            elif kind == _JOINS:
                what.line.looks_at_ns = NEVER_NS
                self._start_runs(now, what)
            else:
                self._other(now, kind, what)

    # -- events

    def _come(self, now: int, source: Source) -> None:
        """Processes the arrival of a request: it is submitted, and the next one is planned."""
        request = source.request(now)
        if source.thinking is None:
            planned_ns = next(source.times_ns, NEVER_NS)
            if planned_ns != NEVER_NS:
                self._count = count = self._count + 1
                heappush(self._events, (planned_ns, _COMES, count, source))
        self._to_come -= 1
        if not self._to_come:
            self._let_no_more_come()
        request.number = self._recorder.submitted(source.number, now)
        if source.cancel_after_ns != NEVER_NS:
            self._push(now + source.cancel_after_ns, _CANCELS, request)
        self._submits(now, request)

    def _submit(self, now: int, request: Request) -> None:
        """Queues a request, or lets it wait for others that it is batched with."""
        source = request.source
        if source.line is None:
            self._enqueue(now, request)
        elif source.line.takes(now, request):
            self._watch(request)
            self._start_runs(now, source)
        else:
            self._answer(now, request, Outcome.REFUSED)

    def _start_runs(self, now: int, source: Source) -> None:
        """Queues the requests of a stream that are to run together by now as one run."""
        line = source.line
        if line is None:
            return
        before_ns = line.looks_at_ns
        while members := line.next_run(now):
            run = source.run_of(members)
            line.began(now, run)
            self._enqueue(now, run)
        if line.looks_at_ns < before_ns:
            self._push(line.looks_at_ns, _JOINS, source)

    def _enqueue(self, now: int, request: Request) -> None:
        """Queues a request or a batch; it may begin at once, or have others give way."""
        try:
            giver = self._scheduler.submit(request, now)
        except Refused:
            self._answer(now, request, Outcome.REFUSED)
            return
        if giver is not None:
            self._answer(now, giver, Outcome.DISPLACED)
        if self._free:
            self._hand_out(now)
        elif self._may_give_way:
            self._make_room(now, request.priority)
        if request.queued and request.deadline_ns != NEVER_NS:
            self._watch(request)

    def _end(self, now: int, request: Request) -> None:
        """Processes the end of a run, or its stop at a border."""
        scheduler = self._scheduler
        ran_ns = now - request.began_ns
        request.ends_ns = -1
        del self._running[request]
        self._free.append(request.core)
        self._busy_ns += ran_ns
        request.active_ns += ran_ns
        source = request.source
        if request.number >= 0:
            self._recorder.ran(request.core, source.number, request.number, request.began_ns, now)
        if request.active_ns < request.cost_ns:
            self._stopped(now, request)
            scheduler.ran(request, ran_ns)
        else:
            scheduler.ran(request, ran_ns)
            request.estimate.observe_on_worker(request.active_ns)
            if not request.is_over:
                is_met = now - request.planned_ns <= source.deadline_ns
                self._answer(now, request, _MET if is_met else _LATE)
        self._hand_out(now)

    def _stopped(self, now: int, request: Request) -> None:
        """Processes a stop at a border: the run ends for good, or gives way."""
        if request.is_over:
            return
        self._preemptions += 1
        self._check_progress(now, "requests give way to each other")
        request.is_asked = False
        self._scheduler.requeue(request, now)
        self._watch(request)

    def _give_up(self, now: int, request: Request, outcome: Outcome) -> None:
        """Answers a request before it has ended; its run stops at the next border."""
        if request.is_over:
            return
        if request.queued:
            self._scheduler.withdraw(request, is_late=outcome is Outcome.EXPIRED)
        elif request.ends_ns >= 0:
            self._stop(now, request)
        self._answer(now, request, outcome)
        if request.source.line is not None:
            request.source.line.leave(request)
            run = request.run
            if run is not None and all(each.is_over for each in run.members):
                self._give_up(now, run, outcome)

    def _sample(self) -> None:
        """Records the queue's length, and plans the next sample if other events are to come."""
        queue = self._recorder.queue
        queue.sample(sum(self._totals))
        if self._events:
            self._push(queue.next_ns, _SAMPLES, None)

    def _other(self, now: int, kind: int, what: Any) -> None:
        """Processes an event of a kind that only a subclass has."""
        raise NotImplementedError(f"events of kind {kind} do not happen on ideal cores")

    # -- what follows from them

    def _hand_out(self, now: int) -> None:
        """Hands requests to free cores, and asks runs to give way to what waits."""
        scheduler, free, totals = self._scheduler, self._free, self._totals
        begun: Job | None = None
        while free and (totals[0] or totals[1] or totals[2]):
            job = scheduler.next(now, _ALL)
            if scheduler.expired:
                for late in scheduler.take_expired():
                    self._answer(now, late, Outcome.EXPIRED)
            if job is None:
                break
            begun = job
            self._begin(now, job)
        if not self._may_give_way:
            return
        if begun is not None and not free and (totals[2] or totals[1]):
            self._make_room(now, begun.priority)
        elif self._is_governed:
            self._look_again(now)

    def _begin(self, now: int, request: Any) -> None:
        """Begins a run on a core, until it ends or is asked to stop."""
        request.core = self._free.pop()
        request.began_ns = now
        request.ends_ns = ends_ns = now + request.cost_ns - request.active_ns
        self._running[request] = None
        self._count = count = self._count + 1
        heappush(self._events, (ends_ns, ENDS, count, request))
        if ends_ns > request.deadline_ns:
            self._watch(request)

    def _make_room(self, now: int, priority: Priority) -> None:
        """Ask one run to give way, if others wait that go before it.

        The default rule looks at what waits of this priority and above, as the workers do.
        """
        totals = self._totals
        if self._is_governed:
            if totals[2]:
                self._ask_one(now, 1)
            self._look_again(now)
            return
        if priority <= self._lowest:
            return
        for request in self._running:
            if request.priority < priority:
                waiting = totals[2] + totals[1] if priority == 1 else totals[2]
                if waiting:
                    self._ask_one(now, waiting)
                return

    def _ask_one(self, now: int, waiting: int) -> None:
        """Ask one run to give way, if cores are missing beside those that do so already."""
        staying = [request for request in self._running if not request.is_asked]
        if len(staying) + waiting > self._cores:
            victim: Any = self._scheduler.preempted(staying, now)
            if victim is not None:
                victim.is_asked = True
                self._stop(now, victim)

    def _stop(self, now: int, request: Request) -> None:
        """Have a run end at its next border."""
        at_ns = max(now, request.began_ns)
        done_ns = request.active_ns + at_ns - request.began_ns
        border_ns = request.source.border_ns(request, done_ns)
        ends_ns = at_ns + max(0, border_ns - done_ns)
        if ends_ns < request.ends_ns:
            request.ends_ns = ends_ns
            self._push(ends_ns, ENDS, request)

    def _answer(self, now: int, request: Any, outcome: Outcome) -> None:
        """Records the outcome of a request, and tells its caller."""
        if request.is_over:
            return
        request.is_over = True
        self._answered_ns = now
        self._tell(now, request, outcome)

    def _tell(self, now: int, request: Request, outcome: Outcome) -> None:
        """Tells the caller of the outcome, so that it goes on."""
        source = request.source
        if request.members:
            self._tell_all(now, request, outcome)
            return
        if request.number < 0:
            source.account.ended(request.planned_ns, now, outcome)
        else:
            self._recorder.ended(source.number, request.number, request.planned_ns, now, outcome)
        if source.thinking is not None:
            if now == request.planned_ns:
                self._check_progress(now, f"callers of {source.name} ask again at once")
            self._plan(now, source)

    def _tell_all(self, now: int, run: Request, outcome: Outcome) -> None:
        """Tells the callers of requests that ran together, each by its own deadline."""
        source = run.source
        for request in run.members:
            if not request.is_over:
                request.is_over = True
                own = outcome
                if outcome in (_MET, _LATE):
                    is_met = now - request.planned_ns <= source.deadline_ns
                    own = _MET if is_met else _LATE
                self._tell(now, request, own)
        if source.line is not None:
            source.line.ended(now, run, len(run.members))
            self._start_runs(now, source)

    def _plan(self, now: int, source: Source) -> None:
        """Plans the next request of a stream, or of one of its callers."""
        if not self._to_come:
            return
        planned_ns = (
            next(source.times_ns, NEVER_NS)
            if source.thinking is None
            else now + next(source.thinking)
        )
        if planned_ns != NEVER_NS:
            self._push(planned_ns, _COMES, source)

    def _let_no_more_come(self) -> None:
        """Ends the arrivals, because as many requests have come as were wanted."""
        self._events[:] = [event for event in self._events if event[1] != _COMES]
        heapify(self._events)

    def _watch(self, request: Request) -> None:
        """Plans that a request is given up at its deadline."""
        if not request.is_watched and request.deadline_ns != NEVER_NS:
            request.is_watched = True
            self._push(request.deadline_ns, _EXPIRES, request)

    def _look_again(self, now: int) -> None:
        """Plans to ask the policy again at the time that it names."""
        at_ns = self._scheduler.look_again_ns(now)
        if now < at_ns < self._looks_at_ns:
            self._looks_at_ns = at_ns
            self._push(at_ns, _LOOKS, None)

    def _push(self, at_ns: int, kind: int, what: Request | Source | None) -> None:
        self._count += 1
        heappush(self._events, (at_ns, kind, self._count, what))

    def _cut_off(self, now: int) -> None:
        """Ends the run while requests are running: what they ran so far counts as busy."""
        for request in self._running:
            began_ns = min(now, request.began_ns)
            self._busy_ns += now - began_ns
            self._recorder.ran(request.core, request.source.number, request.number, began_ns, now)

    def _check_progress(self, now: int, what: str) -> None:
        """Raise ExperimentError where time stands still."""
        if now != self._instant:
            self._instant, self._at_one_instant = now, 0
        self._at_one_instant += 1
        if self._at_one_instant > _AT_ONE_INSTANT:
            raise ExperimentError(f"at {now / 1e9:.9f} s {what} without end, and no time passes")


def _check_end(of: list[Source], duration_ns: int | None, requests: int | None) -> None:
    """Raise ExperimentError unless a run has an end."""
    if duration_ns is not None:
        at_least("duration_ns", duration_ns, 1, MOST * 1e6)
    if requests is not None:
        at_least("requests", requests, 1)
    endless = [source.name for source in of if source.is_endless]
    if duration_ns is None and requests is None and endless:
        raise ExperimentError(
            f"the run has no end: {', '.join(endless)} never stops by itself; give duration_ns or "
            "requests"
        )


def _raise(failure: PolicyError) -> None:
    raise failure
