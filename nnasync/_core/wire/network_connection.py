"""A connection over TCP: frames with values, plain or encrypted.

It has the face of `connection.Connection`: nothing here waits, `send` may be called from any
thread, and whoever owns the connection polls the socket and calls `receive` and `flush`. Values are
written from where they are and read into their place. What is sent must stay as it is until it has
gone; `sent` is called then.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nnasync._core.wire.framing import FrameReader, Landing, ValueFrame, framed
from nnasync._core.wire.tls_layer import TlsLayer
from nnasync.errors import DeviceDied, GeneralFailure, ResourceExhaustedTransient

_MOST_WAITING_BYTES = 16 << 20
_MOST_WAITING_FRAMES = 4096
_CHUNK = 1 << 16
_PIECES = 64
"""Handed to the system at once."""
_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


def _nothing() -> None:
    """Does nothing."""


class _Unsent:
    """The rest of a frame; `cost` is its share of the limit, without its values."""

    __slots__ = ("cost", "pieces", "sent")

    def __init__(self, pieces: Sequence[memoryview], cost: int, sent: Callable[[], object]) -> None:
        self.pieces = deque(pieces)
        self.cost = cost
        self.sent = sent


class NetworkConnection:
    """One end of a connection whose handshake is over."""

    def __init__(
        self,
        sock: socket.socket,
        who: str,
        on_blocked: Callable[[], object],
        reader: FrameReader,
        tls: TlsLayer | None = None,
    ) -> None:
        """`who` is the peer, for errors; `on_blocked` asks the owner to `flush` when it can."""
        sock.setblocking(False)
        self.socket = sock
        """The socket, for polling."""
        self._who = who
        self._on_blocked = on_blocked
        self._reader = reader
        self._tls = tls
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: deque[_Unsent] = deque()
        self._waiting_bytes = 0
        self._sealed = memoryview(b"")
        self._closed = False
        self.is_broken = False
        """Whether the peer was found gone when something was sent; the reader hears of it later."""
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def has_waiting(self) -> bool:
        """Returns whether anything waits for `flush`."""
        return bool(self._waiting) or bool(self._sealed)

    def send(
        self,
        message: bytes,
        values: Sequence[Any] = (),
        *,
        number: int = 0,
        sent: Callable[[], object] = _nothing,
    ) -> None:
        """Send a message, now or with the next `flush`.

        Raises ResourceExhaustedTransient where the peer takes nothing any more, DeviceDied where it
        is gone, InvalidArgument for a message that is too large.
        """
        unsent = _Unsent(framed(message, values, number), len(message), sent)
        with self._lock:
            if self._closed:
                raise DeviceDied(f"{self._who} is gone")
            self._check_room(len(message))
            self._waiting.append(unsent)
            self._waiting_bytes += unsent.cost
            done = self._write_all() if len(self._waiting) == 1 else []
            has_waiting = self.has_waiting
        for each in done:
            each.sent()
        if has_waiting:
            self._on_blocked()

    def flush(self) -> bool:
        """Sends what waits.

        Returns whether nothing is left. Raises DeviceDied if the peer is gone.
        """
        with self._lock:
            done = [] if self._closed else self._write_all()
            is_done = self._closed or not self.has_waiting
        for each in done:
            each.sent()
        return is_done

    def receive(self) -> list[ValueFrame] | None:
        """Returns what has arrived, at most some 64 KB or what fills a value; None at the end.

        Raises GeneralFailure for what is no frame; the connection is of no use then.
        """
        try:
            with self._reading:
                return self._received() if self._tls is None else self._decrypted(self._tls)
        except (BlockingIOError, InterruptedError):
            return []
        except ssl.SSLError as error:
            raise GeneralFailure(f"what {self._who} sent cannot be decrypted: {error}") from error
        except OSError:
            return None

    def abandon(self, landing: Landing) -> None:
        """Writes nothing more to a landing; from any thread."""
        with self._reading:
            self._reader.abandon(landing)

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
            self._waiting.clear()
        with self._reading:
            self.socket.close()

    # -- reading

    def _received(self) -> list[ValueFrame] | None:
        targets = self._reader.targets()
        if targets:
            count = self.socket.recvmsg_into(targets[:_PIECES])[0]
            self.received_bytes += count
            return self._reader.filled(count) if count else None
        data = self.socket.recv(_CHUNK)
        self.received_bytes += len(data)
        return self._reader.feed(data) if data else None

    def _decrypted(self, tls: TlsLayer) -> list[ValueFrame] | None:
        data = self.socket.recv(_CHUNK)
        if not data:
            return None
        self.received_bytes += len(data)
        frames: list[ValueFrame] = []
        with self._lock:
            tls.received(data)
        while True:
            targets = self._reader.targets()
            with self._lock:
                if targets:
                    count = tls.read_into(targets[0])
                else:
                    data = tls.read(_CHUNK)
                    count = len(data)
            if not count:
                return frames
            frames += self._reader.filled(count) if targets else self._reader.feed(data)

    # -- writing, under the lock

    def _check_room(self, size: int) -> None:
        if (
            self._waiting_bytes + size > _MOST_WAITING_BYTES
            or len(self._waiting) >= _MOST_WAITING_FRAMES
        ):
            raise ResourceExhaustedTransient(
                f"{self._who} does not read: {len(self._waiting)} messages wait already"
            )

    def _write_all(self) -> list[_Unsent]:
        """Writes until the system takes no more; returns the frames that are completely written."""
        done: list[_Unsent] = []
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                while self.has_waiting:
                    if self._tls is None:
                        self._write()
                    else:
                        self._write_sealed(self._tls)
                    while self._waiting and not self._waiting[0].pieces:
                        done.append(self._waiting.popleft())
                        self._waiting_bytes -= done[-1].cost
            except (BlockingIOError, InterruptedError):
                raise
            except OSError as error:
                self.is_broken = True
                raise DeviceDied(f"{self._who} is gone: {error}") from error
        return done

    def _write(self) -> None:
        pieces = self._waiting[0].pieces
        count = self.socket.sendmsg(list(pieces)[:_PIECES], (), _FLAGS)
        self.sent_bytes += count
        _advance(pieces, count)

    def _write_sealed(self, tls: TlsLayer) -> None:
        while not self._sealed and self._waiting and self._waiting[0].pieces:
            pieces = self._waiting[0].pieces
            _advance(pieces, tls.write(pieces[0]))
            self._sealed = memoryview(tls.to_send())
        if self._sealed:
            count = self.socket.send(self._sealed, _FLAGS)
            self.sent_bytes += count
            self._sealed = self._sealed[count:]


def _advance(pieces: deque[memoryview], count: int) -> None:
    """Drops so many bytes from the front."""
    while count:
        first = pieces.popleft()
        if count < first.nbytes:
            pieces.appendleft(first[count:])
            return
        count -= first.nbytes
