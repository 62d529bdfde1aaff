"""Frames over a Unix stream socket: bytes, and the file descriptors that belong to them.

A frame is a header of 8 bytes (length of the message, number of descriptors, zero; little-endian)
and the message. Its descriptors are attached to its first byte, so they are there once the frame is
whole. Nothing here waits: whoever owns the connection polls the socket, and calls `receive` and
`flush`. `send` may be called from any thread.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnasync.errors import DeviceDied, GeneralFailure, InvalidArgument, ResourceExhaustedTransient

MAX_MESSAGE_BYTES = 4 << 20
MAX_DESCRIPTORS = 96
"""Of one message: room for 64 cache files and some."""
_MOST_WAITING_BYTES = 16 << 20
_MOST_WAITING_DESCRIPTORS = 512
_CHUNK = 1 << 16
_HEADER = struct.Struct("<IHH")
_ANCILLARY = socket.CMSG_SPACE(253 * 4)  # The kernel sends no more at once.
_RECEIVE_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


class Transport(Protocol):
    """One end of a connection in this machine, or of one to another machine."""

    socket: socket.socket
    is_broken: bool
    sent_bytes: int
    received_bytes: int

    @property
    def has_waiting(self) -> bool:
        """Returns whether anything waits for `flush`."""

    def send(self, message: bytes, fds: Sequence[Any] = (), /) -> None:
        """Sends a message with its descriptors, or with values to another machine."""

    def flush(self) -> bool:
        """Sends what waits; returns whether nothing is left."""

    def receive(self) -> Sequence[Frame] | None:
        """Returns what has arrived; None at the end."""

    def disconnect(self) -> None:
        """Ends both directions, from any thread."""

    def close(self) -> None:
        """Close the socket and drop what waits; idempotent."""


class Frame:
    """A message that arrived; its descriptors are closed by `close` unless they were taken."""

    __slots__ = ("fds", "message")

    def __init__(self, message: bytes, fds: list[int]) -> None:
        self.message = message
        self.fds = fds

    def take(self, count: int) -> list[int]:
        """Takes the first descriptors, which the caller has to close; raises if there are fewer."""
        if not 0 <= count <= len(self.fds):
            raise InvalidArgument(
                f"a message says it has {count} file descriptors, but {len(self.fds)} came with it"
            )
        taken, self.fds = self.fds[:count], self.fds[count:]
        return taken

    def close(self) -> None:
        """Closes the descriptors that were not taken."""
        close_all(self.fds)
        self.fds = []


class _UnsentFrame:
    """The rest of a frame that the socket had no room for; owns its descriptors."""

    __slots__ = ("data", "fds")

    def __init__(self, data: memoryview, fds: list[int]) -> None:
        self.data = data
        self.fds = fds


class Connection:
    """One end of a socket."""

    def __init__(
        self, sock: socket.socket, who: str, on_blocked: Callable[[], object] = lambda: None
    ) -> None:
        """`who` is the peer, for errors; `on_blocked` asks the owner to `flush` when it can."""
        sock.setblocking(False)
        self.socket = sock
        """The socket, for polling."""
        self._who = who
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._waiting: deque[_UnsentFrame] = deque()
        self._waiting_bytes = 0
        self._waiting_fds = 0
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._closed = False
        self.is_broken = False
        """Whether the peer was found gone when something was sent; the reader hears of it later."""
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def has_waiting(self) -> bool:
        """Returns whether anything waits for `flush`."""
        return bool(self._waiting)

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message, now or with the next `flush`; the descriptors stay the caller's.

        Raises ResourceExhaustedTransient where the peer takes nothing any more, DeviceDied where it
        is gone, InvalidArgument for a message that is too large.
        """
        if len(message) > MAX_MESSAGE_BYTES or len(fds) > MAX_DESCRIPTORS:
            raise InvalidArgument(
                f"a message of {len(message)} bytes with {len(fds)} file descriptors is too large: "
                f"at most {MAX_MESSAGE_BYTES} bytes and {MAX_DESCRIPTORS} file descriptors"
            )
        data = _HEADER.pack(len(message), len(fds), 0) + message
        with self._lock:
            if self._closed:
                raise DeviceDied(f"{self._who} is gone")
            sent = 0 if self._waiting else self._send(memoryview(data), fds)
            if sent == len(data):
                return
            if not sent:
                self._check_room(len(data), len(fds))
            self._enqueue(memoryview(data)[sent:], () if sent else fds)
        self._on_blocked()

    def flush(self) -> bool:
        """Sends what waits.

        Returns whether nothing is left. Raises DeviceDied if the peer is gone.
        """
        with self._lock:
            while self._waiting and not self._closed:
                first = self._waiting[0]
                sent = self._send(first.data, first.fds)
                if not sent:
                    return False
                close_all(first.fds)
                self._waiting_bytes -= sent
                self._waiting_fds -= len(first.fds)
                first.fds = []
                first.data = first.data[sent:]
                if not first.data:
                    self._waiting.popleft()
            return True

    def receive(self) -> list[Frame] | None:
        """Returns what has arrived, at most some 64 KB of it; None at the end.

        Raises GeneralFailure for what is no frame; the connection is of no use then.
        """
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(_CHUNK, _ANCILLARY, _RECEIVE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self._fds.extend(received)
        if flags & socket.MSG_CTRUNC:
            raise GeneralFailure(
                f"file descriptors of {self._who} were lost: none left, or a flood"
            )
        if not data:
            return None
        self.received_bytes += len(data)
        self._buffer += data
        frames: list[Frame] = []
        try:
            self._split(frames)
        except GeneralFailure:
            for frame in frames:
                frame.close()
            raise
        return frames

    def disconnect(self) -> None:
        """Ends both directions, from any thread: what was sent arrives, then both see the end."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and drop what waits or has arrived in part; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for each in self._waiting:
                close_all(each.fds)
            self._waiting.clear()
        close_all(self._fds)
        self._fds = []
        self.socket.close()

    def _split(self, frames: list[Frame]) -> None:
        """Moves complete messages from the buffer to `frames`."""
        buffer, start = self._buffer, 0
        while len(buffer) - start >= _HEADER.size:
            length, count, zero = _HEADER.unpack_from(buffer, start)
            if length > MAX_MESSAGE_BYTES or count > MAX_DESCRIPTORS or zero:
                raise GeneralFailure(
                    f"{self._who} sent a frame of {length} bytes with {count} file descriptors: at "
                    f"most {MAX_MESSAGE_BYTES} and {MAX_DESCRIPTORS} are taken"
                )
            begin = start + _HEADER.size
            if len(buffer) - begin < length:
                break
            if len(self._fds) < count:
                raise GeneralFailure(
                    f"{self._who} announced {count} file descriptors and sent {len(self._fds)}"
                )
            fds, self._fds = self._fds[:count], self._fds[count:]
            start = begin + length
            frames.append(Frame(bytes(buffer[begin:start]), fds))
        del buffer[:start]
        if len(self._fds) > (MAX_DESCRIPTORS if buffer else 0):
            raise GeneralFailure(f"{self._who} sent file descriptors that belong to no message")

    def _check_room(self, size: int, fds: int) -> None:
        if (
            self._waiting_bytes + size > _MOST_WAITING_BYTES
            or self._waiting_fds + fds > _MOST_WAITING_DESCRIPTORS
        ):
            raise ResourceExhaustedTransient(
                f"{self._who} does not read: {self._waiting_bytes} bytes and {self._waiting_fds} "
                "file descriptors wait already"
            )

    def _enqueue(self, data: memoryview, fds: Sequence[int]) -> None:
        own: list[int] = []
        try:
            own.extend(os.dup(fd) for fd in fds)
        except OSError as error:
            close_all(own)
            raise ResourceExhaustedTransient(f"no descriptors for a message: {error}") from error
        self._waiting.append(_UnsentFrame(data, own))
        self._waiting_bytes += len(data)
        self._waiting_fds += len(own)

    def _send(self, data: memoryview, fds: Sequence[int]) -> int:
        """Returns how many bytes were sent; the descriptors went with the first of them."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self.socket.sendmsg([data], ancillary, _SEND_FLAGS)
        except (BlockingIOError, InterruptedError):
            return 0
        except (BrokenPipeError, ConnectionError) as error:
            self.is_broken = True
            raise DeviceDied(f"{self._who} is gone") from error
        except OSError as error:
            raise ResourceExhaustedTransient(
                f"a message to {self._who} cannot be sent: {error}"
            ) from error
        self.sent_bytes += sent
        return sent


def close_all(fds: Sequence[int]) -> None:
    """Close file descriptors."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def peer_uid(sock: socket.socket) -> int:
    """Returns the user of the process at the other end of a Unix socket."""
    return _credentials(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    """Returns the process id at the other end, as of connecting; 0 once our end is closed."""
    try:
        return _credentials(sock)[0]
    except OSError:
        return 0


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Returns process id, user and group of the peer."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, gid = struct.unpack("3i", data)
    return pid, uid, gid
