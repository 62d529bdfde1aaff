"""Calls of a burst: their memory, the requests on that, and their order.

They run one at a time, each on the state that the last one left.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from nnasync._core.clock import Alarm
from nnasync._core.execution.ports import Ports
from nnasync._core.execution.slots import IdleSlots, MemorySource, Piece, Slot, moved, own_memory
from nnasync._core.execution.stream_state import StreamState
from nnasync._core.wakeup import Waiter
from nnasync._core.workers import Workers
from nnasync.burst import Outcome
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    MissedDeadlinePersistent,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import NEVER_NS, ExecutionConfig, Model, Priority, Request


class BurstStatistics(msgspec.Struct, frozen=True):
    """Counts of one burst; `in_flight` and `hot` are now."""

    submitted: int
    succeeded: int
    failed: int
    in_flight: int
    hot: bool


class BurstCall:
    """Holds one call of a burst on its way, and its outcome."""

    __slots__ = (
        "alarm",
        "cancels",
        "config",
        "following",
        "given_up",
        "outcome",
        "requests",
        "sender",
        "slot",
        "waiter",
    )

    def __init__(
        self, slot: BurstSlot, requests: Sequence[Request], config: ExecutionConfig
    ) -> None:
        """`requests` has one for each side of the state."""
        self.slot = slot
        self.requests = requests
        self.config = config
        self.outcome: Outcome | None = None
        self.given_up = False
        self.sender = 0
        self.following: BurstCall | None = None
        self.waiter: Waiter | None = None
        self.alarm: Alarm | None = None
        self.cancels: list[Callable[[], object]] = []
        """The functions that end the call on the device, and where it is repeated."""

    def answer(self, outcome: Outcome) -> None:
        """Notes the outcome of the call; the first one counts.

        A device may still finish a call that has missed its deadline.
        """
        if self.outcome is None:
            self.outcome = outcome

    def cancel(self) -> None:
        """Ends the call wherever it was sent."""
        for cancel in tuple(self.cancels):
            cancel()

    def settle(self, outcome: Outcome) -> None:
        """Answer it and wake its waiter."""
        self.answer(outcome)
        if self.alarm is not None:
            self.alarm.disarm()
        waiter = self.waiter
        if waiter is not None:
            waiter.wake()


class BurstSlot(Slot):
    """A slot whose requests read and write the state of a stream."""

    __slots__ = ("_state", "requests")

    def __init__(
        self,
        model: Model,
        ports: Ports,
        state: StreamState | None,
        memory: MemorySource = own_memory,
    ) -> None:
        super().__init__(model, ports, memory)
        self._state = state
        self.requests = self._made(())

    def requests_with(self, pieces: Sequence[tuple[int, Piece]]) -> Sequence[Request]:
        """Returns a request for each side of the state, with these inputs and outputs elsewhere."""
        requests: Sequence[Request] = self._remembered(pieces) if pieces else self.requests
        return requests

    def _made(self, pieces: Sequence[tuple[int, Piece]]) -> Sequence[Request]:
        state = self._state
        if state is None:
            return [moved(self.request, pieces) if pieces else self.request]
        count = len(self.request.inputs)
        return [
            moved(self.request, [*pieces, *state.pieces(side, count)])
            for side in range(len(state.places))
        ]


class BurstSlots(IdleSlots[BurstSlot]):
    """Holds the idle slots of a stream; `state` is set before the first one is taken."""

    def __init__(
        self, model: Model, ports: Ports, state: StreamState | None, memory: MemorySource
    ) -> None:
        super().__init__(ports)
        self.state = state
        self._model = model
        self._memory = memory

    def _another(self, priority: Priority | None) -> BurstSlot:
        return BurstSlot(self._model, self._ports, self.state, self._memory)


class OrderedCalls(ABC):
    """Calls in order; only the success of one makes the state that it wrote the one that counts."""

    def __init__(self, workers: Workers, state: StreamState | None) -> None:
        self._workers = workers
        self._state = state
        self._lock = threading.Lock()
        self._pending: deque[BurstCall] = deque()
        self._running: BurstCall | None = None
        self._last: BurstCall | None = None

    @abstractmethod
    def _send(self, call: BurstCall) -> None:
        """Have the device execute the call that leads, on any thread."""

    def _takes_lead(self, call: BurstCall) -> bool:
        """Returns whether the call must be sent now; else it was queued or answered."""
        if call.config.deadline_ns != NEVER_NS and self._running is not None:
            text = "the deadline passed while earlier calls of the burst were running"
            try:
                # Before it is queued: what nobody watches is not to run behind the caller's back.
                call.alarm = self._alarm(
                    call.config.deadline_ns,
                    lambda: self._withdraw(call, MissedDeadlinePersistent(text)),
                )
            except NNError as error:
                call.answer(error)
                return False
        with self._lock:
            leads = self._running is None and not call.given_up
            if leads:
                self._running = call
                self._last = None
            else:
                self._pending.append(call)
        if leads and call.alarm is not None:
            call.alarm.disarm()
        return leads

    def _alarm(self, at_ns: int, ring: Callable[[], object]) -> Alarm:
        """Watch the deadline of a call; raises a typed error if that is not possible."""
        try:
            return self._workers.watchdog.arm(at_ns, ring)
        except BadState as error:
            raise DeviceUnavailable("the runtime is closing") from error
        except RuntimeError as error:
            text = f"no thread for the deadlines of a burst: {error}"
            raise ResourceExhaustedTransient(text) from error

    def _ended(self, call: BurstCall, outcome: Outcome) -> None:
        """Takes the device's answer: commits the state, sends the next call, wakes the waiter."""
        with self._lock:
            if self._state is not None and not isinstance(outcome, NNError) and not call.given_up:
                self._state.advance()
                self._last = call
            following = self._next()
            self._running = following
            if following is not None:
                self._last = None
            call.answer(outcome)
        if call.sender == threading.get_ident():
            # Sent from here, each call would nest in the answer of the one before.
            call.following = following
        elif following is not None:
            self._send(following)
        call.settle(outcome)

    def _next(self) -> BurstCall | None:
        while self._pending:
            call = self._pending.popleft()
            if call.outcome is None and not call.given_up:
                if call.alarm is not None:
                    call.alarm.disarm()
                return call
        return None

    def _withdraw(self, call: BurstCall, error: NNError) -> None:
        """Answer a call that waits in the queue; one that was sent is left to the device."""
        with self._lock:
            if call is self._running or call.outcome is not None:
                return
            call.given_up = True
        call.settle(error)
