"""Many requests at once, half of which hang up at some moment: nothing is left, accounts add up."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from nnasync import asgi
from nnasync.devices import NullEngine
from tests.asgi.rigs import Client
from tests.rigs import GUARD_S, ROW, doubler, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

COUNT = 150


async def test_half_of_them_hang_up() -> None:
    engine = NullEngine("null", latency_ns=500_000, steps=2)
    options = nn.Options(cores=2, inline_budget_us=0, competition_budget_ms=0, queue_limit=40)
    networks = asgi.Networks(
        {"double": doubler()}, runtime=lambda: nn.open_runtime(devices=[engine], options=options)
    )
    call = networks.call("double")

    async def double(request: Request) -> JSONResponse:
        net = await call(request)
        return JSONResponse((await net(ROW)).tolist())

    app = Starlette(routes=[Route("/double", double)], lifespan=networks.lifespan)
    networks.install(app)
    chance = random.Random(7)
    clients = [Client("/double") for _ in range(COUNT)]

    async def ask(client: Client) -> None:
        for _ in range(chance.randrange(20)):
            await anyio.lowlevel.checkpoint()
        await client.ask(app)

    async def hang_up(client: Client) -> None:
        for _ in range(chance.randrange(60)):
            await anyio.lowlevel.checkpoint()
        client.hang_up()

    with anyio.fail_after(GUARD_S):
        async with networks.lifespan():
            async with anyio.create_task_group() as tasks:
                for number, client in enumerate(clients):
                    tasks.start_soon(ask, client)
                    if number % 2:
                        tasks.start_soon(hang_up, client)
            tally = networks.runtime.calls.of("double", nn.Priority.MEDIUM, "null")
            ends = tally.outcomes()
            assert tally.calls == sum(ends.values())
            statuses = [client.status for client in clients]
            assert all(status in (200, 503) for status in statuses[::2])
            assert all(status in (0, 200, 503) for status in statuses)
            assert statuses.count(503) == ends.get(("refused", "queue_full"), 0)
            assert statuses.count(200) <= ends[("completed", "")]
            await until(lambda: not networks.runtime.statistics().workers.live)
