"""Who may open the page.

Without a token a request has to name this server as its host, so that no page of others reaches it
through a name that leads here; with one, the token is in the address, or in the cookie that the
page set when it was opened. A socket has to come from a page of this server in either case: over
HTTPS from one that came over HTTPS, since what a name serves without it may be from anybody.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from urllib.parse import SplitResult, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

COOKIE = "nnasync-live"
_POLICY_VIOLATION = 1008


class Guard:
    """An ASGI application around another one, which only lets in who may open the page."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], token: str) -> None:
        """`hosts` are names of this server; with a `token` any name will do."""
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with its reason."""
        reason = self._reason(HTTPConnection(scope)) if scope["type"] != "lifespan" else ""
        if not reason:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await WebSocketClose(_POLICY_VIOLATION, reason)(scope, receive, send)
        else:
            await PlainTextResponse(f"{reason}\n", status_code=403)(scope, receive, send)

    def _reason(self, request: HTTPConnection) -> str:
        """Returns why a request is refused; empty where it is not."""
        if self._token:
            given = request.query_params.get("token") or request.cookies.get(COOKIE, "")
            if not secrets.compare_digest(given.encode(), self._token.encode()):
                return "this page needs the token that the server printed with its address"
        elif _place(f"//{request.headers.get('host', '')}").hostname not in self._hosts:
            return "this server is not known by that name"
        if request.scope["type"] == "websocket":
            origin = _place(request.headers.get("origin", ""))
            is_plain = request.scope.get("scheme") == "wss" and origin.scheme != "https"
            if is_plain or origin.netloc != request.headers.get("host"):
                return "a socket is opened by a page of this server only"
        return ""


def _place(url: str) -> SplitResult:
    """The parts of an address; of what is none, empty ones."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
