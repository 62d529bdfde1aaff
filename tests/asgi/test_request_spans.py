"""Requests as spans: the client's trace, the route, the status, the hang-up."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from nnasync import asgi
from nnasync.errors import GeneralFailure
from nnasync.tracing.otel import SpanInstrument
from tests.asgi.rigs import Client
from tests.rigs import GUARD_S, POOL, ROW, doubler

pytestmark = pytest.mark.anyio

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Rig:
    """An application with its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        networks = asgi.Networks(
            {"double": doubler()},
            runtime=lambda: nn.open_runtime(
                devices=["nnasync-reference"],
                options=POOL,
                instruments=[SpanInstrument(provider)],
            ),
        )
        call = networks.call("double")

        async def double(request: Request) -> JSONResponse:
            net = await call(request)
            return JSONResponse((await net(ROW)).tolist())

        async def fail(request: Request) -> JSONResponse:
            raise GeneralFailure("broken")

        async def wait(request: Request) -> JSONResponse:
            request.scope["client_of_test"].hang_up()
            await anyio.sleep_forever()
            raise AssertionError

        routes = [Route("/double", double), Route("/fail", fail), Route("/wait/{n}", wait)]
        self.app = Starlette(routes=routes, lifespan=networks.lifespan)
        networks.install(self.app)
        self.app.add_middleware(asgi.RequestSpans, provider=provider)

    async def ask(self, path: str, headers: dict[str, str] | None = None) -> Client:
        client = Client(path, headers=headers)
        client.scope["client_of_test"] = client
        with anyio.fail_after(GUARD_S):
            async with self.app.router.lifespan_context(self.app):
                await client.ask(self.app)
        return client

    def span(self, start: str) -> Any:
        return next(s for s in self.exporter.get_finished_spans() if s.name.startswith(start))


async def test_a_request_goes_on_with_the_trace_of_its_client() -> None:
    rig = Rig()
    client = await rig.ask("/double", TRACEPARENT)
    span = rig.span("GET")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.kind is trace.SpanKind.SERVER
    assert span.attributes["http.response.status_code"] == 200
    assert span.status.status_code is StatusCode.UNSET
    told = f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert client.headers["traceresponse"] == told
    execution = rig.span("execute double")
    assert execution.parent.span_id == span.context.span_id


@pytest.mark.parametrize("header", ["", "00-nonsense", f"ff-{TRACE}-{PARENT}-01", "é" * 100])
async def test_a_request_without_a_trace_begins_one(header: str) -> None:
    rig = Rig()
    await rig.ask("/double", {"traceparent": header})
    span = rig.span("GET")
    assert span.parent is None
    assert span.context.is_valid


async def test_a_failure_is_an_error() -> None:
    rig = Rig()
    client = await rig.ask("/fail")
    assert client.status == 500
    span = rig.span("GET")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["http.response.status_code"] == 500


async def test_a_hang_up_is_told() -> None:
    rig = Rig()
    await rig.ask("/wait/7")
    span = rig.span("GET")
    assert span.attributes["error.type"] == "client_disconnected"
    assert span.attributes["url.path"] == "/wait/7"
    assert "7" not in span.name


async def test_others_than_requests_are_passed_on() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    nothing: Any = None
    await asgi.RequestSpans(app)({"type": "lifespan"}, nothing, nothing)
    assert seen == ["lifespan"]
