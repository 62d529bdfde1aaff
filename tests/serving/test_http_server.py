"""The server at a port, its limits, and real clients of it."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync.serving import Limits, ModelServer, ServeOptions
from tests.certificates import self_signed
from tests.rigs import GUARD_S, ROW, gated, until
from tests.serving.rig import INFER, body, outcomes, serving

pytest.importorskip("starlette", reason="the extra serve is not installed")
pytest.importorskip("httptools", reason="the extra serve is not installed")

import anyio.lowlevel

from nnasync.serving.http_at_once import AtOnceConnection
from nnasync.serving.http_server import Place, listening
from nnasync.serving.tls_gate import TlsGate

pytestmark = [pytest.mark.one_loop("uvicorn runs on asyncio"), pytest.mark.anyio]


@asynccontextmanager
async def at_port(*devices: Any, **limits: Any) -> AsyncIterator[tuple[ModelServer, str]]:
    """A server of the doubler at a free port, and its address."""
    options = ServeOptions(poll_s=0, limits=msgspec.structs.replace(Limits(), **limits))
    async with (
        serving(*devices, options=options) as server,
        listening(server, Place(port=0)) as address,
    ):
        yield server, address


async def sent(address: str, *pieces: bytes) -> bytes:
    """What a server says to these bytes, until it closes the connection."""
    host, _, port = address.removeprefix("http://").partition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        received = b""
        try:
            for piece in pieces:
                await stream.send(piece)
            async for part in stream:
                received += part
        except anyio.BrokenResourceError:
            pass
        return received


async def test_the_client_of_triton() -> None:
    http: Any = pytest.importorskip("tritonclient.http.aio", reason="tritonclient is not there")
    async with at_port() as (server, address):
        client = http.InferenceServerClient(address.removeprefix("http://"))
        assert await client.is_server_live()
        assert await client.is_model_ready("doubler")
        given = http.InferInput("x", [1, 4], "FP32")
        for is_binary in (True, False):
            given.set_data_from_numpy(ROW, binary_data=is_binary)
            wanted = http.InferRequestedOutput("y", binary_data=is_binary)
            answer = await client.infer(
                "doubler", [given], outputs=[wanted], priority=1, timeout=10**7, request_id="a"
            )
            assert answer.as_numpy("y").tolist() == (2 * ROW).tolist()
            assert answer.get_response()["id"] == "a"
        packed = await client.infer(
            "doubler",
            [given],
            request_compression_algorithm="gzip",
            response_compression_algorithm="deflate",
        )
        assert packed.as_numpy("y").tolist() == (2 * ROW).tolist()
        with pytest.raises(Exception, match="'nope' is not found"):
            await client.infer("nope", [given])
        await client.close()
        assert outcomes(server) == {"completed": 3}


async def test_a_client_that_hangs_up() -> None:
    engine = gated(steps=2)
    async with at_port(engine) as (server, address):
        content = json.dumps(body()).encode()
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        host, _, port = address.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(head.encode() + content)
            await until(lambda: engine.counters.waiting == 1)
        await until(lambda: outcomes(server) == {"cancelled": 1})
        engine.gate.open()
        await until(lambda: engine.counters.stopped == 1)


async def test_a_header_that_is_too_large() -> None:
    async with at_port(header_bytes=1000) as (_, address):
        lines = [f"x-{number}: {'y' * 200}\r\n".encode() for number in range(20)]
        answer = await sent(address, b"GET /v2 HTTP/1.1\r\n", *lines)
        assert b" 431 " in answer or answer == b""


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(("size", "status"), [(800, b" 200 "), (1100, b" 431 ")])
async def test_a_header_that_comes_complete_is_counted(
    size: int, status: bytes, pieces: int
) -> None:
    async with at_port(header_bytes=1000) as (_, address):
        head = b"GET /v2 HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: " + b"y" * size
        request = head + b"\r\n\r\n" + b" " * 2000 * (pieces == 1)
        middle = len(head) // 2 if pieces == 2 else len(request)
        answer = await sent(address, request[:middle], request[middle:])
        assert status in answer


async def test_a_client_that_says_nothing_or_never_ends() -> None:
    async with at_port(body_s=0.05) as (_, address):
        assert await sent(address) == b""
        assert await sent(address, b"GET /v2 HTTP/1.1\r\nhost:") == b""
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 9\r\n\r\n"
        answer = await sent(address, head.encode(), b"{")
        assert b" 408 " in answer or answer == b""


async def test_more_connections_than_there_may_be() -> None:
    async with at_port(connections=1) as (_, address):
        host, _, port = address.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)), httpx.AsyncClient() as client:
            answer = await client.get(f"{address}/v2/health/live")
            assert answer.status_code == 503
            assert answer.json() == {"error": "there are too many connections"}
            assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("trailers", [b"x: " + b"a" * 997 + b"\r\n", b"a" * 1000])
async def test_trailers_are_limited_as_headers_are(trailers: bytes) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{{\r\n"
    async with at_port(header_bytes=4096) as (_, address):
        with anyio.fail_after(5):
            first = b"0\r\n" + (b"" if trailers[-1:] == b"\n" else b"x: ")
            answer = await sent(address, head.encode(), first, *[trailers] * 300)
        assert b" 431 " in answer or answer == b""


async def test_a_chunked_body_in_one_piece_is_limited() -> None:
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    chunks = "transfer-encoding: chunked\r\n\r\n65\r\n" + " " * 101 + "\r\n0\r\n\r\n"
    async with at_port(body_bytes=100) as (_, address):
        assert b" 413 " in await sent(address, (head + chunks).encode())


async def test_trailers_are_no_headers() -> None:
    options = ServeOptions(poll_s=0, api_keys={"secret": "ann"})
    text = json.dumps(body()).encode()
    request = (
        f"POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        f"x-api-key: secret\r\nconnection: close\r\n\r\n{len(text):x}\r\n{text.decode()}\r\n"
        "0\r\naccept-encoding: gzip\r\n\r\n"
    )
    async with (
        serving(options=options) as server,
        listening(server, Place(port=0)) as address,
    ):
        answer = await sent(address, request.encode())
        assert b" 200 " in answer
        assert b"content-encoding" not in answer


async def test_a_large_tensor_in_many_pieces() -> None:
    async with at_port() as (server, address), httpx.AsyncClient() as client:
        text = json.dumps({"inputs": [{"name": "x", "shape": [1, 150_000], "datatype": "FP32",
                                       "parameters": {"binary_data_size": 600_000}}]})  # fmt: skip
        answer = await client.post(
            f"{address}{INFER}",
            content=text.encode() + np.zeros(150_000, np.float32).tobytes(),
            headers={"Inference-Header-Content-Length": str(len(text))},
        )
        assert answer.status_code == 400
        assert "unexpected shape" in answer.json()["error"]
        assert outcomes(server) == {"failed": 1}


async def test_a_body_in_chunks_of_a_byte_and_two_requests_at_once() -> None:
    async with at_port() as (server, address):
        text = json.dumps(body()).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        whole = head.encode() + b"\r\n" + chunks
        last = head.encode() + b"connection: close\r\n\r\n" + chunks
        answer = await sent(address, whole + last[:-20], last[-20:])
        assert answer.count(b" 200 OK") == 2
        assert outcomes(server) == {"completed": 2}


async def test_large_tensors_there_and_back() -> None:
    builder = nn.ModelBuilder("large")
    x = builder.input("x", (1, 150_000))
    builder.output("y", builder.add(x, x))
    async with (
        serving(models=(builder.build(),)) as server,
        listening(server, Place(port=0)) as address,
        httpx.AsyncClient(timeout=60) as client,
    ):
        values = np.arange(150_000, dtype=np.float32)
        text = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "shape": [1, 150_000],
                        "datatype": "FP32",
                        "parameters": {"binary_data_size": values.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        head = {"Inference-Header-Content-Length": str(len(text)), "Accept-Encoding": "identity"}

        async def ask(**headers: str) -> None:
            answer = await client.post(
                f"{address}/v2/models/large/infer",
                content=text + values.tobytes(),
                headers={**head, **headers},
            )
            assert answer.status_code == 200
            assert answer.content.endswith((2 * values).tobytes())

        await ask()
        await ask(Expect="100-continue")
        await ask(**{"Accept-Encoding": "gzip"})
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)


async def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with serving() as server:
            with pytest.raises(OSError, match="in use"):
                async with listening(server, Place(port=taken.getsockname()[1])):
                    pass


async def test_many_clients_half_of_which_hang_up_leave_nothing() -> None:
    async with at_port() as (server, address):
        host, _, port = address.removeprefix("http://").partition(":")
        content = json.dumps(body()).encode()
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        request = head.encode() + content
        answers = []

        async def visit(number: int) -> None:
            async with await anyio.connect_tcp(host, int(port)) as stream:
                if number % 2:
                    await stream.send(request[: 1 + number * 7 % len(request)])
                else:
                    await stream.send(request)
                    answers.append(await stream.receive())

        async def visited(times: int) -> None:
            async with anyio.create_task_group() as tasks:
                for number in range(times):
                    tasks.start_soon(visit, number)

        await visited(10)
        await until(lambda: outcomes(server).get("completed") == 5)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await visited(40)
        await until(lambda: outcomes(server) == {"completed": 65})
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_pieces_that_come_with_the_end_of_a_handshake_are_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large body replaces the protocol of its connection behind the first of them."""
    content = json.dumps(body()).encode() + b" " * 100_000
    head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    request = head.encode() + content
    gates: list[TlsGate] = []
    data_received = AtOnceConnection.data_received

    def through_a_gate(self: AtOnceConnection, data: bytes) -> None:
        gates.append(TlsGate(lambda: self, ssl.create_default_context(), Limits(), set(), set()))
        for piece in (data[:1000], data[1000:2000], data[2000:]):
            gates[-1].data_received(piece)
        monkeypatch.setattr(AtOnceConnection, "data_received", data_received)
        monkeypatch.setattr(AtOnceConnection, "connection_made", lambda self, transport: None)
        gates[-1].hand_on(self.transport)

    monkeypatch.setattr(AtOnceConnection, "data_received", through_a_gate)
    async with at_port(body_s=2.0) as (_, address):
        host, _, port = address.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(request)
            assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")


async def test_over_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    place = Place(port=0, certificate=certificate, key=key)
    context = ssl.create_default_context(cafile=str(certificate))
    async with (
        serving() as server,
        listening(server, place) as address,
        httpx.AsyncClient(verify=context) as client,
    ):
        answer = await client.post(f"{address}{INFER}", json=body())
        assert address.startswith("https://")
        assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]


async def until_refused(stream: Any, scope: anyio.CancelScope) -> None:
    """Wait until the server hangs up on one of several."""
    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
        await stream.receive()
    scope.cancel()


async def test_connections_without_a_handshake_are_limited_and_end(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    place = Place(port=0, certificate=certificate, key=key)
    context = ssl.create_default_context(cafile=str(certificate))
    options = ServeOptions(poll_s=0, limits=Limits(connections=2))
    async with serving(options=options) as server, listening(server, place) as address:
        port = int(address.rpartition(":")[2])
        with anyio.fail_after(GUARD_S):
            silent = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(3)]
            async with anyio.create_task_group() as tasks:
                for stream in silent:
                    tasks.start_soon(until_refused, stream, tasks.cancel_scope)
            for stream in silent:
                await stream.aclose()
            async with httpx.AsyncClient(verify=context) as client:
                while True:
                    try:
                        answer = await client.get(f"{address}/v2/health/live")
                        break
                    except httpx.TransportError:
                        await anyio.lowlevel.checkpoint()
        assert answer.json() == {"live": True}


async def test_a_handshake_has_its_time(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    place = Place(port=0, certificate=certificate, key=key)
    options = ServeOptions(poll_s=0, limits=Limits(body_s=0.05))
    async with serving(options=options) as server, listening(server, place) as address:
        plain = address.replace("https", "http")
        assert await sent(plain) == b""
        assert b"200" not in await sent(plain, b"GET /v2 HTTP/1.1\r\n\r\n")
