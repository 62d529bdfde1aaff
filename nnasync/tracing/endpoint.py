"""A tiny HTTP server on this machine's own address that answers GET /metrics, for Prometheus.

    async with open_runtime() as rt, serve_metrics(rt, port=9090) as endpoint:
        print(endpoint.url)

Clients are not trusted: a request has few bytes and little time, few are served at once, nothing of
a request is given back, and one that names another host (a web page that had its own name resolve
to this machine) is turned away.

The application is not disturbed by what goes wrong here: a collector that raises is logged and the
request answered with an error, and where no connection can be taken it is tried again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from nnasync.errors import BadState, InvalidArgument
from nnasync.tracing.exposition import Exposition, Measured
from nnasync.tracing.families import Collector
from nnasync.tracing.metrics import CONTENT_TYPE

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_HEADER_BYTES = 8192
MAX_CLIENTS = 16
TIMEOUT_S = 5.0
_PAUSE_S = 0.1
"""After a connection that could not be taken: no descriptor was left, for example."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def serve_metrics(
    source: Measured, *, port: int = 0, collectors: tuple[Collector, ...] = ()
) -> Endpoint:
    """An endpoint on 127.0.0.1, for use with `async with`; port 0 takes any free port.

    Shown are the statistics of `source`, what became of its calls, durations of its executions
    while this is open, its devices with processes of their own, the clients that it serves devices
    to, and what further collectors have.
    Raises InvalidArgument if it is not a port; entering raises OSError if the port is taken.
    """
    if not isinstance(port, int) or not 0 <= port < 2**16:
        raise InvalidArgument(f"a port is a number from 0 to 65535, got {port!r}")
    return Endpoint(source, port, collectors)


class Endpoint:
    """An HTTP server of metrics; made by `serve_metrics`, or on a `socket` by `monitored`."""

    def __init__(
        self,
        source: Measured,
        port: int,
        collectors: tuple[Collector, ...],
        *,
        socket: Path | None = None,
    ) -> None:
        self.port = port
        self._socket = socket
        self._exposition = Exposition(source, collectors)
        self._clients = 0
        self._listener: anyio.abc.Listener[anyio.abc.SocketStream] | None = None

    @property
    def url(self) -> str:
        """Returns the address of the metrics, while it is open."""
        if self._socket is not None:
            return f"unix:{self._socket}"
        return f"http://{HOST}:{self.port}/metrics"

    def text(self) -> str:
        """The text that is served now."""
        return self._exposition.text()

    async def __aenter__(self) -> Self:
        if self._listener is not None:
            raise BadState("an endpoint can be opened once; make another with serve_metrics()")
        self._listener = listener = await self._listening()
        self._exposition.open()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._listen, listener)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exposition.close()
        self._tasks.cancel_scope.cancel()
        # The error of the body goes on by itself, not inside an exception group.
        await self._tasks.__aexit__(None, None, None)
        if self._listener is not None:
            with anyio.CancelScope(shield=True):
                await self._listener.aclose()
            if self._socket is not None:
                self._socket.unlink(missing_ok=True)

    async def _listening(self) -> anyio.abc.Listener[anyio.abc.SocketStream]:
        if self._socket is not None:
            return await anyio.create_unix_listener(self._socket, mode=0o600)
        listener = await anyio.create_tcp_listener(local_host=HOST, local_port=self.port)
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        return listener

    async def _listen(self, listener: anyio.abc.Listener[anyio.abc.SocketStream]) -> None:
        while True:
            try:
                await listener.serve(self._serve, self._tasks)
            except Exception as error:
                logger.warning("metrics: a connection could not be taken: %r", error)
                await anyio.sleep(_PAUSE_S)

    async def _serve(self, client: anyio.abc.SocketStream) -> None:
        self._clients += 1
        try:
            with anyio.move_on_after(TIMEOUT_S):
                if self._clients > MAX_CLIENTS:
                    await client.send(_response(503))
                else:
                    await client.send(self._answer(await _header(client)))
                await client.send_eof()
        except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.ClosedResourceError, OSError):
            pass
        finally:
            self._clients -= 1
            await anyio.aclose_forcefully(client)

    def _answer(self, header: bytes) -> bytes:
        status = _status(header)
        if status != 200:
            return _response(status)
        try:
            return _response(200, self.text())
        except BadState:
            return _response(503)
        except Exception:
            logger.exception("metrics: a collector failed")
            return _response(500)


async def _header(client: anyio.abc.SocketStream) -> bytes:
    """The request up to its empty line, or as much of it as shows that it is too long."""
    received = b""
    while b"\r\n\r\n" not in received and len(received) <= MAX_HEADER_BYTES:
        received += await client.receive(MAX_HEADER_BYTES + 1 - len(received) or 1)
    return received


def _status(header: bytes) -> int:
    """The answer that a request gets."""
    head, found, _ = header.partition(b"\r\n\r\n")
    if not found:
        return 431
    first, *fields = head.split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        return 400
    hosts = [field[5:].strip() for field in fields if field[:5].lower() == b"host:"]
    if len(hosts) > 1 or (parts[2] == b"HTTP/1.1" and not hosts):
        return 400
    if hosts and hosts[0].rpartition(b":")[0] not in _NAMES and hosts[0] not in _NAMES:
        return 421
    if parts[1].partition(b"?")[0] != b"/metrics":
        return 404
    return 200 if parts[0] == b"GET" else 405


_NAMES = (HOST.encode(), b"localhost")


def _response(status: int, text: str = "") -> bytes:
    body = (text or f"{_REASONS[status]}\n").encode()
    lines = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {CONTENT_TYPE if status == 200 else 'text/plain; charset=utf-8'}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Allow: GET"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
