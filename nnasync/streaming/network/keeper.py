"""Keeps a connection to an address or a device: one after the other, with waits between them.

A thread makes the connections. Who takes items looks after it: a connection that is overdue is left
to itself, and another thread goes on from there. A driver may never come back, and each attempt may
end so: beyond `_MOST_HANGING` such threads no other attempt begins before one of them has ended.

What an attempt cannot mend (a wrong password, no such stream) is an error if it comes before the
first connection, and so is a device that does not open; after that everything is tried again, since
cameras also answer so while they start, and are not there while they are unplugged.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Literal

import anyio

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Waiter, Wakeup
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import Struct
from nnasync.streaming.lookahead import GRACE_S
from nnasync.streaming.network.backoff import Backoff
from nnasync.streaming.network.connection import Address, Connection
from nnasync.streaming.network.outlets import Outlet

logger = logging.getLogger(__name__)

EventKind = Literal["connected", "failed", "lost", "ended"]


_MOST_HANGING = 4


class SourceEvent(Struct, frozen=True):
    """What became of an attempt to connect: "connected" or "failed", and then "lost" or "ended".

    To open a device is to connect, too. A stream is "ended" by its sender if it was a recording, or
    if there is to be no other attempt. `epoch` numbers the connections from 0; items of it have the
    same one. `reason` says why it failed or was lost, `retry_s` how long it is until the next
    attempt, None if there is none.
    """

    kind: EventKind
    at_ns: int
    epoch: int
    reason: str = ""
    retry_s: float | None = None


class NetworkStatistics(Struct, frozen=True):
    """Counters of a stream: attempts to connect, those that succeeded, times that were mended."""

    attempts: int
    connections: int
    is_connected: bool
    times_mended: int
    last_error: str


class Keeper:
    """Makes connections for some outlets until all of them are left, or nothing is to be expected.

    Methods may be called from any thread, but for `start` and `leave`, which belong to the loop.
    """

    def __init__(
        self,
        address: Address,
        retry: Backoff | None,
        on_event: Callable[[SourceEvent], object] | None,
        uniform: Callable[[], float],
    ) -> None:
        self._address = address
        if retry is not None and not isinstance(retry, Backoff):
            raise InvalidArgument(
                f"retry is {retry!r}, it must be a Backoff, such as Backoff(), or None"
            )
        self._retry = retry
        self._on_event = on_event
        self._uniform = uniform
        self._lock = threading.RLock()
        self._outlets: list[Outlet] = []
        self._dropped: deque[Outlet] = deque()
        self._connection: Connection | None = None
        self._wakeup: Wakeup | None = None
        self._over = threading.Event()
        self._thread_ended: Future[None] = Future()
        self._hanging: list[Future[None]] = []
        self._first_by_ns = math.inf
        self._attempts = self._connections = self._failures = self._mended = 0
        self._last_error = ""

    def add(self, outlet: Outlet) -> None:
        """Adds an outlet; raises BadState once there is a connection."""
        if self._wakeup is not None:
            raise BadState("name all sources of a stream before the first of them is read")
        self._outlets.append(outlet)

    def start(self) -> None:
        """Starts to connect, unless that has begun."""
        if self._wakeup is not None:
            return
        self._wakeup = Wakeup.current()
        if self._address.open_timeout_s is not None:
            self._first_by_ns = now_ns() + self._address.open_timeout_s * 1e9
        self._start_thread(0.0)

    def left_s(self) -> float:
        """Returns how many seconds are left until somebody has to look after the connection."""
        with self._lock:
            left_s = math.inf if self._connection is None else self._connection.reading.left_s
            if not self._connections:
                left_s = min(left_s, (self._first_by_ns - now_ns()) / 1e9)
        return max(left_s, 0.0)

    def look_after(self) -> None:
        """Leave a connection that is overdue to itself, and have another thread go on."""
        with self._lock:
            connection = self._connection
            if self._over.is_set() or self.left_s() > 0:
                return
            self._connection = None
            error: NNError = DeviceUnavailable(self._last_error)
            if connection is not None:
                connection.leave()
                self._hanging.append(self._thread_ended)
                error = connection.reading.overdue()
                if not self._connections and self._last_error:
                    # The attempts before this one say more of why there is no connection.
                    error = DeviceUnavailable(f"{error}: {self._last_error}")
            wait_s = self._lost(connection, error)
        if wait_s is not None:
            self._start_thread(wait_s)

    def drop(self, outlet: Outlet) -> None:
        """Have the thread forget an outlet when it looks; for finalizers, which must not wait.

        Garbage is collected at any moment, also while the same thread holds a lock.
        """
        self._dropped.append(outlet)

    def forget(self, outlet: Outlet) -> None:
        """Notes that nobody reads this outlet any more.

        After the last one the connection is closed.
        """
        with self._lock:
            if outlet in self._outlets:
                self._outlets.remove(outlet)
            if not self._outlets:
                self._end(None)

    async def leave(self, outlet: Outlet) -> None:
        """Forget an outlet; with the last one the thread ends, or is left to itself."""
        self.forget(outlet)
        if self._outlets or self._wakeup is None:
            return
        waiter = Waiter()
        self._thread_ended.add_done_callback(waiter.wake)
        with anyio.move_on_after(GRACE_S, shield=True):
            await waiter.wait()

    def statistics(self) -> NetworkStatistics:
        """Counters so far."""
        with self._lock:
            connection = self._connection
            return NetworkStatistics(
                self._attempts,
                self._connections,
                connection is not None and connection.reading.is_open,
                self._mended + (0 if connection is None else connection.mended),
                self._last_error,
            )

    # -- the thread

    def _start_thread(self, wait_s: float) -> None:
        ended: Future[None] = Future()
        self._thread_ended = ended
        thread = threading.Thread(
            target=self._keep, args=(wait_s, ended), name="nnasync-network", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            ended.set_result(None)
            text = f"no thread to read {self._address.name}: {error}"
            self._end(ResourceExhaustedTransient(text))

    def _forget_dropped(self) -> None:
        while self._dropped:
            self.forget(self._dropped.popleft())

    def _keep(self, wait_s: float | None, ended: Future[None]) -> None:
        try:
            while wait_s is not None and not self._over.wait(wait_s):
                connection = self._attempt()
                error = self._all_hang() if connection is None else connection.run()
                self._forget_dropped()
                with self._lock:
                    if self._connection is not connection:
                        return  # It was overdue, and another thread went on.
                    self._connection = None
                    wait_s = self._lost(connection, error)
        finally:
            ended.set_result(None)

    def _attempt(self) -> Connection | None:
        """Starts the next connection; returns None where too many earlier ones hang."""
        with self._lock:
            self._attempts += 1
            self._hanging = [ended for ended in self._hanging if not ended.done()]
            if len(self._hanging) < _MOST_HANGING:
                self._connection = Connection(
                    self._address,
                    self._connections,
                    tuple(self._outlets),
                    opened=self._opened,
                    look=self._forget_dropped,
                )
            return self._connection

    def _all_hang(self) -> NNError:
        return DeviceUnavailable(
            f"{self._address.name} is not tried: {_MOST_HANGING} attempts before have not come back"
        )

    def _opened(self, connection: Connection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connections += 1
                self._failures = 0
                self._tell("connected", connection.epoch)

    def _lost(self, connection: Connection | None, error: NNError | None) -> float | None:
        """Returns the wait after a connection that broke or failed; None if no attempt follows."""
        if self._over.is_set():
            return None
        epoch = self._connections if connection is None else connection.epoch
        if connection is not None:
            self._mended += connection.mended
        self._failures += 1
        ended = f"{self._address.name} was ended by its sender"
        self._last_error = ended if error is None else str(error)
        final = self._final(connection, error)
        wait_s = None
        if self._retry is not None and final is None and not self._is_at_end(connection, error):
            wait_s = self._retry.wait_s(self._failures, self._uniform())
            if wait_s is None:
                final = self._given_up(f"after {self._failures} attempts", error)
        was_open = connection is not None and connection.reading.is_open
        kind: EventKind = "lost" if was_open else "failed"
        if error is None and wait_s is None and final is None:
            kind = "ended"
        self._tell(kind, epoch, wait_s)
        if wait_s is None:
            self._end(final or (error if self._retry is None else None))
        return wait_s

    def _is_at_end(self, connection: Connection | None, error: NNError | None) -> bool:
        """Returns whether the connection played a recording, and has reached its end."""
        return error is None and connection is not None and connection.is_finite

    def _final(self, connection: Connection | None, error: NNError | None) -> NNError | None:
        """Returns the error that ends the stream because no connection was ever made."""
        if self._connections or error is None:
            return None
        if isinstance(error, InvalidArgument) or self._address.format:
            return error
        if now_ns() < self._first_by_ns:
            return None
        return self._given_up(f"within {self._address.open_timeout_s:g} s (open_timeout_s)", error)

    def _given_up(self, when: str, error: NNError | None) -> NNError:
        text = f"{self._address.name} could not be opened {when}"
        if error is not None and text in self._last_error:
            return error
        given_up = DeviceUnavailable(f"{text}: {self._last_error}" if self._last_error else text)
        given_up.__cause__ = error
        return given_up

    def _end(self, error: NNError | None) -> None:
        self._over.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._mended += connection.mended
            connection.leave()
        for outlet in self._outlets:
            outlet.mailbox.end(error)

    def _tell(self, kind: EventKind, epoch: int, retry_s: float | None = None) -> None:
        reason = "" if kind == "connected" else self._last_error
        event = SourceEvent(kind, now_ns(), epoch, reason, retry_s)
        if kind in ("failed", "lost"):
            logger.warning("%s: %s", kind, reason)
        if self._on_event is not None and self._wakeup is not None:
            self._wakeup.post(partial(_call, self._on_event, event))


def _call(on_event: Callable[[SourceEvent], object], event: SourceEvent) -> None:
    try:
        on_event(event)
    except Exception:
        logger.exception("on_event raised for %r", event)
