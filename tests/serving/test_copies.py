"""How often the bytes of a large tensor are copied: each copy would need memory of its own."""

from __future__ import annotations

import json
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync.hal import Array
from nnasync.serving import ModelServer, http_app
from nnasync.serving.http_exchange import read_body
from nnasync.serving.http_reply import Reply
from nnasync.serving.messages import InferRequest, InputTensor, RegionSlice, RequestedOutput
from nnasync.serving.shared_memory import FOLDER
from tests.serving.rig import serving
from tests.serving.test_shared_memory import made

SHAPE = (1, 150_000)
VALUES = np.arange(SHAPE[1], dtype=np.float32).reshape(SHAPE)
SIZE = VALUES.nbytes
HERE = nn.Options(cores=1, inline_budget_us=1e6, stall_budget_us=1e6)
"""The network runs on the loop, however slow this machine is."""

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("nothing waits for a loop")]


@asynccontextmanager
async def server() -> AsyncIterator[ModelServer]:
    """A server of a network with large tensors."""
    builder = nn.ModelBuilder("large")
    x = builder.input("x", SHAPE)
    builder.output("y", builder.add(x, x))
    async with serving(models=(builder.build(),), runtime_options=HERE) as server:
        yield server


def request_of(values: Array) -> tuple[bytes, bytes]:
    """The JSON of a request, and with it the whole body."""
    tensor = {"name": "x", "shape": SHAPE, "datatype": "FP32",
              "parameters": {"binary_data_size": SIZE}}  # fmt: skip
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return text, text + values.tobytes()


async def copies(ask: Callable[[], Any]) -> float:
    """How many tensors the memory has room for that an answer takes beyond what there is anyway.

    Of several answers the least: the first ones make what is used again.
    """
    found: list[float] = []
    while len(found) < 5:
        tracemalloc.start()
        try:
            answer = ask()
            if not isinstance(answer, (tuple, Reply)):
                answer.close()
                continue
            found.append(tracemalloc.get_traced_memory()[1] / SIZE)
        finally:
            tracemalloc.stop()
        await anyio.lowlevel.checkpoint()
    return min(found)


async def test_a_body_that_comes_at_once_is_not_copied() -> None:
    body = bytes(100)

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    assert await read_body(receive, {}, 1000, 1) is body


async def test_a_body_in_pieces_is_put_together_once() -> None:
    pieces = [bytes(SIZE // 4) for _ in range(4)]
    left = list(pieces)

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

    tracemalloc.start()
    try:
        body = await read_body(receive, {}, SIZE, 30)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert body == b"".join(pieces)
    assert SIZE <= peak < 1.1 * SIZE


async def test_over_http_only_the_output_is_copied_out_of_the_network() -> None:
    pytest.importorskip("starlette", reason="the extra serve is not installed")
    text, body = request_of(VALUES)
    async with server() as served:
        app = http_app(served)
        length = {b"inference-header-content-length": str(len(text)).encode()}
        asked = app.asked(("large", ""), length, "")
        assert await copies(lambda: app.begin(asked, body)) < 1.1


async def test_from_the_second_on_large_bodies_of_a_connection_are_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("httptools", reason="the extra serve is not installed")
    from nnasync.serving.http import HttpApp
    from nnasync.serving.http_server import Place, listening

    peaks: list[float] = []
    begin = HttpApp.begin

    def noted(app: HttpApp, asked: Any, body: Any) -> Any:
        peaks.append(tracemalloc.get_traced_memory()[1] / SIZE)
        return begin(app, asked, body)

    monkeypatch.setattr(HttpApp, "begin", noted)
    text, body = request_of(VALUES)
    head = (
        "POST /v2/models/large/infer HTTP/1.1\r\nhost: x\r\n"
        f"inference-header-content-length: {len(text)}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    request = head.encode() + body
    async with server() as served, listening(served, Place(port=0)) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            answer = memoryview(bytearray(2 * SIZE))

            def exchange() -> None:
                """Ask, and read the answer, with no memory of its own."""
                client.sendall(request)
                count = 0
                while count < SIZE:
                    count += client.recv_into(answer[count:])

            for _ in range(5):
                tracemalloc.start()
                try:
                    await anyio.to_thread.run_sync(exchange)
                finally:
                    tracemalloc.stop()
    assert 1 <= min(peaks[1:]) < 1.1


@pytest.mark.skipif(not Path(FOLDER).is_dir(), reason="there is no folder of shared memory")
async def test_in_shared_memory_nothing_is_copied() -> None:
    async with server() as served:
        with made(2 * SIZE) as file:
            file.path.write_bytes(VALUES.tobytes() + bytes(SIZE))
            served.memory_of("").register("r", file.key, 0, 2 * SIZE)
            request = InferRequest(
                "large",
                inputs=(InputTensor("x", "FP32", SHAPE, region=RegionSlice("r", SIZE)),),
                outputs=(RequestedOutput("y", region=RegionSlice("r", SIZE, SIZE)),),
            )
            assert await copies(lambda: served.start(request, finish=lambda a: a.outputs)) < 0.1
            assert file.path.read_bytes()[SIZE:] == (2 * VALUES).tobytes()
