"""Time as integer nanoseconds of CLOCK_MONOTONIC, and the one thread that fires deadlines.

Loops are poor clocks for deadlines: anyio's does not exist in worker threads, uvloop's is a
millisecond grained and may fire early. So deadlines are plain numbers that any thread compares, and
a `Watchdog` calls back when one passes: never before it, and a fraction of a millisecond after. Its
thread sleeps until the earliest alarm and is woken only for an earlier one; disarming marks an
alarm dead and leaves it in the heap, so a stream of calls that all end in time costs the thread one
wake-up per deadline period, not one per call.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Never, overload

from nnasync import errors, hal
from nnasync._core.real_time import REAL_TIME, Policy

logger = logging.getLogger(__name__)

now_ns = time.monotonic_ns
"""Now, in nanoseconds of CLOCK_MONOTONIC."""

_FURTHEST_NS = 2**62
_COMPACT_FROM = 64
_RUNNING = -(2**64)
_PARKED = 2**64


class Deadline(hal.Struct, frozen=True, order=True):
    """A point in time by which an answer is due, in nanoseconds of CLOCK_MONOTONIC."""

    at_ns: int

    def __post_init__(self) -> None:
        at_ns: object = self.at_ns
        if at_ns.__class__ is not int or not -(2**63) <= self.at_ns < 2**63:
            raise errors.InvalidArgument(
                f"a deadline is at a whole number of nanoseconds below 2**63, got {at_ns!r}; "
                "within(ms=20) makes one"
            )

    @property
    def passed(self) -> bool:
        """Returns whether the deadline is over now."""
        return time.monotonic_ns() >= self.at_ns

    def passed_at(self, now_ns: int) -> bool:
        """Returns whether the deadline is over at `now_ns`."""
        return now_ns >= self.at_ns

    def remaining_ns(self, now_ns: int | None = None) -> int:
        """Nanoseconds left, at `now_ns` or now; negative once the deadline is over."""
        return self.at_ns - (time.monotonic_ns() if now_ns is None else now_ns)


@overload
def within(*, s: float = 0, ms: float = 0, us: float = 0) -> Deadline: ...
@overload
def within(*unnamed: Never, **unknown: Never) -> Never: ...
def within(
    *unnamed: object, s: float = 0, ms: float = 0, us: float = 0, **unknown: object
) -> Deadline:
    """The deadline that lies the given time from now; a negative time is a deadline in the past.

    Raises InvalidArgument for NaN, infinities and what is not a number, and TypeError where the
    unit is missing or is another one.
    """
    if unnamed or unknown:
        raise TypeError(_without_unit(unnamed, unknown))
    try:
        delta_ns = 1e9 * s + 1e6 * ms + 1e3 * us
        finite = math.isfinite(delta_ns)
    except TypeError as error:
        raise errors.InvalidArgument(
            f"within() takes numbers, got s={s!r}, ms={ms!r}, us={us!r}"
        ) from error
    if not finite:
        raise errors.InvalidArgument(
            f"within() takes finite numbers, got s={s!r}, ms={ms!r}, us={us!r}"
        )
    at_ns = time.monotonic_ns() + int(delta_ns)
    return Deadline(max(-_FURTHEST_NS, min(at_ns, _FURTHEST_NS)))


def _without_unit(unnamed: Sequence[object], unknown: Mapping[str, object]) -> str:
    given = ", ".join([*map(repr, unnamed), *(f"{name}={unknown[name]!r}" for name in unknown)])
    return (
        f"within({given}) does not say the unit as within() takes it: s=, ms= or us=, such as "
        "within(ms=20)"
    )


def due_ns(deadline: Deadline) -> int | None:
    """Returns the time of a deadline; None for what an application gave that is no deadline."""
    return deadline.at_ns if deadline.__class__ is Deadline else None


class Alarm:
    """One armed deadline of a watchdog."""

    __slots__ = ("_callback", "_watchdog", "at_ns")

    def __init__(self, at_ns: int, callback: Callable[[], object], watchdog: Watchdog) -> None:
        self.at_ns = at_ns
        self._callback: Callable[[], object] | None = callback
        self._watchdog = watchdog

    def disarm(self) -> bool:
        """Make sure the callback is not called; False if it was called, or is running now."""
        return self._watchdog._kill(self)


class Watchdog:
    """Calls back at deadlines, on one daemon thread that starts with the first alarm."""

    __slots__ = ("_closed", "_dead", "_heap", "_lock", "_sequence", "_thread", "_wake", "_wakes_at")

    def __init__(self) -> None:
        # Re-entrant: a finalizer may disarm while this thread is arming.
        self._lock = threading.RLock()
        self._wake = threading.Lock()
        self._wake.acquire()
        self._heap: list[tuple[int, int, Alarm]] = []
        self._sequence = 0
        self._dead = 0
        self._wakes_at = _PARKED
        self._thread: threading.Thread | None = None
        self._closed = False

    def arm(self, at_ns: int, callback: Callable[[], object]) -> Alarm:
        """Call `callback` on the watchdog's thread at or soon after `at_ns`, from any thread.

        The callback must be short: later alarms wait for it. Raises BadState once closed.
        """
        alarm = Alarm(at_ns, callback, self)
        with self._lock:
            if self._closed:
                raise errors.BadState("the watchdog is closed and takes no alarms")
            self._sequence = sequence = self._sequence + 1
            if at_ns < self._wakes_at:
                self._rouse()
            heapq.heappush(self._heap, (at_ns, sequence, alarm))
            if len(self._heap) >= _COMPACT_FROM and 2 * self._dead > len(self._heap):
                self._compact()
        return alarm

    def ring_due(self) -> None:
        """Call back what is due, on the calling thread; as a rule there is nothing.

        The watchdog's own thread may be late: it needs a core, and the interpreter lock.
        """
        heap = self._heap
        try:
            if heap[0][0] > time.monotonic_ns():
                return
        except IndexError:
            return
        while self._lock.acquire(blocking=False):
            try:
                callback = self._due()
            finally:
                self._lock.release()
            if callback is None:
                return
            try:
                callback()
            except Exception:
                logger.exception("a deadline's callback raised")

    def pending(self) -> int:
        """Number of alarms that may still fire."""
        with self._lock:
            return len(self._heap) - self._dead

    def close(self, patience_s: float | None = None) -> None:
        """Drop all alarms and end the thread; idempotent.

        Waits for a callback in progress, for `patience_s` at most where that is given.
        """
        with self._lock:
            self._closed = True
            self._heap.clear()
            self._dead = 0
            thread = self._thread
            if thread is not None:
                self._rouse()
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience_s)

    def _rouse(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="nnasync-watchdog", daemon=True)
            thread.start()
            self._thread = thread
        elif self._wake.locked():
            self._wake.release()
        self._wakes_at = _RUNNING

    def _kill(self, alarm: Alarm) -> bool:
        with self._lock:
            if alarm._callback is None:
                return False
            alarm._callback = None
            if not self._closed:
                self._dead += 1
            return True

    def _compact(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2]._callback is not None]
        heapq.heapify(self._heap)
        self._dead = 0

    def _run(self) -> None:
        usual: Policy | None = None
        while not self._closed:
            if REAL_TIME.is_wanted is (usual is None):
                usual = REAL_TIME.follow(usual)
            callback, until_ns = self._next()
            if callback is not None:
                _call(callback)
                del callback
            elif until_ns >= _PARKED:
                self._wake.acquire()
            else:
                # Reckoned last: what the thread loses between this and its sleep, it oversleeps.
                wait_s = max(0, until_ns - time.monotonic_ns()) * 1e-9
                self._wake.acquire(timeout=min(wait_s, threading.TIMEOUT_MAX))

    def _next(self) -> tuple[Callable[[], object] | None, int]:
        """The callback that is due now, or None and the time until which to sleep, if any."""
        with self._lock:
            self._wakes_at = _RUNNING
            callback = self._due()
            if callback is not None:
                return callback, 0
            self._wakes_at = at_ns = self._heap[0][0] if self._heap else _PARKED
            return None, at_ns

    def _due(self) -> Callable[[], object] | None:
        """Takes the callback that is due now, if there is one; the lock is held."""
        heap = self._heap
        while heap:
            at_ns, _, alarm = heap[0]
            callback = alarm._callback
            if callback is not None and at_ns > time.monotonic_ns():
                return None
            heapq.heappop(heap)
            if callback is not None:
                alarm._callback = None
                return callback
            self._dead -= 1
        return None


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except BaseException:
        # On our own thread, which goes on (`callbacks`).
        logger.exception("a deadline's callback raised")


class EarliestAlarm:
    """At most one alarm of a watchdog, the earliest that was asked for; its user has a lock."""

    __slots__ = ("_alarm", "_callback", "_watchdog")

    def __init__(self, watchdog: Watchdog, callback: Callable[[], object]) -> None:
        """`callback` says with `rang` that it was called."""
        self._watchdog = watchdog
        self._callback = callback
        self._alarm: Alarm | None = None

    @property
    def is_armed(self) -> bool:
        """Returns whether it is to ring."""
        return self._alarm is not None

    def arm(self, at_ns: int) -> None:
        """Ring then, unless it rings sooner; where no thread can be had it does not ring."""
        if at_ns >= hal.NEVER_NS or (self._alarm is not None and self._alarm.at_ns <= at_ns):
            return
        self.disarm()
        with contextlib.suppress(errors.BadState, RuntimeError):
            self._alarm = self._watchdog.arm(at_ns, self._callback)

    def rang(self) -> None:
        """Note that it has rung: the next `arm` counts."""
        self._alarm = None

    def disarm(self) -> None:
        """Do not ring."""
        if self._alarm is not None:
            self._alarm.disarm()
            self._alarm = None
