"""A service that cannot serve its device says why to the process that started it, and ends."""

from __future__ import annotations

import contextlib
import select
import socket

from nnasync._core.wire.connection import Connection
from nnasync._core.wire.messages import Answer, Hello, decode, encode, failed
from nnasync.errors import NNError

_PATIENCE_MS = 2000


def apologize(sock: socket.socket, error: NNError) -> None:
    """Answers the greeting at a socket with an error; does nothing where none comes in time.

    It blocks meanwhile: nobody else is served by this process.
    """
    connection = Connection(sock, "the application")
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    with contextlib.suppress(NNError):
        if not poller.poll(_PATIENCE_MS):
            return
        for frame in connection.receive() or ():
            frame.close()
            hello = decode(frame.message, Hello)
            connection.send(encode(Answer(hello.call, failed(error))))
