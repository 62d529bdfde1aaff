"""A client's way to a driver service: calls that are answered once, whatever happens to it.

One thread reads what the service says and settles fences, so that a chain of executions, or the
death of the service, needs no turn of an event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnasync.clock import Watchdog, now_ns
from nnasync.drivers.service.connection import Connection, close_all
from nnasync.drivers.service.messages import (
    Answer,
    Cancel,
    Failed,
    FromService,
    LaunchEnded,
    decode,
    encode,
    error_of,
)
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
)
from nnasync.fences import Fence, fresh
from nnasync.scheduler import NEVER_NS

__all__ = ["Call", "Link", "Listener", "Source"]

logger = logging.getLogger(__name__)

LATE_NS = 500_000
"""The service answers at the deadline itself; a client that hears nothing gives up a bit later."""


class Source(Protocol):
    """Where a service is found."""

    def open(self) -> Any:
        """A connected socket; may block. Raises DeviceUnavailable."""

    def ended(self) -> None:
        """The connection is over; may block a little."""


class Listener(Protocol):
    """Hears what the service says unasked."""

    def heard(self, message: LaunchEnded) -> None:
        """Called on the thread of the link."""

    def died(self, error: NNError) -> None:
        """The last that is heard; on any thread."""


class Call:
    """One question; `fence` is settled with the answer there, or an error."""

    __slots__ = ("fds", "fence", "number", "value")

    def __init__(self, number: int) -> None:
        self.number = number
        self.fence = Fence()
        self.value = b""
        self.fds: list[int] = []

    def take_fd(self) -> int:
        """The descriptor that came with the answer, the caller's then; -1 if none did."""
        return self.fds.pop() if self.fds else -1

    def drop(self) -> None:
        """Close descriptors that nobody took."""
        close_all(self.fds)
        self.fds = []

    def __del__(self) -> None:
        self.drop()


class Link:
    """One connection to a service; ends with the service, or by `close`."""

    def __init__(self, source: Source, who: str) -> None:
        """Opens the source, which may block."""
        self.who = who
        self._source = source
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._listeners: dict[int, Listener] = {}
        self._last_words: deque[Any] = deque()
        self._saying = threading.Lock()
        self._error: NNError | None = None
        self.ended = Fence()
        self.watchdog = Watchdog()
        # Finalizers come here too, perhaps on a thread that is inside already.
        self._wake_lock = threading.RLock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._connection = Connection(source.open(), who, self._rouse)
        except BaseException:
            os.close(self._wake_fd)
            raise
        threading.Thread(target=self._run, name="nnasync-service", daemon=True).start()

    @property
    def connection(self) -> Connection:
        """The connection, for its counts."""
        return self._connection

    @property
    def error(self) -> NNError | None:
        """Why the link is over, None while it is not."""
        return self._error

    def check(self) -> None:
        """Raise why the link is over, if it is."""
        if self._error is not None:
            raise fresh(self._error)

    def number(self) -> int:
        """A number that was not used before."""
        return next(self._numbers)

    # -- calls

    def check_time(self, deadline_ns: int) -> None:
        """Raise MissedDeadlinePersistent where nothing can be answered in time any more."""
        if deadline_ns <= now_ns():
            raise MissedDeadlinePersistent(f"the deadline of {self.who} had passed at the start")

    def begin(self, make: Callable[[int], Any], fds: Sequence[int] = ()) -> Call:
        """Send a question, which is made with the number of the call; from any thread."""
        self._say_last_words()
        call = Call(self.number())
        with self._lock:
            self.check()
            self._calls[call.number] = call
        try:
            self._connection.send(encode(make(call.number)), fds)
        except BaseException as error:
            self._calls.pop(call.number, None)
            if isinstance(error, TypeError | OverflowError):
                raise InvalidArgument(f"this cannot be sent to a service: {error}") from error
            raise
        return call

    async def call(
        self,
        make: Callable[[int], Any],
        fds: Sequence[int] = (),
        *,
        answer: Any = None,
        deadline_ns: int = NEVER_NS,
    ) -> Any:
        """Ask and wait for an answer of the type `answer`; raises what the service answers.

        Raises DeviceDied when the service ends, MissedDeadlineTransient when it is silent.
        """
        call = self.begin(make, fds)
        await self.wait(call, deadline_ns)
        return None if answer is None else decode(call.value, answer)

    async def wait(self, call: Call, deadline_ns: int = NEVER_NS) -> None:
        """Wait for the answer to a call; who is cancelled meanwhile cancels it."""
        alarm = None
        if deadline_ns != NEVER_NS and not call.fence.done:

            def expire() -> None:
                text = f"{self.who} did not answer by the deadline"
                if call.fence.fail(MissedDeadlineTransient(text)):
                    self.give_up(call)

            alarm = self.watchdog.arm(deadline_ns + LATE_NS, expire)
        try:
            await call.fence
        except BaseException:
            if not call.fence.done:
                self.give_up(call)
            raise
        finally:
            if alarm is not None:
                alarm.disarm()

    def give_up(self, call: Call) -> None:
        """Tell the service that nobody waits for a call."""
        if self._calls.pop(call.number, None) is not None:
            self.tell(Cancel(call.number))

    def send(self, message: Any) -> None:
        """Send what has no answer, from any thread; raises DeviceDied, ResourceExhausted."""
        self._connection.send(encode(message))

    def tell(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send what has no answer, from any thread; nothing happens once the link is over."""
        self._say_last_words()
        try:
            self._connection.send(encode(message), fds)
        except DeviceDied:
            pass
        except NNError:
            if fds:
                raise
            self.tell_soon(message)

    def tell_soon(self, message: Any) -> None:
        """Have what has no answer sent by the link's thread; safe in finalizers."""
        self._last_words.append(message)
        self._rouse()

    # -- what the service says unasked

    def listen(self, number: int, listener: Listener) -> None:
        """Hand on what is said under a number; raises if the link is over."""
        with self._lock:
            self.check()
            self._listeners[number] = listener

    def hush(self, number: int) -> None:
        """Hand nothing on any more; safe in finalizers."""
        self._listeners.pop(number, None)

    # -- the end

    def close(self) -> None:
        """End the link; what is pending fails. `ended` is signaled when all is given back."""
        self._fail(DeviceUnavailable(f"{self.who} was closed"))
        self._rouse()

    def _fail(self, error: NNError) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            calls, self._calls = self._calls, {}
            listeners, self._listeners = self._listeners, {}
        for call in calls.values():
            call.fence.fail(error)
        for listener in listeners.values():
            listener.died(error)

    def _rouse(self) -> None:
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        error: NNError = DeviceDied(f"the service of {self.who} ended")
        try:
            self._serve()
        except NNError as failure:
            error = failure
        except Exception as failure:
            logger.exception("the link to %s failed", self.who)
            error = DeviceDied(f"the link to {self.who} failed: {failure}")
        self._fail(error)
        self._connection.close()
        with self._wake_lock:
            fd, self._wake_fd = self._wake_fd, -1
            os.close(fd)
        self.watchdog.close()
        try:
            self._source.ended()
        finally:
            self.ended.signal()

    def _serve(self) -> None:
        """Read and write until the service ends, or the link was closed."""
        connection = self._connection
        socket_fd = connection.socket.fileno()
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        poller.register(socket_fd, select.POLLIN)
        writes = False
        while self._error is None:
            events = dict(poller.poll())
            if events.get(self._wake_fd):
                os.eventfd_read(self._wake_fd)
                self._say_last_words()
            if events.get(socket_fd, 0) & ~select.POLLOUT:
                frames = connection.receive()
                if frames is None:
                    return
                for frame in frames:
                    try:
                        self._hear(decode(frame.message, FromService), frame.fds)
                    finally:
                        frame.close()
            blocked = not connection.flush()
            if blocked != writes:
                writes = blocked
                poller.modify(socket_fd, select.POLLIN | (select.POLLOUT if writes else 0))

    def _say_last_words(self) -> None:
        """Send what finalizers left; before a call too, which may need what they give back."""
        # Also where none are left: another thread may be about to send the last one.
        with self._saying:
            while self._last_words and not self._connection.has_waiting:
                with contextlib.suppress(DeviceDied):
                    self._connection.send(encode(self._last_words.popleft()))

    def _hear(self, message: Any, fds: list[int]) -> None:
        if not isinstance(message, Answer):
            listener = self._listeners.get(message.launch)
            if listener is not None:
                try:
                    listener.heard(message)
                except Exception:
                    logger.exception("what %s said was not taken", self.who)
            return
        call = self._calls.pop(message.call, None)
        if call is None:
            return
        if isinstance(message.value, Failed):
            call.fence.fail(error_of(message.value))
            return
        call.value = message.value
        call.fds.extend(fds)
        fds.clear()
        if not call.fence.signal():
            call.drop()
