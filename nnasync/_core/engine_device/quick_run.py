"""One request on the thread of its loop, with all that an execution of it needs looked up once.

Whether it may run here is mostly settled when this is made: a loop in the model, a limit of
executions or a client of a service speak against it for good. What changes is asked each time, in a
few comparisons, the first ones of `InlineLane.admission`; whatever they do not settle is left to
the longer way (`run_now`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from nnasync._core.engine_device.binding import Binding, SizedCall
from nnasync._core.engine_device.bindings import Bindings
from nnasync._core.engine_device.gates import ConcurrencyGate
from nnasync._core.engine_device.plan_users import Level, PlanUsers
from nnasync._core.plans.guarded import Health
from nnasync._core.wakeup import one_turn
from nnasync._core.workers import Workers
from nnasync._core.workers.admission import SPREAD
from nnasync._core.workers.flight import Flight
from nnasync.errors import DeviceError, NNError
from nnasync.fences import fresh
from nnasync.hal import NEVER_NS, Array, OutputShape, Request


class _Owner(Protocol):
    """The prepared model, as far as its quick runs use it."""

    usual: Level
    runs_here: bool
    is_counted: bool
    shapes: tuple[OutputShape, ...]

    @property
    def by_priority(self) -> object: ...

    def execute(self, request: Request) -> Awaitable[object]: ...


class QuickRun:
    """Runs one request repeatedly on the current thread, where the moment permits it.

    To be used on the thread that made it. It keeps the request.
    """

    __slots__ = (
        "_binding",
        "_bindings",
        "_gate",
        "_health",
        "_here",
        "_idle",
        "_is_spread",
        "_lane",
        "_owner",
        "_queued",
        "_request",
        "_users",
        "_workers",
        "ends_turn",
        "output_shapes",
    )

    def __init__(
        self,
        owner: _Owner,
        request: Request,
        binding: Binding,
        bindings: Bindings,
        gate: ConcurrencyGate,
        workers: Workers,
        health: Health | None,
        users: PlanUsers,
    ) -> None:
        self._owner = owner
        self._request = request
        self._binding = binding
        self._bindings = bindings
        self._idle = binding.idle
        self._gate = gate
        self._workers = workers
        self._lane = lane = workers.inline
        self._here = lane.turns.here
        self._queued = lane.queued
        self._health = _SOUND if health is None else health
        self._users = users
        self._is_spread = True
        self.ends_turn = False
        self.output_shapes: Sequence[OutputShape] = owner.shapes
        """Those of the last run, whether they were known before it or not."""

    def run(self, given: Sequence[Array] | None, deadline_ns: int) -> bool:
        """Runs and writes the outputs; returns False if nothing has happened.

        `given` are arrays to be read in place of the inputs. Raises what an execution raises.
        """
        owner, lane, here = self._owner, self._lane, self._here
        estimate, queued, idle = owner.usual.estimate, self._queued, self._idle
        best_ns, goes_on = estimate.best_ns, here.spent_ns > 0
        if (
            (
                best_ns >= lane.short_ns
                and (
                    (here.company.is_usual and estimate.spreads)
                    or not lane.runs_now(owner.usual.priority, estimate, here)
                )
            )
            or estimate.high_ns >= lane.calm_ns
            or here.spent_ns + best_ns > here.budget_ns
            or here.waiting
            or queued[1]
            or queued[2]
            or self._health.suspects
            or not owner.runs_here
        ):
            return False
        # The worker that ran it last may be about to give the call back.
        try:
            call = idle.pop()
        except IndexError:
            call = self._binding.take()
        try:
            if not call.reads_given and given is not None:
                self._binding.write(given)
                given = None
            is_alone = best_ns >= lane.short_ns  # Else it was not asked for.
            lane.run(call, estimate, deadline_ns, self._users.name, here, given, is_alone=is_alone)
        except DeviceError:
            health = self._health
            if not health.suspects:
                raise
            return False  # A worker may repeat it on what stands by for the device.
        finally:
            idle.append(call)
        self.ends_turn = goes_on and best_ns >= lane.short_ns and here.is_used_up(best_ns)
        if call.__class__ is SizedCall:  # Others are soon among those that are idle.
            self.output_shapes = call.shapes
        return True

    async def next_turn(self) -> None:
        """Let the loop turn after the last run of a turn; it is none of trio's."""
        number = self._here.number
        await one_turn()
        self._here.turned(number)

    def goes_beside(self, deadline_ns: int = NEVER_NS) -> bool:
        """Whether an execution that begins now is surely queued, for a worker or for others too.

        Ask this for each such execution once: the answers count for how usual company is.
        """
        owner = self._owner
        if not owner.runs_here or self._health.suspects:
            return False
        usual = owner.usual
        where = self._lane.elsewhere(usual.priority, usual.estimate, self._here, deadline_ns)
        self._is_spread = where is SPREAD
        return where is not None

    async def run_beside(self, request: Request, deadline_ns: int = NEVER_NS) -> None:
        """Runs another request beside others, on whichever thread is free first."""
        workers, lane, is_spread = self._workers, self._lane, self._is_spread
        binding = self._bindings.get(id(request)) or self._bindings.bind(request)
        flight = self._flight(binding, deadline_ns)
        is_observed = bool(workers.tracer.instruments)
        flight.is_spread = is_spread and workers.loop_share.arm()
        flight.stop.has_others = flight.is_spread or None
        if deadline_ns != NEVER_NS:
            self._gate.submit_for_loop(flight)
        else:
            try:
                workers.submit(flight)
            except NNError:
                flight.release()
                raise
        fence = flight.fence
        lane.beside += is_spread
        try:
            end_of_wait = fence.end_of_wait()
            if end_of_wait is not None:
                await end_of_wait
        except BaseException:
            if not fence.done:
                workers.abandon(flight)
            raise
        finally:
            lane.beside -= is_spread
        error = fence.error
        if error is not None:
            # On the thread of a loop nothing falls back on what stands by: a worker repeats it.
            suspects = flight.is_spread and self._health.suspects
            if not (suspects and isinstance(error, DeviceError)):
                raise fresh(error) from error.__cause__ or error
            await self._owner.execute(request)
        elif not (is_observed or workers.tracer.instruments):  # Who observes may keep it.
            binding.flight = flight

    def _flight(self, binding: Binding, deadline_ns: int) -> Flight:
        """Returns a flight for a request: its last one again, if that is over."""
        usual, flight, idle = self._owner.usual, binding.flight, binding.idle
        call = idle.pop() if idle else binding.take()
        binding.flight = None
        if flight is None or not flight.renew(call, usual.estimate, deadline_ns):
            flight = Flight(call, usual.priority, usual.estimate, deadline_ns, self._users.name)
            flight.owner, flight.returns = self._owner.by_priority, idle.append
            flight.stop.priority = usual.priority
        flight.is_counted = self._owner.is_counted
        return flight


_SOUND = Health()
"""That of a device that nothing stands by for: it is never suspected."""
