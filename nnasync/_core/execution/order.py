"""The order of the calls of a burst: one at a time, each on the state that the last one left."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from nnasync._core.clock import Alarm
from nnasync._core.execution.calls import BurstCall
from nnasync._core.execution.stream_state import StreamState
from nnasync._core.workers import Workers
from nnasync.burst import Outcome
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    MissedDeadlinePersistent,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.scheduler import NEVER_NS

__all__ = ["OrderedCalls"]


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
        """Whether the stream is idle and the call must be sent; else it is queued or answered."""
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
        """The device answered: commit the state, send the next call, wake the waiter."""
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
