"""What all endpoints over HTTP share: bodies, clients, deadlines, errors."""

from __future__ import annotations

import math
from http import HTTPStatus

import anyio
import msgspec
from starlette.types import Receive

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.request_headers import (
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
    priority_of,
    timeout_ns_of,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority
from nnasync.serving.http_reply import CLOSE, LENGTH, Head, Reply
from nnasync.serving.json_protocol import error_body
from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError, invalid, too_large
from nnasync.serving.serve_options import ServeOptions

_TIMEOUT = TIMEOUT_HEADER.encode()
_PRIORITY = PRIORITY_HEADER.encode()
_LEVELS = {Priority.HIGH: 1, Priority.MEDIUM: 2, Priority.LOW: 3}


class HungUp(Exception):
    """The client closed the connection."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """Holds what the address and the header of a request for an inference say.

    `level` is 0 for no priority, 1 for the highest; `length` is the length of the JSON as it is
    stated, if it is; `packing` is the coding of the body, `accepts` those of the response that the
    client takes; both are empty where nothing is said.
    """

    model: str
    version: str
    client: str
    arrived_ns: int
    deadline: Deadline | None
    level: int
    length: str | None
    packing: str
    accepts: str


def asked_by(
    options: ServeOptions, target: tuple[str, str], headers: dict[bytes, bytes], peer: str
) -> Asked:
    """Reads from its header what a request asks for; raises ServingError where it makes no sense.

    `target` are the model and its version.
    """
    arrived_ns, length = now_ns(), headers.get(LENGTH)
    packing, accepts = headers.get(b"content-encoding"), headers.get(b"accept-encoding")
    return Asked(
        target[0],
        target[1],
        client_of(options, headers, peer) if options.api_keys else peer,
        arrived_ns,
        deadline_of(headers, arrived_ns) if _TIMEOUT in headers else None,
        level_of(headers) if _PRIORITY in headers else 0,
        None if length is None else length.decode("latin-1"),
        "" if packing is None else packing.decode("latin-1"),
        "" if accepts is None else accepts.decode("latin-1"),
    )


async def read_body(
    receive: Receive, headers: dict[bytes, bytes], limit_bytes: int, limit_s: float
) -> Bytes:
    """Returns the body of a request in one piece.

    Raises ServingError where it is too large or takes too long, HungUp where it does not end.
    """
    length = headers.get(b"content-length", b"")
    if len(length) > 18 or (length and int(length) > limit_bytes):
        raise too_large(f"a request has at most {limit_bytes} bytes")
    # What has come at once needs no clock; a client that sends nothing is the connection's affair.
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise HungUp
    if len(body) > limit_bytes:
        raise too_large(f"a request has at most {limit_bytes} bytes")
    if not message.get("more_body"):
        return body
    with anyio.move_on_after(limit_s):
        return await _rest(receive, body, limit_bytes)
    raise ServingError(HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive in {limit_s:g} s")


async def _rest(receive: Receive, first: bytes, limit_bytes: int) -> Bytes:
    """Returns a body that comes in pieces as a whole; the pieces are joined once, at the end."""
    pieces, size, has_more = [first], len(first), True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HungUp
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        has_more = message.get("more_body", False)
        if size > limit_bytes:
            raise too_large(f"a request has at most {limit_bytes} bytes")
    return b"".join(pieces)


def client_of(options: ServeOptions, headers: dict[bytes, bytes], peer: str) -> str:
    """Returns the client to whose account a request goes.

    Raises ServingError for an unknown key.
    """
    key = headers.get(b"x-api-key")
    if key is None and headers.get(b"authorization", b"")[:7].lower() == b"bearer ":
        key = headers[b"authorization"][7:].strip()
    return options.client_of(None if key is None else key.decode("latin-1"), peer)


def deadline_of(headers: dict[bytes, bytes], arrived_ns: int) -> Deadline | None:
    """Returns the deadline that the header of plain HTTP clients states; None without one."""
    given = headers.get(_TIMEOUT)
    if given is None:
        return None
    try:
        timeout_ns = timeout_ns_of(given.decode("latin-1"))
    except InvalidArgument as error:
        raise invalid(str(error)) from error
    return None if timeout_ns is None else Deadline(arrived_ns + timeout_ns)


def level_of(headers: dict[bytes, bytes]) -> int:
    """Returns the priority that the header states: 0 for none, 1 for the highest."""
    given = headers.get(_PRIORITY)
    if given is None:
        return 0
    try:
        priority = priority_of(given.decode("latin-1"))
    except InvalidArgument as error:
        raise invalid(str(error)) from error
    return 0 if priority is None else _LEVELS[priority]


def told(error: ServingError, *, is_last: bool = False) -> Reply:
    """Returns the response for an error; with `is_last` it ends the connection."""
    body = error_body(error)
    more: Head = []
    if error.retry_after_s > 0 or error.code is HTTPStatus.SERVICE_UNAVAILABLE:
        more.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if error.code is HTTPStatus.NOT_IMPLEMENTED:
        more.append((b"accept-encoding", b"gzip, deflate"))
    if error.code is HTTPStatus.UNAUTHORIZED:
        more.append((b"www-authenticate", b"Bearer"))
    if is_last:
        more.append(CLOSE)
    return Reply(int(error.code), [body], len(body), more=tuple(more))
