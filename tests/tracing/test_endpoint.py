"""The metrics endpoint: GET /metrics, and whatever else people send."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync import errors
from nnasync.tracing import Tracer, endpoint
from nnasync.tracing.endpoint import Endpoint, serve_metrics
from tests.rigs import GUARD_S, ROW, doubler

pytestmark = pytest.mark.anyio

GET = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Numbers(msgspec.Struct, frozen=True):
    threads: int


class Source:
    """Something with statistics; in a bad state on demand."""

    def __init__(self) -> None:
        self.tracer = Tracer()
        self.closed = False

    def statistics(self) -> Numbers:
        if self.closed:
            raise errors.BadState("closed")
        return Numbers(3)


def watched(source: Source) -> bool:
    """Whether durations of the source's executions are taken."""
    return bool(source.tracer.task_ran)


async def ask(served: Endpoint, request: bytes) -> bytes:
    """The whole answer to a request."""
    with anyio.fail_after(GUARD_S):
        async with await anyio.connect_tcp("127.0.0.1", served.port) as client:
            await client.send(request)
            return await rest(client)


async def rest(client: anyio.abc.SocketStream) -> bytes:
    answer = b""
    try:
        while True:
            answer += await client.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return answer


async def test_statistics_are_served_and_the_port_is_free_afterwards() -> None:
    source = Source()
    async with serve_metrics(source) as served:
        head, _, body = (await ask(served, GET)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Type: text/plain; version=0.0.4" in head
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"nnasync_threads 3\n" in body
        assert watched(source)
        assert served.url == f"http://127.0.0.1:{served.port}/metrics"
    assert not watched(source)
    async with serve_metrics(source, port=served.port) as again:
        assert again.port == served.port
        with pytest.raises(OSError, match=r".*"):
            async with serve_metrics(source, port=served.port):
                pass


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?name=x HTTP/1.1\r\nhost: localhost:9090\r\n\r\n", 200),
        (b"GET /metrics HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.0\r\n\r\n", 404),
        (b"GET /metrics/../etc HTTP/1.0\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 1\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: example.com\r\n\r\n", 421),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/9.9\r\n\r\n", 400),
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"x" * (endpoint.MAX_HEADER_BYTES + 1), 431),
    ],
)
async def test_every_request_gets_its_status(request_: bytes, status: int) -> None:
    async with serve_metrics(Source()) as served:
        answer = await ask(served, request_)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert (await ask(served, GET)).startswith(b"HTTP/1.1 200 ")


async def test_a_source_in_a_bad_state_is_unavailable() -> None:
    source = Source()
    async with serve_metrics(source) as served:
        source.closed = True
        assert (await ask(served, GET)).startswith(b"HTTP/1.1 503 ")


async def test_a_collector_that_raises_is_told_and_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def collect(self) -> Any:
            raise ValueError("no figures today")

    async with serve_metrics(Source(), collectors=(Broken(),)) as served:
        for _ in range(2):
            assert (await ask(served, GET)).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert "no figures today" in caplog.text


async def test_connections_that_cannot_be_taken_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoint, "_PAUSE_S", 0.0)
    async with serve_metrics(Source()) as served:
        listener: Any = served._listener
        assert listener is not None
    real, failures = type(listener).serve, [OSError(24, "Too many open files")] * 2

    async def serve(self: Any, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await real(self, *arguments)

    monkeypatch.setattr(type(listener), "serve", serve)
    async with serve_metrics(Source()) as served:
        assert (await ask(served, GET)).startswith(b"HTTP/1.1 200 OK\r\n")
    assert caplog.text.count("Too many open files") == 2


async def test_the_silent_are_shown_out_and_the_many_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "MAX_CLIENTS", 2)
    async with serve_metrics(Source()) as served:
        silent = [await anyio.connect_tcp("127.0.0.1", served.port) for _ in range(2)]
        with anyio.fail_after(GUARD_S):
            while served._clients < 2:
                await anyio.lowlevel.checkpoint()
        assert (await ask(served, b"")).startswith(b"HTTP/1.1 503 ")
        for client in silent:
            await client.aclose()
        with anyio.fail_after(GUARD_S):
            while served._clients:
                await anyio.lowlevel.checkpoint()
        monkeypatch.setattr(endpoint, "TIMEOUT_S", 0.01)
        assert await ask(served, b"GET /metr") == b""


async def test_leaving_ends_open_connections_and_keeps_the_error_of_the_body() -> None:
    with pytest.raises(ValueError, match="mine"):
        async with serve_metrics(Source()) as served:
            client = await anyio.connect_tcp("127.0.0.1", served.port)
            raise ValueError("mine")
    with anyio.fail_after(GUARD_S):
        assert await rest(client) == b""
    await client.aclose()
    with pytest.raises(errors.BadState):
        async with served:
            pass


@pytest.mark.parametrize("port", [-1, 65536, "80", 1.5])
async def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="port"):
        serve_metrics(Source(), port=port)


async def test_a_runtime_shows_its_executions() -> None:
    async with nn.open_runtime() as runtime, serve_metrics(runtime) as served:
        net = await runtime.compile(doubler(), devices=["nnasync-reference"])
        for _ in range(3):
            await net(ROW)
        text = served.text()
        assert (await ask(served, GET)).startswith(b"HTTP/1.1 200 ")
    counts = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith('nnasync_execution_seconds_count{network="doubler"')
    ]
    assert sum(counts) == 3
    assert "nnasync_workers_scheduler_aged_total 0" in text
    assert 'nnasync_workers_scheduler_queued{priority="high"} 0' in text


@given(st.binary(max_size=60))
def test_any_header_has_a_status(junk: bytes) -> None:
    status = endpoint._status(junk + b"\r\n\r\n")
    assert status in endpoint._REASONS
    assert endpoint._response(status).endswith(b"\n")
