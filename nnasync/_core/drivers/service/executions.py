"""Plain executions in a service: they run side by side over queues that the first one opens.

An execution that was given up, at its deadline or cancelled, may have a thread of the service for
long. So what comes before the service has answered that one goes over other queues; the old ones
are closed when all others on them are answered.
"""

from __future__ import annotations

import contextlib

from nnasync._core.clock import now_ns
from nnasync._core.drivers.service.link import ControlCall, Link
from nnasync._core.drivers.service.offered_memories import OfferedMemories
from nnasync._core.drivers.service.remote_bursts import RemoteBurst
from nnasync._core.wire.messages import Ping
from nnasync._core.workers import contained
from nnasync._core.workers.turns import Turns
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.errors import (
    BadState,
    DeviceDied,
    DeviceUnavailable,
    NNError,
    ResourceExhausted,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence, fresh
from nnasync.hal import ExecutionConfig, ExecutionResult, Request

_STALL_BUDGET_NS = 1_000_000
"""How long a turn of the event loop may look for the answers of a prepared model."""


class _Queues:
    """The queues that executions use.

    `opening` asks the service to serve them, which it may refuse.
    """

    def __init__(
        self, controller: BurstController, burst: RemoteBurst, opening: ControlCall
    ) -> None:
        self.controller = controller
        self.burst = burst
        self.opening = opening
        self.running = 0
        self.given_up: set[int] = set()
        """Serial numbers of what nobody waits for and the service has not answered."""
        self.is_left = False


class Executions:
    """The plain executions of one prepared model."""

    def __init__(
        self, link: Link, memories: OfferedMemories, prepared: int, *, polls: bool
    ) -> None:
        """`prepared` is the number of the prepared model."""
        self._link = link
        self._memories = memories
        self._prepared = prepared
        self._polls = polls
        self._queues: _Queues | None = None
        self._turns = Turns(_STALL_BUDGET_NS)
        self._closed = False
        link.keep_reclaimable(self)

    async def run(self, request: Request, config: ExecutionConfig) -> ExecutionResult:
        """Execute; raises what the device answers, or why it cannot."""
        if self._turns.here.is_half_spent():
            await self._turns.next()
        form = self._memories.form(request)
        queues = self._current()
        outcome = await self._outcome(queues, form, config)
        if outcome is None or self._makes_room(queues):
            queues = self._current()
            outcome = await self._outcome(queues, form, config)
        if outcome is None:
            text = f"the queues to {self._link.who} end as soon as they are open"
            outcome = DeviceUnavailable(text)
        if isinstance(outcome, NNError):
            raise self._judged(request, queues.opening.fence.error or outcome)
        return outcome

    def close(self) -> None:
        """End what is under way with DeviceUnavailable, and open nothing any more."""
        self._closed = True
        self._end()

    def release_idle(self) -> bool:
        """Close the queues until the next execution, unless there are none or they are in use."""
        if self._queues is None or self._queues.running:
            return False
        self._end()
        return True

    async def _outcome(
        self, queues: _Queues, form: bytes, config: ExecutionConfig
    ) -> Outcome | None:
        """Sends an execution and returns its outcome; None where the queues had ended before."""
        queues.running += 1
        try:
            began_ns = now_ns()
            try:
                outcome = queues.controller.ask(form, config)
            except (BadState, DeviceDied, DeviceUnavailable):
                outcome = None
            self._turns.here.spend(now_ns() - began_ns)
            if isinstance(outcome, int):
                outcome = await self._followed(queues, outcome, config.deadline_ns)
            if outcome is None or (isinstance(outcome, NNError) and queues.burst.is_over):
                await self._ended(queues, config.deadline_ns)
                if isinstance(outcome, DeviceDied):
                    text = f"the queues to {self._link.who} ended while this was in flight"
                    outcome = DeviceUnavailable(text)
            return outcome
        finally:
            queues.running -= 1
            self._tidy(queues)

    async def _followed(self, queues: _Queues, serial: int, deadline_ns: int) -> Outcome:
        """Wait for an answer; who has waited too long or leaves gives it up."""
        over, outcomes = Fence(), list[Outcome]()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            queues.given_up.discard(serial)
            over.signal()

        controller = queues.controller
        controller.follow(serial, done)
        try:
            await self._link.settled(over, deadline_ns, lambda: controller.cancel(serial))
        except BaseException:
            queues.given_up.add(serial)
            if outcomes:
                queues.given_up.discard(serial)
            raise
        return outcomes[0]

    async def _ended(self, queues: _Queues, deadline_ns: int) -> None:
        """Leave queues that are over; raises DeviceDied where they ended with the service.

        That is heard over the socket, a bit later, as is why the service refused them.
        """
        self._leave(queues)
        with contextlib.suppress(NNError):
            await self._link.wait(queues.opening, deadline_ns)
        await self._link.call(Ping, deadline_ns=deadline_ns)

    def _judged(self, request: Request, failure: Exception) -> NNError:
        """The error that an execution is to raise for what it was answered."""
        error = contained(fresh(failure), "the service")
        if isinstance(error, ResourceExhausted):
            self._memories.refused(request, error)
        elif isinstance(error, DeviceUnavailable):
            self._link.check()  # Why it is over says more.
        return error

    def _makes_room(self, queues: _Queues) -> bool:
        """Returns whether refused queues may be had now, since others gave theirs back."""
        error = queues.opening.fence.error
        if error is None:
            return False
        self._leave(queues)
        return isinstance(error, ResourceExhaustedTransient) and self._link.make_room()

    def _current(self) -> _Queues:
        """The queues for what comes now; raises where they cannot be had."""
        queues = self._queues
        if queues is not None and not queues.given_up:
            return queues
        if queues is not None:
            self._leave(queues)
        self._link.check()
        if self._closed:
            raise DeviceUnavailable(f"{self._link.who} was closed")
        self._queues = queues = self._opened()
        return queues

    def _opened(self) -> _Queues:
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        burst = RemoteBurst(self._link, self._memories, None, results, None, polls=self._polls)
        opening = burst.open(self._prepared)
        requests.listen(burst.ear.receive)
        controller.attach(burst)
        return _Queues(controller, burst, opening)

    def _leave(self, queues: _Queues) -> None:
        """Send nothing over these any more; they are closed when all on them are answered."""
        queues.is_left = True
        if self._queues is queues:
            self._queues = None
        self._tidy(queues)

    def _tidy(self, queues: _Queues) -> None:
        if queues.is_left and not queues.running:
            queues.controller.close(DeviceUnavailable("nobody waits for this any more"))

    def _end(self) -> None:
        queues, self._queues = self._queues, None
        if queues is not None:
            queues.controller.close(DeviceUnavailable(f"{self._link.who} was closed"))
