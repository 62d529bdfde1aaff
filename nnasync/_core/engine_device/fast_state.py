"""The fast state of a device for one burst.

It is entered when the burst opens and left when it closes. In between the idle watchdog looks at
it now and then: a burst that went without a call for several looks leaves it, so that the device
gives its scratch back, and is made fast again by its next call.
"""

from __future__ import annotations

import threading
import weakref

from nnasync._core.workers import Workers

FAST_STATE_LOOKS = 6
"""So many looks of the watchdog without a call in between end the fast state of a burst."""


class FastState:
    """The fast state of the device for one burst; `belongs_to` names the client's end of it."""

    __slots__ = ("_idle_looks", "_left", "_lock", "_owner", "_workers", "is_hot", "is_used")

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self.is_used = True
        """Whether there was a call since the last look."""
        self._idle_looks = 0
        self._left = False
        self._owner: weakref.ref[object] | None = None
        self.is_hot = True
        workers.enter_fast_state()

    def belongs_to(self, owner: object) -> None:
        """Ends the fast state with this object, should that be dropped without closing."""
        self._owner = weakref.ref(owner)

    def touch(self) -> None:
        """Notes a call of the burst, which enters the fast state again if it was left."""
        self.is_used = True
        if not self.is_hot:
            self._set(hot=True)

    def look(self) -> bool:
        """Returns whether the burst still exists; the idle watchdog calls this now and then."""
        if self._owner is not None and self._owner() is None:
            self.leave()
        if self._left:
            return False
        used, self.is_used = self.is_used, False
        self._idle_looks = 0 if used else self._idle_looks + 1
        if self._idle_looks >= FAST_STATE_LOOKS:
            self._set(hot=False)
        return True

    def leave(self) -> None:
        """Ends the fast state for good; may be repeated."""
        self._set(hot=False)
        self._left = True

    def _set(self, *, hot: bool) -> None:
        with self._lock:
            if hot == self.is_hot or self._left:
                return
            self.is_hot = hot
            if hot:
                self._workers.enter_fast_state()
            else:
                self._workers.leave_fast_state()
