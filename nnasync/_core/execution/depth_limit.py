"""Calls of a burst that wait because as many as its depth allows are in flight."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Literal

from nnasync._core.clock import Watchdog
from nnasync._core.wakeup import Wakeup
from nnasync.errors import (
    BadState,
    InvalidArgument,
    MissedDeadlinePersistent,
    ResourceExhaustedTransient,
    because,
)
from nnasync.fences import Fence
from nnasync.hal import NEVER_NS

OnFull = Literal["wait", "refuse"]
"""What becomes of a call beyond the depth of its burst."""


class DepthLimit:
    """Counts the calls in flight, and queues those beyond the depth; for one loop.

    A call stays among those that wait until it goes on, so that nobody who comes later goes first.
    """

    def __init__(self, depth: int, on_full: OnFull, watchdog: Watchdog) -> None:
        if depth < 1:
            raise InvalidArgument(f"depth must be 1 or more, got {depth}")
        if on_full not in ("wait", "refuse"):
            raise InvalidArgument(f'on_full must be "wait" or "refuse", got {on_full!r}')
        self.in_flight = 0
        self.is_full = False
        """Whether a call that comes now has to wait."""
        self._depth = depth
        self._refuses = on_full == "refuse"
        self._is_held = False
        self._waiting: deque[Fence] = deque()
        self._watchdog = watchdog

    def enter(self) -> None:
        """Counts a call in."""
        self.in_flight += 1
        self._look()

    def leave(self) -> None:
        """Counts a call out."""
        self.in_flight -= 1
        self._look()
        if self._waiting:
            self._let_go_on()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds back calls that come meanwhile; raises BadState while any are in flight."""
        if self.in_flight or self._is_held:
            raise BadState("the state is in use while calls are in flight; await them first")
        self._is_held = True
        self._look()
        try:
            yield
        finally:
            self._is_held = False
            self._look()
            self._let_go_on()

    async def wait(self, deadline_ns: int) -> None:
        """Waits for a place, until the deadline at most; cancelling is safe.

        Raises ResourceExhaustedTransient where calls are to be refused.
        """
        if self._refuses and (not self._is_held or len(self._waiting) >= self._depth):
            text = f"{self._depth} calls are in flight on this burst already (its depth)"
            raise because("burst_depth", ResourceExhaustedTransient(text))
        place, alarm = Fence(), None
        if deadline_ns != NEVER_NS:
            late = MissedDeadlinePersistent(
                "the deadline passed while earlier calls of the burst were running"
            )
            alarm = self._watchdog.arm(deadline_ns, lambda: place.fail(late))
        self._waiting.append(place)
        self._look()
        try:
            await place
        finally:
            self._waiting.remove(place)
            self._look()
            if alarm is not None:
                alarm.disarm()
            if self._waiting:
                # In another turn: until then it is not known whether this call takes the place.
                Wakeup.current().post(self._let_go_on)

    def close(self, error: Exception) -> None:
        """Ends all waits with the error."""
        for place in tuple(self._waiting):
            place.fail(error)

    def _look(self) -> None:
        is_taken = self.in_flight >= self._depth or self._is_held
        self.is_full = is_taken or len(self._waiting) > 0

    def _let_go_on(self) -> None:
        """Tells the first waiter that there is a place.

        The next is told when that one has gone on.
        """
        if self._waiting and self.in_flight < self._depth and not self._is_held:
            self._waiting[0].signal()
