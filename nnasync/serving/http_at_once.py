"""Requests for inferences that come in one piece, answered where they were read.

For each request uvicorn makes a scope, the state of an exchange and a task, whose first step the
loop takes in its next turn; for a small network that costs more than the rest. So a request whose
last byte came with its first one is given to the application here, as its parser ends. Mostly the
application has the answer at once, and header and body are written as one. If not, it gives what
has to be awaited, and that goes the way of all others: it becomes a task of uvicorn, which sees
the client hang up. What comes in several pieces, or has anything unusual in its header, goes that
way from the beginning.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from nnasync.serving.http import HttpApp, Later, model_in
from nnasync.serving.http_connection import BoundedConnection
from nnasync.serving.http_exchange import Asked
from nnasync.serving.http_reply import Reply
from nnasync.serving.joined_writes import JOINED_BYTES
from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError

_SHORT_URL = 256
"""Longer addresses are not remembered: anybody may ask for them."""
_PLAIN = re.compile(rb"[/\w.-]+")
_UNUSUAL = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


@functools.lru_cache(maxsize=256)
def _target(url: bytes) -> tuple[str, str] | None:
    """The model and version whose inferences have this address, if it is its path to the letter."""
    return model_in(url.decode()) if _PLAIN.fullmatch(url) else None


class AtOnceConnection(BoundedConnection):
    """HTTP that has small requests answered without a task."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        app: Any = self.app
        self._app: HttpApp | None = None
        if isinstance(app, HttpApp) and not self.access_log and not self.root_path:
            self._app = app
        self._asked: Asked | None = None
        self._body = b""
        self._fixed: Any = None
        self._fixed_text = b""

    def data_received(self, data: bytes) -> None:
        """Answer what is complete with it."""
        super().data_received(data)
        if self._asked is not None:
            body, self._body, self._asked = self._body, b"", None
            if not self.transport.is_closing():
                self._to_uvicorn()
                super().on_body(body)

    def on_message_begin(self) -> None:
        """Note that a request begins; what uvicorn has for it is made once it is needed."""
        self._begins()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """Wait for the body if this may be a request that comes in one piece."""
        self._header_ends()
        self._asked = self._asked_here()
        if self._asked is None:
            self._to_uvicorn()

    def _asked_here(self) -> Asked | None:
        """What is asked for, where it can be answered here."""
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
        parser = self.parser
        if not parser.should_keep_alive() or parser.get_http_version() != "1.1":
            return None
        if self.transport.is_closing():
            return None
        try:
            return app.asked(target, headers, self.client[0] if self.client else "")
        except ServingError:
            return None

    def on_body(self, body: bytes) -> None:
        """Keep a body that came with its header."""
        if self._asked is None:
            super().on_body(body)
        else:
            self._has_body_come = True
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """Have a request that has come in one piece answered."""
        asked, body = self._asked, self._body
        if asked is None or self._app is None:
            super().on_message_complete()
            return
        self._asked, self._body = None, b""
        if len(body) > self._limits.body_bytes:
            self._to_uvicorn()
            super().on_body(body)
            super().on_message_complete()
            return
        self._is_arriving = False
        found = self._app.begin(asked, body)
        if isinstance(found, Reply):
            self._answer(found)
        else:
            self._await(found)

    def _answer(self, reply: Reply) -> None:
        """Write a whole response."""
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
        if reply.more and reply.is_last:
            self.transport.close()

    def _fixed_fields(self) -> bytes:
        """The fields that uvicorn puts into all responses; those of a second are one list."""
        fields = self.server_state.default_headers
        if fields is not self._fixed:
            self._fixed = fields
            self._fixed_text = b"".join(b"%b: %b\r\n" % field for field in fields)
        return self._fixed_text

    def _await(self, work: Later) -> None:
        """Have a task of uvicorn answer with what has to be awaited."""
        app: Any = self.app
        self.app = functools.partial(app.answer_later, work)
        try:
            self._to_uvicorn()
        finally:
            self.app = app
        self.cycle.more_body = False

    def _to_uvicorn(self) -> None:
        """Have uvicorn go on with a request whose header is complete."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        HttpToolsProtocol.on_message_begin(self)
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        HttpToolsProtocol.on_headers_complete(self)
