"""The calls of the gRPC protocol, as `grpc.aio` gets them: bytes in, bytes out.

An error of the core is the status of a call. On a stream it is a message, and the stream goes on,
unless the client asked for a status there, too. Who cancels a call, or hangs up, cancels the task
that answers it, and with it what runs for it on a device.

A deadline of gRPC counts as the timeout of the request does; the earlier one is the one that
holds.
"""

from __future__ import annotations

import functools
import logging
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

import anyio
import grpc

from nnasync._core.clock import Deadline, within
from nnasync.serving.grpc_front.administration import CALLS, answered
from nnasync.serving.grpc_front.conversion import answer_of, parsed, repeat_of, request_of
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.grpc_front.stream import InferStream
from nnasync.serving.messages import InferRequest
from nnasync.serving.problems import EXPIRED, ServingError, as_serving_error
from nnasync.serving.repeats import may_repeat
from nnasync.serving.server import ModelServer

_log = logging.getLogger(__name__)

_INFERENCE = "inference.GRPCInferenceService"
_HEALTH = "grpc.health.v1.Health"
_WATCH_S = 0.5
_WATCHERS = 64

_CODES = {
    HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    HTTPStatus.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""What is not here is INTERNAL."""

_CHECK = message_class("HealthCheckRequest", "grpc.health.v1")
_CHECKED = message_class("HealthCheckResponse", "grpc.health.v1")
_STATES = _CHECKED.ServingStatus

Unary = Callable[[bytes, Any], Awaitable[bytes]]


class InferenceService:
    """Answers the calls of the gRPC protocol for one server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._repeats = server.models.repeats
        self._watchers = 0
        self._most_watchers = max(1, min(_WATCHERS, server.limits.connections // 4))

    def handlers(self) -> list[Any]:
        """Returns the handlers in which `grpc.aio` looks up the calls."""
        unary = grpc.unary_unary_rpc_method_handler
        calls = {name: unary(self._administered(name)) for name in CALLS}
        calls["ModelInfer"] = unary(self._infer)
        calls["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        health = {
            "Check": unary(self._guarded(self._check)),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return [
            grpc.method_handlers_generic_handler(_INFERENCE, calls),
            grpc.method_handlers_generic_handler(_HEALTH, health),
        ]

    def _guarded(self, call: Unary) -> Unary:
        """Returns a call that reports errors of the core as a gRPC status."""

        async def guarded(message: bytes, context: Any) -> bytes:
            try:
                return await call(message, context)
            except Exception as error:
                return await _abort(context, error)

        return guarded

    def _administered(self, name: str) -> Unary:
        async def call(message: bytes, context: Any) -> bytes:
            return await answered(self._server, name, message, self._client(context))

        return self._guarded(call)

    def _client(self, context: Any) -> str:
        """Returns who calls; raises ServingError for a client that the server does not know."""
        options, host = self._server.options, _host(context.peer())
        if not options.api_keys:
            return host
        return options.client_of(_key_in(dict(context.invocation_metadata() or ())), host)

    # -- inference

    async def _infer(self, message: bytes, context: Any) -> bytes:
        try:
            client, deadline = self._client(context), _deadline(context)
            repeat = self._repeats.find(message)
            if repeat is not None:
                answer = self._server.again(repeat, message, client, deadline)
                if answer is not None:
                    return answer
            request = request_of(message)
            found = self._server.start(request, client=client, deadline=deadline, finish=answer_of)
            if not isinstance(found, bytes):
                return bytes(await found)
            if repeat is None:
                self._note(message, request)
            return found
        except Exception as error:
            return await _abort(context, error)

    def _note(self, message: bytes, request: InferRequest) -> None:
        """Remembers a message that came before and was answered at once.

        Later ones that differ from it in the elements of their tensor alone are answered by it.
        """
        model, repeats = self._server.models.find(request.model, request.version), self._repeats
        if not may_repeat(model, request):
            return
        if repeats.meets_again(message, model.signature.inputs[0].plain_bytes):
            repeat = repeat_of(message, request, model)
            if repeat is not None:
                repeats.note(message, repeat)

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> None:
        try:
            metadata = dict(context.invocation_metadata() or ())
            stream = InferStream(
                self._server,
                self._client(context),
                _deadline(context),
                context.write,
                ends_at_error=metadata.get("triton_grpc_error") == "true",
            )
            await stream.answer(messages)
        except Exception as error:
            await _abort(context, error)

    # -- health

    async def _check(self, message: bytes, context: Any) -> bytes:
        state = self._state(parsed(_CHECK, message).service)
        if state == _STATES.Value("SERVICE_UNKNOWN"):
            raise ServingError(HTTPStatus.NOT_FOUND, "unknown service")
        return bytes(_CHECKED(status=state).SerializeToString())

    async def _watch(self, message: bytes, context: Any) -> None:
        """Sends the health state, then its changes, to at most so many watchers.

        They need no key.
        """
        try:
            service = parsed(_CHECK, message).service
            if self._watchers >= self._most_watchers:
                text = f"the health of this server is watched {self._watchers} times already"
                raise ServingError(HTTPStatus.TOO_MANY_REQUESTS, text)
        except ServingError as error:
            await _abort(context, error)
            return
        self._watchers += 1
        try:
            await self._watched(service, context)
        finally:
            self._watchers -= 1

    async def _watched(self, service: str, context: Any) -> None:
        told = None
        while True:
            state = self._state(service)
            if state != told:
                await context.write(_CHECKED(status=state).SerializeToString())
                told = state
            await anyio.sleep(_WATCH_S)

    def _state(self, service: str) -> int:
        if service not in ("", _INFERENCE):
            return int(_STATES.Value("SERVICE_UNKNOWN"))
        return int(_STATES.Value("SERVING" if self._server.is_ready else "NOT_SERVING"))


async def _abort(context: Any, error: Exception) -> bytes:
    """Ends a call with the gRPC status for an error."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, ServingError):
        _log.error("a call of gRPC failed", exc_info=error)
        error = as_serving_error(error)
    code = _CODES.get(error.code, grpc.StatusCode.INTERNAL)
    remaining_s = context.time_remaining()
    if error.text == EXPIRED and remaining_s is not None and remaining_s <= 0:
        code = grpc.StatusCode.DEADLINE_EXCEEDED
    metadata: tuple[tuple[str, str], ...] = ()
    if error.retry_after_s:
        metadata = (
            ("retry-after", f"{error.retry_after_s:.3f}"),
            ("grpc-retry-pushback-ms", str(int(error.retry_after_s * 1e3))),
        )
    await context.abort(code, error.text, metadata)
    return b""


def _deadline(context: Any) -> Deadline | None:
    remaining_s = context.time_remaining()
    return None if remaining_s is None else within(s=remaining_s)


def _key_in(metadata: Mapping[str, Any]) -> str | None:
    """Returns the key in `authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, key = str(metadata.get("authorization", "")).partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    given = metadata.get("x-api-key")
    return None if given is None else str(given)


@functools.lru_cache(maxsize=1024)
def _host(peer: str) -> str:
    """Returns the address in "ipv4:127.0.0.1:4711"; the port differs by connection."""
    family, _, address = urllib.parse.unquote(peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].strip("[]")
