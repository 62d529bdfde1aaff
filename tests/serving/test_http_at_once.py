"""Requests that come in one piece, which the connection has answered without a task."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.wakeup import Wakeup
from nnasync.serving import Limits, ModelServer, ModelSettings, ServeOptions
from nnasync.serving.json_protocol import decoded
from nnasync.serving.problems import ServingError
from tests.rigs import POOL, ROW, gated, until
from tests.serving.rig import INFER, body, browsing, outcomes, serving

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

from nnasync.serving import http_at_once, http_server
from nnasync.serving.body_in_place import room
from nnasync.serving.http_at_once import AtOnceConnection
from nnasync.serving.http_server import Place, listening
from tests.serving.connection_rig import HERE, answers, connected, post

pytestmark = [pytest.mark.one_loop("uvicorn runs on asyncio"), pytest.mark.anyio]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the requests for which uvicorn was asked for a task."""
    found: list[str] = []
    start = AtOnceConnection._start_asgi_task

    def noted(self: Any, cycle: Any, app: Any) -> None:
        found.append(cycle.scope["path"])
        start(self, cycle, app)

    monkeypatch.setattr(AtOnceConnection, "_start_asgi_task", noted)
    return found


async def until_at_once(stream: Any, tasks: list[str]) -> None:
    """Ask until an answer needs no task: the first run of a network may be elsewhere."""
    while True:
        tasks.clear()
        await stream.send(post())
        ((status, _, _),) = await answers(stream, 1)
        assert status == 200
        if not tasks:
            return


async def test_a_small_request_needs_no_task_and_has_the_answer_of_any_other(
    tasks: list[str],
) -> None:
    async with connected() as (server, stream), browsing(server) as client:
        await until_at_once(stream, tasks)
        before = outcomes(server)["completed"]
        await stream.send(post())
        ((status, fields, content),) = await answers(stream, 1)
        other = await client.post(INFER, json=body(), headers={"accept-encoding": "identity"})
        assert (status, tasks) == (200, [])
        assert content == other.content
        assert fields.pop("date")
        assert fields == dict(other.headers)
        assert outcomes(server) == {"completed": before + 2}


async def test_binary_tensors(tasks: list[str]) -> None:
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": [1, 4],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": 16},
                }
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    async with connected() as (_, stream):
        await until_at_once(stream, tasks)
        await stream.send(
            post(text + ROW.tobytes(), inference_header_content_length=str(len(text)))
        )
        ((status, fields, content),) = await answers(stream, 1)
        assert (status, tasks) == (200, [])
        assert content[int(fields["inference-header-content-length"]) :] == (2 * ROW).tobytes()


async def test_wherever_a_request_is_cut_its_answer_is_the_same() -> None:
    request = post()
    async with connected() as (server, stream):
        for cut in range(1, len(request)):
            await stream.send(request[:cut])
            await anyio.lowlevel.checkpoint()
            await stream.send(request[cut:])
            ((status, _, content),) = await answers(stream, 1)
            assert (status, json.loads(content)["outputs"][0]["data"]) == (200, [2, 4, 6, 8])
        assert outcomes(server) == {"completed": len(request) - 1}


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The addresses in headers that a parser has read."""
    found: list[bytes] = []
    complete = AtOnceConnection.on_headers_complete

    def noted(self: AtOnceConnection) -> None:
        found.append(self.url)
        complete(self)

    monkeypatch.setattr(AtOnceConnection, "on_headers_complete", noted)
    return found


async def test_a_header_that_was_read_before_is_not_parsed_again(
    tasks: list[str], parsed: list[bytes]
) -> None:
    texts = [json.dumps(body(id=name)).encode() for name in "abc"]
    async with connected() as (server, stream):
        await until_at_once(stream, tasks)
        before = outcomes(server)["completed"]
        parsed.clear()
        for text in texts:
            await stream.send(post(text))
            ((status, _, content),) = await answers(stream, 1)
            assert (status, json.loads(content)["id"]) == (200, json.loads(text)["id"])
        assert parsed == [INFER.encode()]
        for cut in (1, 30, len(post(texts[0])) - 5):
            await stream.send(post(texts[0])[:cut])
            await anyio.lowlevel.checkpoint()
            await stream.send(post(texts[0])[cut:])
            ((status, _, _),) = await answers(stream, 1)
            assert status == 200
        assert outcomes(server) == {"completed": before + 6}


async def test_after_a_known_header_the_connection_goes_on_with_any_other(
    tasks: list[str],
) -> None:
    live = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    async with connected() as (_, stream):
        await until_at_once(stream, tasks)
        for request, count in ((post(), 1), (live, 1), (post() + live + post(), 3), (post(), 1)):
            await stream.send(request)
            assert [status for status, _, _ in await answers(stream, count)] == [200] * count
        await stream.send(post(connection="close"))
        assert len(await answers(stream, 1)) == 1
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_a_request_with_a_known_header_may_wait(
    tasks: list[str], parsed: list[bytes]
) -> None:
    engine = gated(steps=1)
    engine.gate.open(3)
    async with connected(engine, options=POOL) as (server, stream):
        for _ in range(3):
            await stream.send(post())
            ((status, fields, _),) = await answers(stream, 1)
            assert (status, fields["content-type"]) == (200, "application/json")
        assert tasks == [INFER] * 3
        await stream.send(post())
        await until(lambda: engine.counters.waiting == 1)
        await stream.send(post())  # It waits for the answer to the first one.
        engine.gate.open(2)
        assert [status for status, _, _ in await answers(stream, 2)] == [200] * 2
        assert outcomes(server) == {"completed": 5}
        assert set(parsed) == {INFER.encode()}


async def test_who_waits_behind_a_known_header_and_hangs_up_is_cancelled(
    tasks: list[str],
) -> None:
    engine = gated(steps=2)
    engine.gate.open(2)
    async with connected(engine, options=POOL) as (server, stream):
        await stream.send(post())
        assert len(await answers(stream, 1)) == 1
        await stream.send(post())
        await until(lambda: engine.counters.waiting == 1)
        await stream.aclose()
        await until(lambda: outcomes(server) == {"completed": 1, "cancelled": 1})
        engine.gate.open()
        await until(lambda: engine.counters.stopped == 1)


async def test_before_a_request_the_loop_hears_of_what_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections: list[AtOnceConnection] = []
    made = AtOnceConnection.connection_made

    def noted(self: AtOnceConnection, transport: Any) -> None:
        connections.append(self)
        made(self, transport)

    monkeypatch.setattr(AtOnceConnection, "connection_made", noted)
    async with connected() as (server, stream):
        await stream.send(post())
        await answers(stream, 1)
        (connection,), wakeup = connections, Wakeup.current()
        seen: list[int] = []

        def callback() -> None:
            for part in (post()[:-4], post()[-4:]):
                wakeup.post(lambda: seen.append(outcomes(server)["completed"]))
                connection.data_received(part)

        asyncio.get_running_loop().call_soon(callback)
        await answers(stream, 1)
    assert seen == [1, 1], "each before what was read after it"


async def test_what_cannot_be_in_time_is_refused_without_a_task(tasks: list[str]) -> None:
    async with connected(options=POOL) as (server, stream):
        await stream.send(post())
        assert (await answers(stream, 1))[0][0] == 200
        tasks.clear()
        await stream.send(post(x_request_timeout="0.001ms"))
        ((status, fields, content),) = await answers(stream, 1)
        assert (status, json.loads(content)) == (503, {"error": "Request timeout expired"})
        assert (int(fields["retry-after"]), tasks) == (1, [])
        assert outcomes(server) == {"completed": 1, "missed": 1}
        (model,) = server.models
        assert model.pending == 0


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.0"])
async def test_who_offers_another_protocol_is_answered_in_this_one(offer: str) -> None:
    fields = {"connection": "Upgrade, HTTP2-Settings", "upgrade": offer, "http2_settings": "AAMA"}
    live = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    request = post(None, INFER, **fields)
    async with connected() as (server, stream):
        for cut in (len(request), 5, len(request) - 3, request.index(b"\r\n\r\n") + 4):
            await stream.send(request[:cut])
            await anyio.lowlevel.checkpoint()
            await stream.send(request[cut:] + live + post())
            found = await answers(stream, 3)
            assert [status for status, _, _ in found] == [200] * 3
            assert json.loads(found[0][2])["outputs"][0]["data"] == [2, 4, 6, 8]
        await stream.send(post(None, INFER, **{**fields, "connection": "close, Upgrade"}))
        ((status, closing, _),) = await answers(stream, 1)
        assert (status, closing["connection"]) == (200, "close")
        assert outcomes(server) == {"completed": 9}


async def test_very_many_offers_may_come_together() -> None:
    live = b"GET /v2/health/live HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    async with connected() as (_, stream):
        await stream.send(live * 2000)
        assert {status for status, _, _ in await answers(stream, 2000)} == {200}


async def test_keys_in_known_headers_are_looked_at_each_time() -> None:
    serve = ServeOptions(poll_s=0, api_keys={"secret": "ann", "other": "bob"})
    async with connected(serve=serve) as (server, stream):
        for key, wanted in (("secret", 200), ("other", 200), ("none", 401)) * 2:
            await stream.send(post(x_api_key=key))
            ((status, _, _),) = await answers(stream, 1)
            assert status == wanted
        submitted = {account.client: account.tally.calls for account in server.accounts.all()}
        assert submitted == {"ann": 2, "bob": 2}


LARGE = 100_000
"""Floats: so many do not come with their header, and are read into their place."""


def large_request(**headers: str) -> tuple[bytes, bytes]:
    """A request of large tensors, there and back, and the bytes that its answer has."""
    values = np.arange(LARGE, dtype=np.float32)
    tensor = {"name": "x", "shape": [1, LARGE], "datatype": "FP32",
              "parameters": {"binary_data_size": values.nbytes}}  # fmt: skip
    told = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    text = json.dumps(told).encode()
    content = text + values.tobytes()
    length = str(len(text))
    request = post(
        content, "/v2/models/large/infer", inference_header_content_length=length, **headers
    )
    return request, (2 * values).tobytes()


@asynccontextmanager
async def with_large(**limits: Any) -> AsyncIterator[tuple[ModelServer, Any]]:
    """A server of the doubler of large tensors beside the small one, and a connection to it."""
    builder = nn.ModelBuilder("large")
    x = builder.input("x", (1, LARGE))
    builder.output("y", builder.add(x, x))
    async with connected(**limits) as (server, stream):
        await server.add(await server.runtime.compile(builder.build()), ModelSettings(name="large"))
        yield server, stream


async def test_large_bodies_are_read_into_their_place_wherever_they_are_cut(
    tasks: list[str],
) -> None:
    request, wanted = large_request()
    head = request.index(b"\r\n\r\n") + 4
    async with with_large() as (server, stream):
        for cuts in ([], [head - 1], [head], [head + 1], [head + 5, 90_000], [len(request) - 1]):
            for start, end in pairwise([0, *cuts, len(request)]):
                await stream.send(request[start:end])
                await anyio.lowlevel.checkpoint()
            ((status, fields, content),) = await answers(stream, 1)
            assert status == 200
            assert content[int(fields["inference-header-content-length"]) :] == wanted
        await stream.send(post() + request + post() + request)
        found = await answers(stream, 4)
        assert [status for status, _, _ in found] == [200] * 4
        assert [len(content) > LARGE for _, _, content in found] == [False, True] * 2
        assert outcomes(server, "large") == {"completed": 8}


async def test_a_large_body_that_never_ends_is_told_so_and_leaves_nothing() -> None:
    request, _ = large_request()
    async with with_large(body_s=0.5) as (server, stream):
        await stream.send(request[:-1])
        with anyio.fail_after(20):
            ((status, _, _),) = await answers(stream, 1)
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
        assert status == 408
        assert not outcomes(server, "large")


async def test_who_hangs_up_in_a_large_body_is_forgotten() -> None:
    request, _ = large_request()
    async with with_large() as (server, stream):
        await stream.send(request[:-1])
        await stream.aclose()
    assert not outcomes(server, "large")


async def test_a_body_beyond_the_limit_is_refused_before_it_has_come() -> None:
    request, _ = large_request()
    async with with_large(body_bytes=300_000) as (_, stream):
        await stream.send(request[:1000])
        with anyio.fail_after(20):
            ((status, _, _),) = await answers(stream, 1)
        assert status == 413


async def test_a_request_that_is_coming_when_the_server_ends_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request, _ = large_request()
    reading: list[int] = []
    ending: list[AtOnceConnection] = []

    def noted_room(size: int) -> memoryview:
        reading.append(size)
        return room(size)

    shutdown = AtOnceConnection.shutdown

    def noted(self: AtOnceConnection) -> None:
        shutdown(self)
        ending.append(self)

    monkeypatch.setattr(http_at_once, "room", noted_room)
    monkeypatch.setattr(AtOnceConnection, "shutdown", noted)
    async with (
        serving(runtime_options=HERE) as server,
        anyio.create_task_group() as tasks,
        listening(server, Place(port=0)) as address,
    ):
        stream = await anyio.connect_tcp("127.0.0.1", int(address.rpartition(":")[2]))
        await stream.send(request[:-1])
        await until(lambda: bool(reading))

        async def finish() -> None:
            await until(lambda: bool(ending))
            await stream.send(request[-1:])
            ((status, _, _),) = await answers(stream, 1)
            assert status == 404
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            await stream.aclose()

        tasks.start_soon(finish)


async def test_requests_that_come_together_are_answered_in_their_order() -> None:
    chunked = post(b"", transfer_encoding="chunked").replace(b"content-length: 0\r\n", b"")
    text = json.dumps(body(id="c")).encode()
    chunked += b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
    named = [json.dumps(body(id=name)).encode() for name in "abd"]
    async with connected() as (server, stream):
        live = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
        await stream.send(post(named[0]) + post(named[1]) + chunked + live + post(named[2]))
        found = await answers(stream, 5)
        assert [status for status, _, _ in found] == [200] * 5
        assert [json.loads(each[2]).get("id") for each in found] == ["a", "b", "c", None, "d"]
        assert outcomes(server) == {"completed": 4}


async def test_what_is_wrong_is_answered_and_the_connection_goes_on(tasks: list[str]) -> None:
    async with connected(body_bytes=2000) as (server, stream):
        await until_at_once(stream, tasks)
        before = outcomes(server)["completed"]
        for request, wanted in (
            (post(b"{"), 400),
            (post(json.dumps({"inputs": []}).encode()), 400),
            (post(path="/v2/models/nope/infer"), 404),
            (post(path=f"{INFER}?question"), 200),
            (post(path=INFER.replace("doubler", "%64oubler")), 200),
            (post(path=INFER.replace("doubler", "doubler?")), 405),
            (post(x_request_timeout="soon"), 400),
            (post(b" " * 2001), 413),
        ):
            await stream.send(request)
            ((status, _, _),) = await answers(stream, 1)
            assert status == wanted, request
        assert outcomes(server) == {"completed": before + 2, "failed": 1}


async def test_keys_are_asked_for() -> None:
    serve = ServeOptions(poll_s=0, api_keys={"secret": "ann"})
    async with connected(serve=serve) as (server, stream):
        await stream.send(post() + post(x_api_key="secret"))
        assert [status for status, _, _ in await answers(stream, 2)] == [401, 200]
        assert [account.client for account in server.accounts.all()] == ["ann"]


async def test_a_server_that_is_about_to_end_closes_the_connection() -> None:
    async with connected() as (server, stream):
        server.is_ready = False
        await stream.send(post())
        ((status, fields, _),) = await answers(stream, 1)
        assert (status, fields["connection"]) == (503, "close")
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_who_asks_for_the_end_of_the_connection_gets_it() -> None:
    async with connected() as (_, stream):
        await stream.send(post(connection="close"))
        ((status, fields, _),) = await answers(stream, 1)
        assert (status, fields["connection"]) == (200, "close")
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_a_connection_that_is_idle_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_KEEP_ALIVE_S", 0.05)
    async with connected(body_s=0.05) as (_, stream):
        await stream.send(post())
        assert len(await answers(stream, 1)) == 1
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_what_has_to_wait_ends_with_its_client(tasks: list[str]) -> None:
    engine = gated(steps=2)
    async with connected(engine, options=nn.Options()) as (server, stream):
        await stream.send(post())
        await until(lambda: engine.counters.waiting == 1)
        assert tasks == [INFER]
        await stream.aclose()
        await until(lambda: outcomes(server) == {"cancelled": 1})
        engine.gate.open()
        await until(lambda: engine.counters.stopped == 1)


@pytest.mark.parametrize(
    "request_bytes", [post(), post(accept_encoding="gzip")], ids=["plain", "packed"]
)
async def test_a_request_whose_task_is_cancelled_before_its_first_step_has_an_end(
    request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = AtOnceConnection._start_asgi_task

    def cancelled(self: Any, cycle: Any, app: Any) -> None:
        before = set(self.tasks)
        start(self, cycle, app)
        for task in self.tasks - before:
            task.cancel()

    monkeypatch.setattr(AtOnceConnection, "_start_asgi_task", cancelled)
    monkeypatch.setattr(http_server, "_GRACE_S", 0)
    engine = gated()
    async with connected(engine, options=nn.Options()) as (server, stream):
        # Nothing is read from a connection while the second request waits for the first one.
        await stream.send(2 * request_bytes)
        await until(lambda: outcomes(server) == {"cancelled": 1})
        assert await server.drain()
        assert engine.counters.run == 0


async def test_requests_before_a_header_that_is_cut_do_not_count_as_its_size() -> None:
    async with connected(header_bytes=4000) as (_, stream):
        one = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100 + b"\r\n\r\n"
        await stream.send(one * 50 + one[:40])
        await anyio.lowlevel.checkpoint()
        await stream.send(one[40:])
        with anyio.fail_after(20):
            found = await answers(stream, 51)
        assert {status for status, _, _ in found} == {200}


async def test_an_idle_connection_that_said_something_meaningless_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "_KEEP_ALIVE_S", 0.05)
    async with connected(body_s=0.05) as (_, stream):
        await stream.send(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n\r\n")
        with anyio.fail_after(20):
            await answers(stream, 1)
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()


async def test_negative_dimensions_are_the_fault_of_the_client() -> None:
    builder = nn.ModelBuilder("open")
    builder.output("y", builder.relu(builder.input("x", (0, 0))))
    async with (
        nn.open_runtime(devices=["nnasync-reference"]) as rt,
        ModelServer(rt, options=ServeOptions(poll_s=0)) as server,
    ):
        await server.add(await rt.compile(builder.build()), ModelSettings(name="open"))
        tensor = {"name": "x", "shape": [-1, -1], "datatype": "FP32", "data": [1.0]}
        request = decoded(json.dumps({"inputs": [tensor]}).encode(), None, Limits(), "open")
        with pytest.raises(ServingError) as caught:
            await server.infer(request)
        assert caught.value.code == 400


@pytest.mark.parametrize("options", [HERE, POOL])
@pytest.mark.parametrize("spaces", [0, 400_000])
async def test_a_connection_that_is_over_leaves_nothing_for_the_collector(
    options: nn.Options, spaces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[AtOnceConnection]] = []
    begin = AtOnceConnection.connection_made

    def noted(self: AtOnceConnection, transport: Any) -> None:
        made.append(weakref.ref(self))
        begin(self, transport)

    monkeypatch.setattr(AtOnceConnection, "connection_made", noted)
    gc.disable()
    try:
        async with connected(options=options) as (_, stream):
            await stream.send(post(json.dumps(body()).encode() + b" " * spaces))
            ((status, _, _),) = await answers(stream, 1)
            assert status == 200
            await stream.aclose()
            await until(lambda: made[0]() is None)
    finally:
        gc.enable()
