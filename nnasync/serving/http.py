"""The server over HTTP, as an ASGI application.

Inferences take a short way of their own, since all others together are rare; the rest are routes of
Starlette. A body is read once, up to a limit and within a time; while a request waits, its
connection is watched, and a client that hangs up has it cancelled.

`begin` is the middle of that way, and waits for nothing: a server that has a whole request in hand
may call it without a task, and awaits only what it is given where the answer cannot be had at once.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from starlette.types import Receive, Scope, Send

from nnasync.serving.content_coding import accepted, packed, unpacked
from nnasync.serving.http_exchange import (
    Asked,
    HungUp,
    asked_by,
    read_body,
    told,
)
from nnasync.serving.http_reply import Reply
from nnasync.serving.http_routes import routes
from nnasync.serving.joined_writes import JOINED_BYTES
from nnasync.serving.json_protocol import decoded, encoded
from nnasync.serving.known_heads import KnownHeads
from nnasync.serving.messages import Bytes, InferAnswer, InferRequest
from nnasync.serving.problems import ServingError, as_serving_error
from nnasync.serving.server import ModelServer

logger = logging.getLogger(__name__)

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
_DECODED_HERE_BYTES = 1 << 18
"""A body that is larger, and not tensors for the most part, is read in a thread."""
_SHORT_LENGTH = len("99999")
_PACKED_HERE_BYTES = 1 << 14
"""What is larger is packed in a thread: it takes milliseconds, without the interpreter lock."""

Later: TypeAlias = Callable[[], Awaitable[Reply]]
"""Gives a response that has to be awaited; no coroutine, which would have to be awaited."""


def http_app(server: ModelServer) -> HttpApp:
    """Returns the ASGI application of a server; it neither opens nor closes the server."""
    return HttpApp(server)


def model_in(path: str) -> tuple[str, str] | None:
    """Returns the (model, version) whose inferences have this path; None for any other path."""
    found = _INFER.fullmatch(path)
    return None if found is None else (found[1], found[2] or "")


class HttpApp:
    """An ASGI application in front of a server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._others = routes(server)
        self.known_heads = KnownHeads()
        """Of requests to this application, for connections that hand them to `begin`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            target = model_in(_path_here(scope))
            if target is not None:
                await self._infer(target, scope, receive, send)
                return
        await self._others(scope, receive, send)

    async def _infer(
        self, target: tuple[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        limits, headers = self._server.limits, dict(scope["headers"])
        peer = scope.get("client")
        try:
            asked = self.asked(target, headers, peer[0] if peer else "")
            body = await read_body(receive, headers, limits.body_bytes, limits.body_s)
        except HungUp:
            return
        except Exception as error:
            await respond(self._refused(error), send)
            return
        found = self.begin(asked, body)
        if isinstance(found, Reply):
            await respond(found, send)
        else:
            await self.answer_later(found, scope, receive, send)

    def asked(self, target: tuple[str, str], headers: dict[bytes, bytes], peer: str) -> Asked:
        """Reads the header of a request; raises ServingError where it makes no sense."""
        return asked_by(self._server.options, target, headers, peer)

    def begin(self, asked: Asked, body: Bytes) -> Reply | Later:
        """Returns the response to a complete request, or what is to be awaited for it.

        Raises nothing. What it returns to be awaited raises ServingError, and may be dropped
        without being called.
        """
        try:
            if asked.packing or (len(body) > _DECODED_HERE_BYTES and _is_mostly_text(asked.length)):
                return functools.partial(self._begun_aside, asked, body)
            limits = self._server.limits
            return self._run(asked, decoded(body, asked.length, limits, asked.model, asked.version))
        except Exception as error:
            return self._refused(error)

    async def answer_later(self, work: Later, _scope: Scope, receive: Receive, send: Send) -> None:
        """Responds with the awaited result of `begin`, unless the client hangs up before."""
        try:
            reply = await _watched(self.awaited(work), receive)
        except HungUp:
            return
        await respond(reply, send)

    async def awaited(self, work: Later) -> Reply:
        """Awaits what `begin` returned, and returns the response; errors become responses, too."""
        try:
            return await work()
        except Exception as error:
            return self._refused(error)

    async def _begun_aside(self, asked: Asked, body: Bytes) -> Reply:
        """Unpacks and reads a body on a thread, and answers the request in it."""
        limits, threads = self._server.limits, self._server.coding_threads
        if asked.packing:
            body = await anyio.to_thread.run_sync(
                unpacked, body, asked.packing, limits.body_bytes, limiter=threads
            )
        named = asked.model, asked.version
        if len(body) > _DECODED_HERE_BYTES and _is_mostly_text(asked.length):
            request = await anyio.to_thread.run_sync(
                decoded, body, asked.length, limits, *named, limiter=threads
            )
        else:
            request = decoded(body, asked.length, limits, *named)
        found = self._run(asked, request)
        return found if isinstance(found, Reply) else await found()

    def _run(self, asked: Asked, request: InferRequest) -> Reply | Later:
        if asked.level and not request.priority:
            request = msgspec.structs.replace(request, priority=asked.level)

        def finish(answer: InferAnswer) -> Reply:
            return _reply(*encoded(answer, request))

        found: Any = self._server.start(
            request,
            client=asked.client,
            deadline=asked.deadline,
            arrived_ns=asked.arrived_ns,
            finish=finish,
        )
        coding = accepted(asked.accepts) if asked.accepts else ""
        if coding:
            return functools.partial(_packed, found, coding)
        return found if isinstance(found, Reply) else lambda: found

    def _refused(self, error: Exception) -> Reply:
        """Returns the response for an error."""
        if not isinstance(error, ServingError):
            logger.error("a request could not be read or answered", exc_info=error)
            error = as_serving_error(error)
        return told(error, is_last=not self._server.is_ready)


def _path_here(scope: Scope) -> str:
    """Returns the path below the prefix under which the application is mounted."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    # Some frameworks leave the prefix in the path, others take it away.
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path


def _is_mostly_text(length: str | None) -> bool:
    """Returns whether the JSON of a body is so long that reading it would hold the loop."""
    return length is None or len(length) > _SHORT_LENGTH


def _reply(text: bytes, tensors: list[Bytes]) -> Reply:
    """Returns the response that carries an answer: its JSON, and the tensors behind it."""
    if not tensors:
        return Reply(200, [text], len(text))
    pieces = [text, *tensors]
    size = sum(map(len, pieces))
    if size <= JOINED_BYTES:
        pieces = [b"".join(pieces)]
    return Reply(200, pieces, size, len(text))


async def _packed(found: Reply | Awaitable[Reply], coding: str) -> Reply:
    """Returns the response with its body packed in this coding."""
    reply = found if isinstance(found, Reply) else await found
    body = b"".join(reply.pieces)
    if len(body) < _PACKED_HERE_BYTES:
        body = packed(body, coding)
    else:
        body = await anyio.to_thread.run_sync(packed, body, coding)
    more = (*reply.more, (b"content-encoding", coding.encode()))
    return Reply(reply.status, [body], len(body), reply.json_bytes, more)


async def respond(reply: Reply, send: Send) -> None:
    """Send a response."""
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.fields()})
    last = len(reply.pieces) - 1
    for number, piece in enumerate(reply.pieces):
        more = number < last
        await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _watched(work: Awaitable[Reply], receive: Receive) -> Reply:
    """Awaits an answer, and cancels it where the client hangs up; raises HungUp then."""
    answer: Reply | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_hang_up, receive, tasks.cancel_scope)
        answer = await work
        tasks.cancel_scope.cancel()
    if answer is None:
        raise HungUp
    return answer


async def _cancel_on_hang_up(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        await anyio.lowlevel.checkpoint()
    scope.cancel()
