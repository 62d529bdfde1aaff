"""A simulation with what the runtime has around the cores: the event loop, workers, and hops.

*The loop* is one thread, which does one thing at a time: calls come there, and their answers. A
request that comes, or is answered, while the loop is busy has to wait for it; each call takes
`call_ns` of it, in two halves.

*Delays* are drawn of those that were measured on a machine (`delays`), or are hops of one length.
One passes from the planned time of a request until the loop begins its call, another one from its
submission until a worker begins that had nothing to do, and a third one from the end of its run
until the loop takes up the answer. A worker that has just ended something goes on with the next
request sooner. Without measured delays it does so at once, and one that slept for longer than a
millisecond takes longer to begin (`cold_hop_ns`).

*Two sets of threads.* Under the default rule LOW has threads of its own, which are woken by the
others when those have nothing more to do. What is more urgent does not wait until LOW, which was
asked to give way, has come to a border: it begins at once, beside it. Under a policy all cores are
alike.

*Inline.* With an inline budget short requests run on the thread of the loop, which does nothing
else then (`simulation_lane`). What they may take of one turn is limited: a turn is all that had
been posted when it began.

*Networks* share the cores: runs are slower beside each other (`simulation_company`), and delays are
those that were measured while so many workers were at work. The thread that waits for arrivals, and
the loop that it wakes, are each on their way once for all that happens meanwhile (`Waking`).

*Not simulated*: the budget that LOW overdraws for its age, and cores that others than networks
load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from nnasync._core.workers.admission import NEXT_TURN, RUN, WORKER
from nnasync.experiments.overheads import Overheads
from nnasync.experiments.record import Outcome, Recorder
from nnasync.experiments.simulation_company import SharedCores, stopped
from nnasync.experiments.simulation_cores import ENDS, OTHERS, Settings, Simulation
from nnasync.experiments.simulation_delays import SLEEPS_DEEPLY_NS, SimulatedDelays, Waking
from nnasync.experiments.simulation_lane import SimulatedLane
from nnasync.experiments.simulation_requests import Request
from nnasync.experiments.workload import Stream
from nnasync.hal import Priority
from nnasync.scheduler import Policy

_POSTS, _TURNS, _SUBMITS, _TELLS = range(OTHERS, OTHERS + 4)
_REGULAR = (Priority.HIGH, Priority.MEDIUM)


class LoopSimulation(Simulation):
    """One run in virtual time, with the loop and the workers that a runtime has."""

    def __init__(
        self,
        streams: tuple[Stream, ...],
        settings: Settings,
        policy: Policy | None,
        recorder: Recorder,
        overheads: Overheads,
    ) -> None:
        super().__init__(streams, settings, policy, recorder)
        self._submits = self._submit
        self._calm = SimulatedDelays(overheads, overheads.delays, settings.seed)
        self._shared: SharedCores | None = None
        self._by_company: list[SimulatedDelays] = []
        self._planner = Waking()
        self._loop: Waking | None = None
        if any(source.is_network for source in self._sources):
            self._shared = SharedCores(streams, settings.seed)
            self._loop = Waking() if overheads.beside else None
            self._by_company = [
                SimulatedDelays(overheads, delays, settings.seed, number)
                for number, delays in enumerate(overheads.beside)
            ]
        self._before_ns = overheads.call_ns // 2
        self._after_ns = overheads.call_ns - self._before_ns
        self._posted: deque[Request] = deque()
        self._loop_free_ns = 0
        self._outcomes: dict[Request, Outcome] = {}
        # The number behind the workers' is that of the loop's own thread.
        self._asleep_since_ns = [-SLEEPS_DEEPLY_NS] * (settings.cores + 1)
        self._lane: SimulatedLane | None = None
        if overheads.inline_budget_ns:
            self._lane = SimulatedLane(overheads, self._scheduler, settings.cores - 1)
        self._left_in_turn = 0
        self._awake = -1
        self._awake_for_low = False
        self._beside: list[int] = []

    # -- the loop

    def _submit(self, now: int, request: Request) -> None:
        """Hands a new request to the loop, which is woken for it by another thread."""
        if self._loop is None:
            self._push(now + self._delays().comes_ns(now - self._loop_free_ns), _POSTS, request)
            return
        self._push(self._planner.there_ns(now, next(self._delays().told_ns)), _TELLS, request)

    def _other(self, now: int, kind: int, what: Any) -> None:
        if kind == _TELLS:
            self._recorder.told(what.number, now)
            self._post(now, what, self._delays().comes_ns(now - self._loop_free_ns))
        elif kind == _POSTS:
            self._posted.append(what)
            if len(self._posted) == 1:
                self._push(max(now, self._loop_free_ns), _TURNS, None)
        elif kind == _TURNS:
            self._turn(now)
        elif not what.is_over:
            self._recorder.queued(what.number, now)
            super()._submit(now, what)

    def _turn(self, now: int) -> None:
        """Processes the next thing that waits for the loop: a call or an answer."""
        if not self._left_in_turn:
            self._left_in_turn = len(self._posted)
            if self._lane is not None:
                self._lane.begin_turn()
        self._left_in_turn -= 1
        request = self._posted.popleft()
        outcome = self._outcomes.pop(request, None)
        if outcome is not None:
            self._is_busy_until(now, self._after_ns, self._delays().answers_ns)
            late = outcome is Outcome.MET and (
                self._loop_free_ns - request.planned_ns > request.source.deadline_ns
            )
            self._tell(self._loop_free_ns, request, Outcome.LATE if late else outcome)
        elif not request.is_over:
            self._call(now, request)
        if self._posted:
            self._push(max(now, self._loop_free_ns), _TURNS, None)

    def _call(self, now: int, request: Request) -> None:
        """Begins a call: it goes to a worker, runs on the loop, or waits for a later turn."""
        where = WORKER
        if self._lane is not None:
            where = self._lane.admission(now, request, self._running, len(self._posted))
        if where is NEXT_TURN:
            self._posted.append(request)
            return
        self._is_busy_until(now, self._before_ns, self._delays().calls_ns)
        if where is RUN and self._lane is not None:
            self._run_here(self._loop_free_ns, request, self._lane)
        else:
            if not request.source.is_network:
                request.cost_ns += next(self._calm.device_ns)
            self._push(self._loop_free_ns, _SUBMITS, request)

    def _is_busy_until(self, now: int, usual_ns: int, waited_ns: Iterator[int]) -> None:
        """Occupies the loop for the usual time, or for the time of calls that had to wait."""
        if self._loop is not None and now == self._loop_free_ns:
            usual_ns = max(usual_ns, next(waited_ns))
        self._loop_free_ns = now + usual_ns

    def _run_here(self, now: int, request: Request, lane: SimulatedLane) -> None:
        """Runs a request on the loop, to its end."""
        source, estimate, cost_ns = request.source, request.estimate, request.cost_ns
        request.is_over = True
        if request.deadline_ns < now + estimate.floor_ns:
            estimate.refused()
            self._tell(now, request, Outcome.REFUSED)
            return
        ends_ns = now + cost_ns
        self._loop_free_ns = ends_ns + self._after_ns
        lane.spend(cost_ns + self._before_ns + self._after_ns)
        estimate.observe(cost_ns)
        self._busy_ns += cost_ns
        self._recorder.ran(self._cores, source.number, request.number, now, ends_ns)
        is_met = self._loop_free_ns - request.planned_ns <= source.deadline_ns
        self._tell(self._loop_free_ns, request, Outcome.MET if is_met else Outcome.LATE)

    def _answer(self, now: int, request: Any, outcome: Outcome) -> None:
        """Sends the outcome of a request to the loop."""
        if request.is_over:
            return
        request.is_over = True
        self._outcomes[request] = outcome
        if outcome in (Outcome.MET, Outcome.LATE, Outcome.EXPIRED):
            self._post(now, request, self._delays().heard_ns(now - self._loop_free_ns))
        else:
            self._push(now, _POSTS, request)

    def _post(self, now: int, request: Request, late_ns: int) -> None:
        """Wakes the loop for a request; if it was idle, it is late by `late_ns`."""
        if self._loop is None:
            at_ns = now + late_ns
        elif now < self._loop_free_ns:
            at_ns = now
        else:
            at_ns = self._loop.there_ns(now, late_ns)
        self._push(at_ns, _POSTS, request)

    def _tell(self, now: int, request: Request, outcome: Outcome) -> None:
        self._answered_ns = now
        super()._tell(now, request, outcome)

    # -- workers

    def _begin(self, now: int, request: Any) -> None:
        """Has a worker take a request: soon if it is awake, else after it has been woken."""
        core, late_ns = self._free[-1], 0
        shared, join = self._shared, None
        is_low = request.priority is Priority.LOW
        if core == self._awake:
            late_ns = next(self._delays().follows_ns)
        if core != self._awake or (is_low is not self._awake_for_low and not self._is_governed):
            begins_ns = self._delays().begins_ns(now - self._asleep_since_ns[core])
            if shared is not None:
                join = shared.join(now, request, self._running)
            late_ns += begins_ns if join is None else join.late_ns
        if shared is not None:
            shared.begin(request, self._running, sum(self._totals), join)
        super()._begin(now + late_ns, request)
        if join is not None:
            self._moved(join.joined)
        if shared is not None:
            self._share(now, shared)

    def _end(self, now: int, request: Request) -> None:
        core = self._awake = request.core
        self._awake_for_low = request.priority is Priority.LOW
        self._asleep_since_ns[core] = now
        super()._end(now, request)
        self._awake = -1
        if self._shared is not None:
            self._share(now, self._shared)

    def _stopped(self, now: int, request: Request) -> None:
        stopped(request)
        super()._stopped(now, request)

    def _share(self, now: int, shared: SharedCores) -> None:
        """Adapts the runs of networks to those beside them."""
        for request in shared.changed(now, self._running):
            self._moved(request)

    def _moved(self, request: Request) -> None:
        """Plans the end of a run anew."""
        self._push(request.ends_ns, ENDS, request)
        if request.ends_ns > request.deadline_ns:
            self._watch(request)

    def _delays(self) -> SimulatedDelays:
        """Returns the delays for the number of workers that will be at work from now on."""
        known = self._by_company
        if not known:
            return self._calm
        return known[min(len(self._running) + sum(self._totals), len(known) - 1)]

    def _hand_out(self, now: int) -> None:
        """Hands requests to free cores; one that a run beside others occupies is not free."""
        while self._free and len(self._running) + len(self._free) > self._cores:
            self._beside.append(self._free.pop())
        super()._hand_out(now)
        if not self._free:
            self._begin_beside(now)

    def _make_room(self, now: int, priority: Priority) -> None:
        super()._make_room(now, priority)
        if priority is not Priority.LOW:
            self._begin_beside(now)

    def _begin_beside(self, now: int) -> None:
        """Begins what is more urgent than LOW beside it, on threads of its own."""
        while not self._is_governed and self._totals[1] + self._totals[2]:
            regular = sum(request.priority > Priority.LOW for request in self._running)
            if regular >= self._cores:
                return
            job = self._scheduler.next(now, _REGULAR)
            for late in self._scheduler.take_expired():
                self._answer(now, late, Outcome.EXPIRED)
            if job is None:
                return
            if not self._beside:
                self._beside.append(len(self._asleep_since_ns))
                self._asleep_since_ns.append(-SLEEPS_DEEPLY_NS)
            self._free.append(self._beside.pop())
            self._begin(now, job)
