"""A connection of the HTTP server that whoever is silent, slow or talkative cannot hold.

Uvicorn limits neither the header of a request nor the time that it takes, and closes only
connections that are idle behind an answer. Here a header has so many bytes at most, a request has
to arrive in so long, an answer has to be read in so long, and connections beyond the limit are
refused with an answer that clients of the protocol can read.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from nnasync.serving.joined_writes import JoinedWrites
from nnasync.serving.json_protocol import error_body
from nnasync.serving.limits import Limits
from nnasync.serving.messages import Bytes
from nnasync.serving.other_protocols import without_offer
from nnasync.serving.problems import ServingError

_BESIDE_FIELD = len(": \r\n")


class _HeaderTooLarge(Exception):
    """Raised in a callback of the parser to end the parsing of a header that is too large."""


class BoundedConnection(HttpToolsProtocol):
    """An HTTP connection with limits on the size of headers, and on times and connections."""

    def __init__(self, *arguments: Any, limits: Limits, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._limits = limits
        self._header_bytes = 0
        self._field_bytes = 0
        self._may_be_too_large = False
        self._without_offer = b""
        self._is_arriving = False
        self._has_body_come = self._has_begun = self._is_in_header = False
        self._requests = 0
        self._answered_s = 0.0
        self._unread: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # Uvicorn narrows the transport, too.
        self, transport: asyncio.Transport
    ) -> None:
        """Watches the connection from its beginning, or refuses it."""
        joined: Any = JoinedWrites(transport, self.loop)
        super().connection_made(joined)
        if len(self.connections) > self._limits.connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections")
        else:
            self._watch = self.loop.call_later(self._limits.body_s, self._look, 0)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of headers, and those of trailers, which belong to no body either."""
        self._has_body_come = self._has_begun = False
        self._field_bytes = 0
        self._may_be_too_large = self._header_bytes + len(data) > self._limits.header_bytes
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._is_in_header:
            # Before a header that begins in this piece lie other requests.
            self._header_bytes += self._field_bytes if self._has_begun else len(data)
        elif self._has_body_come:
            self._header_bytes = 0
        elif self._is_arriving:
            self._header_bytes += len(data)
        if self._is_arriving and self._header_bytes > self._limits.header_bytes:
            self._refuse_header()

    def _parse(self, data: bytes) -> None:
        """Have the parser read, and read on where it has stopped at an offer."""
        pieces: list[Bytes] = [data]
        while pieces:
            piece = pieces.pop()
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserError:
                text = "Invalid HTTP request received."
                self.logger.warning(text)
                self.send_400_response(text)
                return
            except httptools.HttpParserUpgrade as stopped:
                head, self._without_offer = self._without_offer, b""
                if head:
                    self.parser = new_parser(self)
                    pieces += [memoryview(piece)[stopped.args[0] :], head]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps a field of the header; drops those of trailers, for which nobody asks."""
        if self._is_in_header:
            self._count(len(name) + len(value) + _BESIDE_FIELD)
            # As uvicorn does it, without one more call for each field.
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_url(self, url: bytes) -> None:
        """Keeps the address, which is a part of the header."""
        self._count(len(url))
        self.url += url

    def _count(self, size: int) -> None:
        """Counts the header bytes in a piece in which the header may end.

        Raises if they are too many.
        """
        self._field_bytes += size
        size = self._header_bytes + self._field_bytes
        if self._may_be_too_large and size > self._limits.header_bytes:
            raise _HeaderTooLarge

    def send_400_response(self, msg: str) -> None:
        """Answers a request that cannot be read, or was not read to its end."""
        if self._header_bytes + self._field_bytes > self._limits.header_bytes:
            self._refuse_header()
        else:
            super().send_400_response(msg)

    def _refuse_header(self) -> None:
        text = f"a header has at most {self._limits.header_bytes} bytes"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)

    def on_message_begin(self) -> None:
        """Notes that a request begins, with its header."""
        super().on_message_begin()
        self._begins()

    def _begins(self) -> None:
        self._requests += 1
        self._is_arriving = self._is_in_header = self._has_begun = True
        self._header_bytes = self._field_bytes = 0

    def on_headers_complete(self) -> None:
        """Notes that a header has ended; has one with an offer read again without the offer."""
        self._is_in_header = False
        self._header_bytes = self._field_bytes = 0
        parser = self.parser
        if parser.should_upgrade():
            version = parser.get_http_version()
            head = without_offer(parser.get_method(), self.url, version, self.headers)
            self._without_offer = head
        if not self._without_offer:
            self.header_is_there()

    def header_is_there(self) -> None:
        """Begins with a request whose header has come."""
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Hands on a body of one piece as it is; uvicorn would copy it into a buffer and out."""
        self._has_body_come = True
        cycle: Any = self.cycle
        if not cycle.body and not cycle.response_complete:
            cycle.body = body
            if len(body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()
            return
        if cycle.body.__class__ is bytes:
            cycle.body = bytearray(cycle.body)  # What comes in many pieces is not copied with each.
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Notes that a request has arrived."""
        if self._without_offer:
            return
        self._is_arriving = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Notes when the response ended.

        Uvicorn's own clock of idle connections stops at any byte.
        """
        self._answered_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Starts the time that the client has to read what was sent."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._limits.body_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stops that time, since the client has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops watching the connection."""
        super().connection_lost(exc)
        for handle in (self._unread, self._watch):
            if handle is not None:
                handle.cancel()  # Else it keeps the connection in memory.

    def _look(self, before: int) -> None:
        """Ends the connection if the request is the one that was arriving at the last look."""
        is_silent = self._is_arriving or not self._requests
        if is_silent and self._requests == before:
            self.give_up()
        elif self._is_idle():
            self.transport.close()
        else:
            self._watch = self.loop.call_later(self._limits.body_s, self._look, self._requests)

    def give_up(self) -> None:
        """Ends a connection that is silent where it should not be."""
        self.transport.abort()

    def _is_idle(self) -> bool:
        """Returns whether nothing came for too long behind an answer.

        It returns False for answers behind which uvicorn watches the connection itself.
        """
        if self._is_arriving or not self._answered_s or self.timeout_keep_alive_task is not None:
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        return self.loop.time() - self._answered_s >= self.timeout_keep_alive

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        body = error_body(ServingError(status, text))
        head = b"content-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + length + body)
        self.transport.close()


def new_parser(protocol: HttpToolsProtocol) -> httptools.HttpRequestParser:
    """Returns a parser made as uvicorn makes it."""
    parser = httptools.HttpRequestParser(protocol)
    with contextlib.suppress(AttributeError):  # Older ones have not got it.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
