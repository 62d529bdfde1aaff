"""The server over HTTP, as an ASGI application.

Inferences take a short way of their own, since all others together are rare; the rest are routes of
Starlette. A body is read once, up to a limit and within a time; while a request waits, its
connection is watched, and a client that hangs up has it cancelled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from nnasync._core.clock import now_ns
from nnasync.serving.content_coding import accepted, packed, unpacked
from nnasync.serving.http_exchange import (
    JSON_TYPE,
    Head,
    HungUp,
    client_of,
    deadline_of,
    level_of,
    read_body,
    told,
)
from nnasync.serving.http_routes import routes
from nnasync.serving.json_protocol import BINARY, LENGTH_HEADER, decoded, encoded
from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError, as_serving_error
from nnasync.serving.server import ModelServer

logger = logging.getLogger(__name__)

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
_LENGTH = LENGTH_HEADER.lower().encode()
_DECODED_HERE_BYTES = 1 << 18
"""A body that is larger, and not tensors for the most part, is read in a thread."""
_SHORT_LENGTH = len("99999")
_PACKED_HERE_BYTES = 1 << 14
"""What is larger is packed in a thread: it takes milliseconds, without the interpreter lock."""
_JOINED_BYTES = 1 << 16
"""Pieces of a shorter response are sent as one: a copy costs less than sending once more."""
_Encoded = tuple[bytes, list[Bytes]]
_BINARY_TYPE = (b"content-type", BINARY.encode())


def http_app(server: ModelServer) -> ASGIApp:
    """The ASGI application of a server; the lifetime of the server is not its own."""
    others = routes(server)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            found = _INFER.fullmatch(_path_here(scope))
            if found is not None:
                await _infer(server, found[1], found[2] or "", scope, receive, send)
                return
        await others(scope, receive, send)

    return app


def _path_here(scope: Scope) -> str:
    """The path below the prefix under which the application is mounted."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    # Some frameworks leave the prefix in the path, others take it away.
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path


async def _infer(
    server: ModelServer, model: str, version: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer one request for an inference."""
    headers = dict(scope["headers"])
    try:
        status, head, pieces = await _answered(server, model, version, scope, headers, receive)
    except HungUp:
        return
    except ServingError as error:
        status, head, body = told(error)
        if not server.is_ready:
            head.append((b"connection", b"close"))
        pieces = [body]
    except Exception as error:
        logger.exception("a request could not be read or answered")
        status, head, body = told(as_serving_error(error))
        pieces = [body]
    await send({"type": "http.response.start", "status": status, "headers": head})
    last = pieces.pop()
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": last})


async def _answered(
    server: ModelServer,
    model: str,
    version: str,
    scope: Scope,
    headers: dict[bytes, bytes],
    receive: Receive,
) -> tuple[int, Head, list[Bytes]]:
    """The status, the header and the pieces of the response."""
    limits, arrived_ns = server.limits, now_ns()
    client = client_of(server, scope, headers)
    deadline = deadline_of(headers)
    body = await read_body(receive, headers, limits.body_bytes, limits.body_s)
    if b"content-encoding" in headers:
        coding = headers[b"content-encoding"].decode("latin-1")
        body = await anyio.to_thread.run_sync(
            unpacked, body, coding, limits.body_bytes, limiter=server.coding_threads
        )
    length = headers.get(_LENGTH)
    header = None if length is None else length.decode("latin-1")
    if len(body) > _DECODED_HERE_BYTES and (header is None or len(header) > _SHORT_LENGTH):
        request = await anyio.to_thread.run_sync(
            decoded, body, header, limits, model, version, limiter=server.coding_threads
        )
    else:
        request = decoded(body, header, limits, model, version)
    level = level_of(headers)
    if level and not request.priority:
        request = msgspec.structs.replace(request, priority=level)
    found = server.start(
        request,
        client=client,
        deadline=deadline,
        arrived_ns=arrived_ns,
        finish=lambda answer: encoded(answer, request),
    )
    text, tensors = found if isinstance(found, tuple) else await _watched(found, receive)
    pieces: list[Bytes] = [text, *tensors]
    head = [_BINARY_TYPE, (_LENGTH, b"%d" % len(text))] if tensors else [JSON_TYPE]
    size = sum(map(len, pieces))
    if tensors and size < _JOINED_BYTES:
        pieces = [b"".join(pieces)]
    if b"accept-encoding" in headers:
        coding = accepted(headers[b"accept-encoding"].decode("latin-1"))
        if coding:
            body = await _packed(pieces, size, coding)
            head.append((b"content-encoding", coding.encode()))
            pieces, size = [body], len(body)
    head.append((b"content-length", b"%d" % size))
    return 200, head, pieces


async def _packed(pieces: list[Bytes], size: int, coding: str) -> bytes:
    body = b"".join(pieces)
    if size < _PACKED_HERE_BYTES:
        return packed(body, coding)
    return await anyio.to_thread.run_sync(packed, body, coding)


async def _watched(work: Coroutine[Any, Any, _Encoded], receive: Receive) -> _Encoded:
    """Await an answer, and give it up where the client hangs up; raises HungUp then."""
    answer: _Encoded | None = None
    problem: ServingError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_on_hang_up, receive, tasks.cancel_scope)
        try:
            answer = await work
        except ServingError as error:
            problem = error
        tasks.cancel_scope.cancel()
    if problem is not None:
        try:
            raise problem
        finally:
            problem = None  # Else it and this frame would keep each other, and the request.
    if answer is None:
        raise HungUp
    return answer


async def _cancel_on_hang_up(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        await anyio.lowlevel.checkpoint()
    scope.cancel()
