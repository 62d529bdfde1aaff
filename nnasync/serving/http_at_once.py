"""Requests for inferences, answered where they were read.

For each request uvicorn makes a scope, the state of an exchange and a task, whose first step the
loop takes in its next turn; for a small network that costs more than the rest. So a request is
given to the application here, as its last byte comes. Mostly the application has the answer at
once, and header and body are written as one. If not, it gives what has to be awaited, and that goes
the way of all others: it becomes a task of uvicorn, which ends where the client hangs up. What has
anything unusual in its header goes that way from the beginning.

A loop reads all that has come before it turns to anything else, and on a busy server that takes it
milliseconds. So before each request it hears of executions that have ended, or are late.
"""

from __future__ import annotations

import asyncio
import functools
import re
from http import HTTPStatus
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from nnasync._core.wakeup import Wakeup
from nnasync.serving.body_in_place import BodyInPlace, room
from nnasync.serving.http import HttpApp, Later, model_in, respond
from nnasync.serving.http_connection import BoundedConnection, new_parser
from nnasync.serving.http_exchange import Asked
from nnasync.serving.http_reply import Reply
from nnasync.serving.joined_writes import JOINED_BYTES
from nnasync.serving.known_heads import KnownHead, KnownHeads, head_in
from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError

_SHORT_URL = 256
"""Longer addresses are not remembered: anybody may ask for them."""
_PLAIN = re.compile(rb"[/\w.-]+")
_IN_PLACE = range(1 << 16, 1 << 23)
"""Sizes of bodies, in bytes: for smaller ones it does not pay, and of others memory grows with what
has come, since anybody may announce one."""
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


@functools.lru_cache(maxsize=256)
def _target(url: bytes) -> tuple[str, str] | None:
    """Returns the (model, version) whose inferences have this address, if it matches literally."""
    return model_in(url.decode()) if _PLAIN.fullmatch(url) else None


class AtOnceConnection(BoundedConnection):
    """An HTTP connection that answers small requests without making a task."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        app: Any = self.app
        self._app: HttpApp | None = None
        if isinstance(app, HttpApp) and not self.access_log and not self.root_path:
            self._app = app
        self._known: KnownHeads = self._app.known_heads if self._app is not None else KnownHeads()
        self._asked: Asked | None = None
        self._head = b""
        self._peer = ""
        self._size = 0
        self._pieces: list[bytes] = []
        self._in_place: BodyInPlace | None = None
        self._is_last = False
        self._awaited: Any = None
        self._hang_up: anyio.CancelScope | None = None
        self._fixed: Any = None
        self._fixed_text = b""

    def connection_made(  # type: ignore[override]  # Uvicorn narrows the transport, too.
        self, transport: asyncio.Transport
    ) -> None:
        """Notes the loop, and the address of the client, at the beginning of a connection."""
        super().connection_made(transport)
        self._wakeup = Wakeup.current()
        self._peer = self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Answers the requests that this data completes.

        Reads the rest of a large body in place.
        """
        self._wakeup.catch_up()
        if self.transport.is_closing():
            return
        self._head = b"" if self._is_arriving else head_in(data)
        if self._head and self._is_answered(self._head, data):
            return
        super().data_received(data)
        if self._asked is not None and self._size in _IN_PLACE:
            body, begun = room(self._size), 0
            for piece in self._pieces:
                body[begun : begun + len(piece)] = piece
                begun += len(piece)
            self._pieces = []
            if self._in_place is None:
                self._in_place = BodyInPlace(self, self.body_received)
                self.transport.set_protocol(self._in_place)
            self._in_place.read(body, begun)

    def _is_answered(self, head: bytes, data: bytes) -> bool:
        """Answers a whole request whose header is known; returns whether it was one."""
        known, app, cycle = self._known.find(head), self._app, self.cycle
        if known is None or app is None or len(data) != len(head) + known.size:
            return False
        if not (cycle is None or cycle.response_complete) or self.flow.write_paused:
            return False
        try:
            asked = app.asked(known.target, known.headers, self._peer)
        except ServingError:
            return False
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        self._requests += 1
        found = app.begin(asked, data[len(head) :])
        if isinstance(found, Reply):
            self._answer(found)
        else:
            self._let_parse(head)
            self._await(found)
            self.parser = new_parser(self)
        return True

    def _let_parse(self, head: bytes) -> None:
        """Has the parser read a known header, because uvicorn asks the parser for its fields."""
        self._head = b""
        self.parser.feed_data(head)
        self._asked = None
        self._is_arriving = False

    def body_received(self, body: memoryview) -> None:
        """Answers a request whose body was read in place; the parser has not seen its end."""
        self._wakeup.catch_up()
        try:
            self._complete(body)
        finally:
            if self.parser is not None:
                self.parser = new_parser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels what the client asked for."""
        self._asked, self._pieces = None, []
        self._in_place = None  # It refers to this: both would stay until garbage is collected.
        if self._awaited is not None:
            self._awaited.disconnected = True
        super().connection_lost(exc)
        if self._hang_up is not None:
            self._hang_up.cancel()

    def give_up(self) -> None:
        """Ends a silent connection; a request whose header has come gets an error first."""
        if self._asked is None:
            super().give_up()
        else:
            text = f"the request did not arrive in {self._limits.body_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, text)

    def shutdown(self) -> None:
        """Ends the connection, once a request that is arriving has been answered."""
        if self._asked is None:
            super().shutdown()
        else:
            self._is_last = True

    def on_message_begin(self) -> None:
        """Notes that a request begins.

        Uvicorn's objects for it are made only once they are needed.
        """
        self._begins()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def header_is_there(self) -> None:
        """Waits for the body, if the request is one that can be answered here."""
        head, self._head = self._head, b""
        self._asked = self._asked_here(head)
        if self._asked is None:
            self._to_uvicorn()

    def _asked_here(self, head: bytes) -> Asked | None:
        """Returns what is asked for if it can be answered here, and remembers the header then."""
        app, cycle = self._app, self.cycle
        if app is None or not (cycle is None or cycle.response_complete):
            return None
        url = self.url
        target = _target(url) if len(url) <= _SHORT_URL else None
        if target is None or self.parser.get_method() != b"POST" or self.flow.write_paused:
            return None
        headers = dict(self.headers)
        if b"content-length" not in headers or not _UNUSUAL.isdisjoint(headers):
            return None
        self._size = int(headers[b"content-length"])
        if self._size > self._limits.body_bytes:
            return None
        parser = self.parser
        if not parser.should_keep_alive() or parser.get_http_version() != "1.1":
            return None
        if self.transport.is_closing():
            return None
        try:
            asked = app.asked(target, headers, self._peer)
        except ServingError:
            return None
        if head and self._size:
            self._known.note(head, KnownHead(target, headers, self._size))
        return asked

    def on_body(self, body: bytes) -> None:
        """Keeps a piece of a body."""
        if self._asked is None:
            super().on_body(body)
        else:
            self._has_body_come = True
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """Answers the request that is now complete."""
        if self._asked is None:
            super().on_message_complete()
            return
        pieces, self._pieces = self._pieces, []
        self._complete(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _complete(self, body: Bytes) -> None:
        asked, self._asked = self._asked, None
        self._is_arriving = False
        if asked is None or self._app is None:
            return
        found = self._app.begin(asked, body)
        if isinstance(found, Reply):
            self._answer(found)
        else:
            self._await(found)

    def _answer(self, reply: Reply) -> None:
        """Writes a whole response."""
        pieces = reply.pieces
        content: list[Bytes] = [
            STATUS_LINE[reply.status], self._fixed_fields(), reply.text(), b"\r\n"
        ]  # fmt: skip
        transport: Any = self.transport
        if len(pieces) == 1 and len(pieces[0]) <= JOINED_BYTES:
            content += pieces
            transport.write_now(b"".join(content))
        else:
            transport.write_now(b"".join(content))
            for piece in pieces:
                transport.write_now(piece)
        self.server_state.total_requests += 1
        self._answered_s = self.loop.time()
        if self._is_last or (reply.more and reply.is_last):
            self.transport.close()

    def _fixed_fields(self) -> bytes:
        """Returns the header fields that uvicorn adds to all responses, cached for a second."""
        fields = self.server_state.default_headers
        if fields is not self._fixed:
            self._fixed = fields
            self._fixed_text = b"".join(b"%b: %b\r\n" % field for field in fields)
        return self._fixed_text

    def _await(self, work: Later) -> None:
        """Makes a task of uvicorn that awaits this work and answers with its result."""
        app: Any = self.app
        self.app = functools.partial(self._answer_later, app, work)
        try:
            self._to_uvicorn()
        finally:
            self.app = app
        self._awaited = self.cycle
        self._awaited.more_body = False
        if self._is_last:
            self._awaited.keep_alive = False

    async def _answer_later(
        self, app: HttpApp, work: Later, _scope: Scope, _receive: Receive, send: Send
    ) -> None:
        """Responds with the awaited result, unless the client hangs up before."""
        if self._awaited.disconnected:
            return
        reply: Reply | None = None
        with anyio.CancelScope() as self._hang_up:
            reply = await app.awaited(work)
        self._hang_up = None
        if reply is not None:
            await respond(reply, send)

    def _to_uvicorn(self) -> None:
        """Hands a request whose header is complete over to uvicorn."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        HttpToolsProtocol.on_headers_complete(self)
