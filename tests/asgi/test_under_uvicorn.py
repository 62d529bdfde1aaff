"""A real server and a real socket: what a client that hangs up leaves behind."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.abc
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from nnasync import asgi
from tests.rigs import GUARD_S, POOL, doubler, gated, set_free, until

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra live")

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("uvicorn runs on asyncio")]

ASK = b"POST /double HTTP/1.1\r\nHost: here\r\nContent-Length: 12\r\n\r\n[1, 2, 3, 4]"


def application(networks: asgi.Networks) -> Starlette:
    call = networks.call("double")

    async def double(request: Request) -> JSONResponse:
        net = await call(request)
        return JSONResponse((await net([await request.json()])).tolist())

    app = Starlette(routes=[Route("/double", double, methods=["POST"])], lifespan=networks.lifespan)
    networks.install(app)
    return app


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """The port of a server, which ends with the block."""

    class Server(uvicorn.Server):  # type: ignore[misc,name-defined]  # It is imported late.
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(app, lifespan="on", log_config=None, timeout_graceful_shutdown=1)
    server = Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: server.serve(sockets=[listener]))
            await until(lambda: server.started)
            try:
                yield listener.getsockname()[1]
            finally:
                server.should_exit = True


async def test_a_client_that_closes_its_socket_frees_the_device() -> None:
    engine = gated(steps=2)
    networks = asgi.Networks(
        {"double": doubler()}, runtime=lambda: nn.open_runtime(devices=[engine], options=POOL)
    )
    with anyio.fail_after(GUARD_S):
        async with served(application(networks)) as port:
            async with await anyio.connect_tcp("127.0.0.1", port) as first:
                await first.send(ASK)
                await engine.when(lambda counters: counters.waiting == 1)
            runtime = networks.runtime
            tally = runtime.calls.of("double", nn.Priority.MEDIUM, "null")
            await until(lambda: ("cancelled", "") in tally.outcomes())
            engine.gate.open()
            await engine.when(lambda counters: counters.stopped == 1)
            set_free(engine)
            async with await anyio.connect_tcp("127.0.0.1", port) as second:
                await second.send(ASK)
                answer = b""
                while b"[[2.0,4.0,6.0,8.0]]" not in answer:
                    answer += await second.receive()
            assert tally.calls == tally.completed + 1 == 2
