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
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from nnasync._core.clock import Alarm, Watchdog, now_ns
from nnasync._core.drivers.service.call_observer import UNOBSERVED
from nnasync._core.drivers.service.child import Peer
from nnasync._core.drivers.service.heartbeat import Heartbeat
from nnasync._core.wire.connection import close_all
from nnasync._core.wire.messages import (
    Answer,
    Cancel,
    Failed,
    FromService,
    LaunchEnded,
    Ping,
    decode,
    encode,
    error_of,
)
from nnasync.errors import (
    BadState,
    DeviceDied,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence, fresh
from nnasync.scheduler import NEVER_NS

logger = logging.getLogger(__name__)

LATE_NS = 500_000
"""The service answers at the deadline itself; a client that hears nothing gives up a bit later."""


class Source(Protocol):
    """The place where a service is found, such as an address or a process to start."""

    @property
    def restarts(self) -> bool:
        """Returns whether a service that died can be had again at once."""

    def open(self) -> Peer:
        """A connection to a service; may block. Raises DeviceUnavailable."""


class Listener(Protocol):
    """Hears what the service says unasked."""

    @property
    def is_awaited(self) -> bool:
        """Returns whether anything is still expected of the service."""

    def heard(self, message: LaunchEnded) -> None:
        """Called on the thread of the link."""

    def died(self, error: NNError) -> None:
        """The last that is heard, on any thread; the error is the listener's own."""


class Reclaimable(Protocol):
    """Holds something that the client can release when room is short."""

    def release_idle(self) -> bool:
        """Release it unless it is in use; whether anything was released."""

    def close(self) -> None:
        """Give it back; on any thread."""


class ControlCall:
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
        """Close descriptors that were not claimed."""
        close_all(self.fds)
        self.fds = []

    def __del__(self) -> None:
        self.drop()


class Link:
    """One connection to a service; ends with the service, or by `close`."""

    def __init__(self, source: Source, who: str) -> None:
        """Opens the source, which may block.

        Raises DeviceUnavailable, OSError where no descriptor is left, ResourceExhaustedTransient
        where no thread is.
        """
        self.who = who
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._calls: dict[int, ControlCall] = {}
        self._listeners: dict[int, Listener] = {}
        self._deferred_messages: deque[Any] = deque()
        self._deferred_work: deque[Callable[[], object]] = deque()
        self._working = threading.RLock()
        self._reclaimable: weakref.WeakSet[Reclaimable] = weakref.WeakSet()
        self._saying = threading.Lock()
        self.error: NNError | None = None
        """Why the link is over, None while it is not."""
        self.over = Fence()
        """Signaled when everything that was pending has its answer."""
        self.ended = Fence()
        """Signaled when everything is given back, too, and a process of ours is reaped."""
        self.is_dead = False
        """Whether the service has died, for certain, though perhaps not to the end."""
        self.watchdog = Watchdog()
        self.traces = UNOBSERVED
        self.heartbeat = Heartbeat(self.watchdog, self.is_awaited, self._ping, self._wake)
        # Finalizers come here too, perhaps on a thread that is inside already.
        self._wake_lock = threading.RLock()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self.peer = source.open()
        except BaseException:
            os.close(self._wake_fd)
            raise
        try:
            self.connection = self.peer.connection(who, self._wake)
            threading.Thread(target=self._run, name="nnasync-service", daemon=True).start()
        except BaseException as error:
            self._give_back()
            if isinstance(error, RuntimeError):
                text = f"no thread for the connection to {who}: {error}"
                raise ResourceExhaustedTransient(text) from error
            raise

    def check(self) -> None:
        """Raise why the link is over, if it is."""
        if self.error is not None:
            raise fresh(self.error)

    def number(self) -> int:
        """A number that was not used before."""
        return next(self._numbers)

    # -- calls

    def check_time(self, deadline_ns: int) -> None:
        """Raise MissedDeadlinePersistent where nothing can be answered in time any more."""
        if deadline_ns <= now_ns():
            raise MissedDeadlinePersistent(f"the deadline of {self.who} had passed at the start")

    def check_room(self) -> None:
        """Raise ResourceExhaustedTransient where the descriptor of an answer could not be taken.

        It would be lost, and the connection with it.
        """
        try:
            os.close(os.dup(self._wake_fd))
        except OSError as error:
            self.check()
            text = f"no descriptor is left for an answer of {self.who}: {error}"
            raise ResourceExhaustedTransient(text) from error

    def begin(self, make: Callable[[int], Any], fds: Sequence[Any] = ()) -> ControlCall:
        """Send a question, which is made with the number of the call; from any thread.

        `fds` are the descriptors that go with it, or values where the service is far away.
        """
        self.run_deferred()
        self._send_deferred()
        call = ControlCall(self.number())
        with self._lock:
            self.check()
            self._calls[call.number] = call
        self.heartbeat.expect()
        try:
            self.connection.send(encode(make(call.number)), fds)
        except BaseException as error:
            self._calls.pop(call.number, None)
            if isinstance(error, TypeError | OverflowError):
                raise InvalidArgument(f"this cannot be sent to a service: {error}") from error
            raise
        return call

    async def call(
        self,
        make: Callable[[int], Any],
        fds: Sequence[Any] = (),
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

    async def wait(self, call: ControlCall, deadline_ns: int = NEVER_NS) -> None:
        """Wait for the answer to a call; who is cancelled meanwhile cancels it."""
        await self.settled(call.fence, deadline_ns, lambda: self.give_up(call))

    async def settled(self, fence: Fence, deadline_ns: int, give_up: Callable[[], object]) -> None:
        """Wait for a fence that an answer settles; who has waited too long or leaves gives it up.

        Raises what the answer is, MissedDeadlineTransient where there is none by the deadline.
        """

        def expire() -> None:
            text = f"{self.who} did not answer by the deadline"
            if fence.fail(MissedDeadlineTransient(text)):
                give_up()

        alarm = None
        try:
            if deadline_ns != NEVER_NS and not fence.done:
                alarm = self.alarm(deadline_ns + LATE_NS, expire)
            await fence
        except BaseException:
            if not fence.done:
                give_up()
            raise
        finally:
            if alarm is not None:
                alarm.disarm()

    def alarm(self, at_ns: int, callback: Callable[[], object]) -> Alarm | None:
        """Have something called at a time; None where the link is over, which answers all.

        Raises ResourceExhaustedTransient where there is no thread for it.
        """
        try:
            return self.watchdog.arm(at_ns, callback)
        except BadState:
            return None
        except RuntimeError as error:
            text = f"no thread for the deadlines of {self.who}: {error}"
            raise ResourceExhaustedTransient(text) from error

    def give_up(self, call: ControlCall) -> None:
        """Tell the service that nobody waits for a call."""
        if self._calls.pop(call.number, None) is not None:
            self.notify(Cancel(call.number))

    def send(self, message: Any) -> None:
        """Send what has no answer, from any thread; raises DeviceDied, ResourceExhausted."""
        self.connection.send(encode(message))

    def notify(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message without an answer, from any thread.

        Does nothing after the end of the link.
        """
        self._send_deferred()
        try:
            self.connection.send(encode(message), fds)
        except DeviceDied:
            pass
        except NNError:
            if fds:
                raise
            self.notify_soon(message)

    def notify_soon(self, message: Any) -> None:
        """Send a message without an answer from the link's thread; safe in finalizers."""
        self._deferred_messages.append(message)
        self._wake()

    def run_soon(self, work: Callable[[], object]) -> None:
        """Run something on the link's thread, unless the link is over; safe in finalizers."""
        if self.error is None:
            self._deferred_work.append(work)
            self._wake()

    def run_deferred(self) -> None:
        """Run the work that finalizers deferred; done before a call, which may need the room."""
        # Also where nothing is left: another thread may be about to do the last of it.
        with self._working:
            while self._deferred_work and self.error is None:
                with self._contained():
                    self._deferred_work.popleft()()

    # -- what can be done without

    def keep_reclaimable(self, holder: Reclaimable) -> None:
        """Register a holder to close at the end of the link, or to release when room is short."""
        with self._lock:
            self._reclaimable.add(holder)

    def make_room(self) -> bool:
        """Release what the holders can spare; whether there was anything."""
        return sum(holder.release_idle() for holder in self._holders()) > 0

    def _holders(self) -> list[Reclaimable]:
        with self._lock:
            return list(self._reclaimable)

    # -- what the service says unasked

    def listen(self, number: int, listener: Listener) -> None:
        """Pass messages with this number to the listener; raises if the link is over."""
        with self._lock:
            self.check()
            self._listeners[number] = listener
        self.heartbeat.expect()

    def unlisten(self, number: int) -> None:
        """Stop passing messages to the listener; safe in finalizers."""
        self._listeners.pop(number, None)

    # -- the end

    def close(self) -> None:
        """End the link; pending calls fail. `ended` is signaled when everything is released."""
        self._fail(DeviceUnavailable(f"{self.who} was closed"))
        self._wake()

    def _fail(self, error: NNError) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            calls, self._calls = self._calls, {}
            listeners, self._listeners = self._listeners, {}
        for call in calls.values():
            call.fence.fail(fresh(error))
        for listener in listeners.values():
            twin = fresh(error)
            listener.died(twin if isinstance(twin, NNError) else error)

    def _give_back(self) -> None:
        """Undo the start of a link whose thread did not start; our own process is reaped."""
        with self._wake_lock:
            fd, self._wake_fd = self._wake_fd, -1
            os.close(fd)
        self.peer.socket.close()
        self.peer.kill()
        self.peer.reap()

    def _wake(self) -> None:
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def _run(self) -> None:
        death = None
        try:
            self._serve()
            if self.error is None and self.heartbeat.has_stopped():
                self._fail(self._given_up())
            elif self.error is None:
                # Who waits is told at once; of what it died may be known a little later.
                death = DeviceDied(f"the service of {self.who} {self.peer.exit_reason(0)}")
                self._fail(death)
        except NNError as failure:
            self._fail(failure)
        except Exception as failure:
            logger.exception("the link to %s failed", self.who)
            self._fail(DeviceDied(f"the link to {self.who} failed: {failure}"))
        self.over.signal()
        while self._deferred_work:
            # What finalizers left just before the end has no other chance.
            with self._contained():
                self._deferred_work.popleft()()
        self.connection.close()
        for holder in self._holders():
            with self._contained():
                holder.close()
        with self._wake_lock:
            fd, self._wake_fd = self._wake_fd, -1
            os.close(fd)
        self.watchdog.close()
        try:
            exit_reason = self.peer.reap()
            if self.error is death:
                self.error = DeviceDied(f"the service of {self.who} {exit_reason}")
        finally:
            self.ended.signal()

    def _given_up(self) -> DeviceDied:
        """Kill a service that hangs, and say so."""
        text = f"the service of {self.who} gave no sign of life for {self.heartbeat.patience_s:g} s"
        self.is_dead = self.peer.kill()
        return DeviceDied(f"{text} and was killed" if self.is_dead else text)

    def _serve(self) -> None:
        """Read and write until the service ends or gives no sign of life, or the link is closed."""
        connection = self.connection
        socket_fd, death_fds = connection.socket.fileno(), self.peer.death_fds
        poller = select.poll()
        for fd in (self._wake_fd, socket_fd, *death_fds):
            poller.register(fd, select.POLLIN)
        writes = False
        while self.error is None:
            events = dict(poller.poll())
            if events.get(self._wake_fd):
                os.eventfd_read(self._wake_fd)
                self._send_deferred()
                self.run_deferred()
            if events.get(socket_fd, 0) & ~select.POLLOUT:
                if not self._read():
                    return
            elif any(fd in events for fd in death_fds):
                # Whatever it said before was read; a child of its own may keep the socket open.
                self.is_dead = True
                return
            elif self.heartbeat.has_stopped():
                return
            sent_bytes = connection.sent_bytes
            blocked = not connection.flush()
            if connection.sent_bytes != sent_bytes:
                # Who takes what waited is alive, though an answer may be far behind it.
                self.heartbeat.heard_ns = now_ns()
            if blocked != writes:
                writes = blocked
                poller.modify(socket_fd, select.POLLIN | (select.POLLOUT if writes else 0))

    def _read(self) -> bool:
        """Take what has arrived; False at the end."""
        frames = self.connection.receive()
        if frames is None:
            return False
        self.heartbeat.heard_ns = now_ns()
        for frame in frames:
            try:
                self._hear(decode(frame.message, FromService), frame.fds)
            finally:
                frame.close()
        return True

    def is_awaited(self) -> bool:
        """Returns whether an answer, the end of a launch or that of a burst's call is expected."""
        # A copy is made in one step, while other threads come and go.
        listeners = self._listeners.copy().values()
        return bool(self._calls) or any(each.is_awaited for each in listeners)

    def _ping(self) -> None:
        with contextlib.suppress(NNError):
            self.begin(Ping)

    @contextlib.contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            logger.exception("something that %s held was not given back", self.who)

    def _send_deferred(self) -> None:
        """Send what finalizers left; before a call too, which may need what they give back."""
        # Also where none are left: another thread may be about to send the last one.
        with self._saying:
            while self._deferred_messages and not self.connection.has_waiting:
                with contextlib.suppress(DeviceDied):
                    self.connection.send(encode(self._deferred_messages.popleft()))

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
