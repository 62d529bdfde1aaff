"""The web application: the page, its files, and the socket of each open page."""

from __future__ import annotations

import importlib.resources

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from nnasync import now_ns
from nnasync.cli.live.flood import Allowance
from nnasync.cli.live.guard import COOKIE
from nnasync.cli.live.messages import Notice, encode, read_command
from nnasync.cli.live.outbox import Outbox
from nnasync.cli.live.studio import Studio, Viewer
from nnasync.errors import InvalidArgument, NNError, ResourceExhausted

SEND_TIMEOUT_S = 10.0
"""A viewer who takes no message for so long is let go."""

_MESSAGES_HZ, _BURST = 20.0, 60
_GARBAGE = 8
"""How many messages that are no commands end a socket."""

_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def make_app(studio: Studio, token: str = "") -> Starlette:
    """The application; the page that is opened with the `token` keeps it as a cookie."""
    files = _page_files()

    async def page(request: Request) -> Response:
        response = files["index.html"]()
        if token:
            is_https = request.scope["scheme"] == "https"
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=is_https)
        return response

    async def file(request: Request) -> Response:
        make = files.get(request.path_params["name"])
        return make() if make else PlainTextResponse("there is no such file\n", status_code=404)

    async def socket(connection: WebSocket) -> None:
        await _Socket(connection, studio).serve()

    return Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", file),
            WebSocketRoute("/socket", socket),
        ]
    )


def _page_files() -> dict[str, _File]:
    folder = importlib.resources.files("nnasync.cli.live") / "page"
    return {
        entry.name: _File(entry.read_bytes(), _TYPES[suffix])
        for entry in folder.iterdir()
        if (suffix := "." + entry.name.rpartition(".")[2]) in _TYPES
    }


class _File:
    """A file of the page, which is kept in memory."""

    def __init__(self, content: bytes, kind: str) -> None:
        self._content = content
        self._kind = kind

    def __call__(self) -> Response:
        return Response(self._content, media_type=self._kind, headers=_HEADERS)


class _Socket:
    """The socket of one page, from its opening to its end, whoever ends it."""

    def __init__(self, connection: WebSocket, studio: Studio) -> None:
        self._connection = connection
        self._studio = studio

    async def serve(self) -> None:
        """Send what is for the viewer, and do what the page asks for."""
        await self._connection.accept()
        try:
            viewer = self._studio.admit()
        except ResourceExhausted as error:
            await self._end(_TRY_AGAIN_LATER, str(error))
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, viewer.outbox, tasks.cancel_scope)
                await self._receive(viewer)
                tasks.cancel_scope.cancel()
        finally:
            self._studio.leave(viewer)

    async def _send(self, outbox: Outbox, scope: anyio.CancelScope) -> None:
        try:
            while (message := await outbox.next()) is not None:
                with anyio.fail_after(SEND_TIMEOUT_S):
                    if isinstance(message, bytes):
                        await self._connection.send_bytes(message)
                    else:
                        await self._connection.send_text(message)
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            scope.cancel()

    async def _receive(self, viewer: Viewer) -> None:
        allowance, garbage = Allowance(_MESSAGES_HZ, _BURST), 0
        while True:
            message = await self._connection.receive()
            if message["type"] == "websocket.disconnect":
                return
            if not allowance.take(now_ns()):
                self._studio.refused += 1
                await self._end(_POLICY_VIOLATION, "this page sends too many messages")
                return
            try:
                self._studio.obey(viewer, read_command(message.get("text") or b""))
            except NNError as error:
                self._studio.refused += 1
                viewer.tell(encode(Notice(str(error), kind="error")))
                garbage += isinstance(error, InvalidArgument)
            if garbage >= _GARBAGE:
                await self._end(_POLICY_VIOLATION, "this page sends what is no command")
                return

    async def _end(self, code: int, reason: str) -> None:
        """Close the socket; its other end may be gone, or not read."""
        with anyio.move_on_after(SEND_TIMEOUT_S, shield=True):
            try:
                await self._connection.close(code, reason[:120])
            except RuntimeError:
                pass  # It is closed already.
