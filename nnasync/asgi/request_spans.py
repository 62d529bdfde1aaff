"""Spans of OpenTelemetry for requests, with the trace of their clients; the extra `otel`.

    app.add_middleware(RequestSpans)    # after networks.install(app): it goes around that

The headers `traceparent` and `tracestate` of W3C Trace Context, and what else the application's
propagators read, are taken from the request. The span is current while the request is served: what
is executed and asked of others for it is below it, `opentelemetry.propagate.inject` hands it on,
and the answer says it in `traceresponse`. An application that has instrumentation of ASGI by
OpenTelemetry itself has such spans already and needs none of these.
"""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KINDS = ("http", "websocket")


class RequestSpans:
    """An ASGI application around another one, whose requests are spans."""

    def __init__(self, app: ASGIApp, provider: Any = None) -> None:
        """`provider` makes tracers, by default the global one; ImportError without the extra."""
        from opentelemetry import trace

        self._app = app
        self._tracer = trace.get_tracer("nnasync.asgi", tracer_provider=provider)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request inside its span."""
        if scope["type"] not in _KINDS:
            await self._app(scope, receive, send)
            return
        from opentelemetry import propagate
        from opentelemetry.trace import SpanKind

        method = str(scope.get("method", "WEBSOCKET"))
        with self._tracer.start_as_current_span(
            method,
            context=propagate.extract(dict(Headers(scope=scope))),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": scope["path"]},
        ) as span:
            answer = _Answer(span, send)
            try:
                await self._app(scope, receive, answer.send)
            finally:
                answer.finish(scope, method)


class _Answer:
    """What the span is told of the answer, and the answer of the span."""

    def __init__(self, span: Any, send: Send) -> None:
        self._span = span
        self._send = send
        self._status = 0

    async def send(self, message: Message) -> None:
        """Send a message of the application; the first one says which trace it is of."""
        if message["type"] in ("http.response.start", "websocket.accept"):
            self._status = int(message.get("status", 101))
            place = self._span.get_span_context()
            if place.is_valid:
                told = f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"
                message.setdefault("headers", [])
                MutableHeaders(scope=message)["traceresponse"] = told
        await self._send(message)

    def finish(self, scope: Scope, method: str) -> None:
        """Name the span by its route, and note how it ended."""
        from opentelemetry.trace import Status, StatusCode

        path = getattr(scope.get("route"), "path", "")
        if path:
            self._span.update_name(f"{method} {path}")
            self._span.set_attribute("http.route", path)
        if self._status:
            self._span.set_attribute("http.response.status_code", self._status)
        elif scope["type"] == "http":
            self._span.set_attribute("error.type", "client_disconnected")
        if self._status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))
