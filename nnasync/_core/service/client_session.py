"""One client of a service: a connection, a name space of its own, and all that it made.

What a client says is hostile until it is checked. What makes no sense as a message ends the
connection; what makes sense but is not allowed is answered with an error. All that the client made
goes with it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from nnasync._core.engine_device.caching import library_version
from nnasync._core.service.client_account import SERVED_CALL_NS, ClientAccount, Stopwatch
from nnasync._core.service.holdings import ANSWERED, Holdings
from nnasync._core.service.limits import Limits
from nnasync._core.service.rate_limit import ClientBuckets
from nnasync._core.service.served_memories import read_bytes
from nnasync._core.wakeup import Wakeup
from nnasync._core.wire.connection import Connection, Frame, Transport
from nnasync._core.wire.messages import (
    MAGIC,
    PROTOCOL,
    Answer,
    Call,
    Cancel,
    Failed,
    FromClient,
    Hello,
    Welcome,
    decode,
    encode,
    failed,
)
from nnasync._core.workers import contained
from nnasync.device import Device
from nnasync.errors import DeviceDied, GeneralFailure, InvalidArgument, NNError

logger = logging.getLogger(__name__)

_HELLO_WITHIN_S = 10.0
_MOST_AT_ONCE = 16
"""Messages of one client between two turns of the loop."""


class Session:
    """Serves one client; `run` ends when the session does."""

    def __init__(
        self,
        device: Device,
        sock: socket.socket,
        limits: Limits,
        *,
        trusts: bool,
        buckets: ClientBuckets | None = None,
        name: str = "",
    ) -> None:
        """A trusted client may share memory that is not sealed, such as files.

        `buckets` is the clients that share the service with it, None where it is alone. `name` says
        in statistics which process or address is at the other end.
        """
        self._device = device
        self._limits = limits
        self._wakeup = Wakeup.current()
        self._account = ClientAccount(device, limits, buckets, name)
        self._connection = self._connected(sock)
        self._holdings = self._held(trusts=trusts)
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._to_write = anyio.Event()
        self._written = anyio.Event()
        self._greeted = anyio.Event()
        self._hello_came = self._ended = False
        self.has_asked = False
        """Whether the client asked for anything after its handshake."""
        self._tasks: anyio.abc.TaskGroup

    def _connected(self, sock: socket.socket) -> Transport:
        return Connection(sock, "a client", self._blocked)

    def _held(self, *, trusts: bool) -> Holdings:
        return Holdings(
            self._device, self._limits, self.send, self._account, self._start, trusts=trusts
        )

    def _message(self, frame: Frame) -> Any:
        """Decodes the message of a frame; raises GeneralFailure where it is none."""
        return decode(frame.message, FromClient)

    async def run(self) -> None:
        """Serves until the connection ends."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._write)
                self._tasks.start_soon(self._expect_hello)
                try:
                    await self._read()
                except NNError as error:
                    logger.warning("the connection of a client ends: %s", error)
                finally:
                    self._tasks.cancel_scope.cancel()
        finally:
            self._connection.close()
            with anyio.CancelScope(shield=True):
                await self._holdings.close()
            self._account.close()

    @property
    def is_greeted(self) -> bool:
        """Returns whether the handshake is over."""
        return self._greeted.is_set()

    def disconnect(self) -> None:
        """Ends the connection, and so the session."""
        self._connection.disconnect()

    def send(self, message: Any, fds: tuple[int, ...] = ()) -> None:
        """Sends something, from any thread; drops a client that takes nothing any more."""
        try:
            self._connection.send(encode(message), fds)
        except DeviceDied:
            pass  # The reader sees the end as well.
        except NNError as error:
            logger.warning("a client is dropped: %s", error)
            self._connection.disconnect()

    # -- reading and writing

    async def _read(self) -> None:
        while True:
            await anyio.wait_readable(self._connection.socket)
            watch = Stopwatch()
            received = self._connection.receive()
            if received is None:
                return
            frames = list(received)
            cost_ns = watch.lap()
            try:
                while frames or cost_ns:
                    cost_ns += self._take_some(frames)
                    # Others get their turn, also beside a client that never stops.
                    await anyio.sleep(self._account.paid(cost_ns))
                    cost_ns = 0
            except BaseException:
                for frame in frames:
                    frame.close()
                raise
            await self._until_taken()

    def _take_some(self, frames: list[Frame]) -> int:
        """Begins what the first messages ask for; returns the nanoseconds that it takes."""
        watch = Stopwatch()
        calls = 0
        for _ in range(min(len(frames), _MOST_AT_ONCE)):
            frame = frames.pop(0)
            try:
                calls += self._take(frame)
            except BaseException:
                frame.close()
                raise
        return watch.lap() + calls * SERVED_CALL_NS

    async def _until_taken(self) -> None:
        """Waits until the client has taken its answers; who takes none is not listened to."""
        while self._connection.has_waiting and not self._ended:
            self._written = anyio.Event()
            self._to_write.set()
            await self._written.wait()

    async def _write(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write = anyio.Event()
            try:
                while not self._connection.flush():
                    await anyio.wait_writable(self._connection.socket)
            except NNError:
                self._ended = True  # The reader sees the end as well.
            self._written.set()

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts a task of the session."""
        self._tasks.start_soon(work)

    def _blocked(self) -> None:
        self._wakeup.post(lambda: self._to_write.set())

    async def _expect_hello(self) -> None:
        with anyio.move_on_after(_HELLO_WITHIN_S):
            await self._greeted.wait()
            return
        self._connection.disconnect()

    # -- messages

    def _take(self, frame: Frame) -> bool:
        """Begins what a message asks for; returns whether it was a call.

        The frame is closed when that is done.
        """
        try:
            message = self._message(frame)
        except GeneralFailure as error:
            self._refuse(frame, error)
            return True
        if isinstance(message, Hello):
            frame.close()
            if self._hello_came:
                raise GeneralFailure("a client said hello twice")
            self._hello_came = True
            self._tasks.start_soon(self._welcome, message)
            return True
        if not self._greeted.is_set():
            raise GeneralFailure("a client has to say hello first")
        self.has_asked = True
        if isinstance(message, Cancel):
            scope = self._scopes.pop(message.call, None)
            if scope is not None:
                scope.cancel()
        elif isinstance(message, Call):
            self._begin(message, frame)
            return True
        else:
            self._notified(message, frame)
        frame.close()
        return False

    def _refuse(self, frame: Frame, error: GeneralFailure) -> None:
        """Answers a call whose arguments are of the wrong type; raises for what is no call."""
        frame.close()
        parts = decode(frame.message, list[Any])
        if not self._greeted.is_set() or len(parts) < 2 or type(parts[1]) is not int:
            raise error
        self._fail(parts[1], InvalidArgument(str(error)))

    def _notified(self, message: Any, frame: Frame) -> None:
        """Handles a message without an answer; its mistakes show when it is used."""
        try:
            self._holdings.notified(message, frame)
        except NNError as error:
            logger.info("a client said something that makes no sense: %s", error)
            self._account.fine()
            frame.close()
        if frame.fds:
            raise GeneralFailure("file descriptors came with a message that has none")

    def _begin(self, message: Call, frame: Frame) -> None:
        call = message.call
        if call < 0 or call in self._scopes:
            frame.close()
            raise GeneralFailure(f"a client used the number {call} for two calls at once")
        held = (read_bytes(len(frame.message)), len(frame.fds))
        usage = self._holdings.usage
        try:
            self._limits.check("calls", len(self._scopes))
            usage.take(*held)
            try:
                work = self._holdings.asked(message, frame)
            except BaseException:
                usage.give(*held)
                raise
        except NNError as error:
            frame.close()
            self._fail(call, error)
            return
        scope = anyio.CancelScope()
        # Calls that nobody waits for have no number, but count.
        self._scopes[call or -id(scope)] = scope
        self._tasks.start_soon(self._run, call, scope, work, frame, held)

    async def _run(
        self,
        call: int,
        scope: anyio.CancelScope,
        work: Callable[[], Awaitable[Any]],
        frame: Frame,
        held: tuple[int, int],
    ) -> None:
        """Runs one call and answers it; `held` is what is counted for it meanwhile."""
        answer: bytes = b""
        failure: NNError | None = None
        key = call or -id(scope)
        try:
            with scope:
                result = await work()
                if result is ANSWERED:
                    call = 0
                elif result is not None:
                    answer = encode(result)
        except Exception as error:
            failure = contained(error, self._device.name)
        finally:
            if self._scopes.get(key) is scope:
                del self._scopes[key]
            frame.close()
            self._holdings.usage.give(*held)
        if failure is not None:
            self._fail(call, failure)
        elif not scope.cancelled_caught:
            self._answer(call, answer)

    def _fail(self, call: int, error: NNError) -> None:
        """Answers a call with an error, for which its sender pays if it is the sender's fault."""
        if isinstance(error, InvalidArgument):
            self._account.fine()
        self._answer(call, failed(error))

    def _answer(self, call: int, value: bytes | Failed) -> None:
        if call:
            self.send(Answer(call, value))

    async def _welcome(self, hello: Hello) -> None:
        """Answers the greeting with what the device is, or ends the connection with an error."""
        version = library_version()
        if hello.magic != MAGIC or hello.protocol != PROTOCOL or hello.version != version:
            error = InvalidArgument(
                f"the service is nnasync {version} (protocol {PROTOCOL}), the client "
                f"{hello.version[:40]} (protocol {hello.protocol}); both must be the same"
            )
            self._answer(hello.call, failed(error))
            self._connection.disconnect()
            return
        device = self._device
        welcome = Welcome(
            version,
            device.name,
            device.version,
            device.type,
            device.feature_level,
            await device.get_capabilities(),
            await device.get_supported_extensions(),
            await device.get_number_of_cache_files_needed(),
            bool(getattr(device, "caches_late", False)),
        )
        self._greeted.set()
        self._answer(hello.call, encode(welcome))
