"""What becomes of requests that are late, urgent, given up or too many, in a web application.

A network takes 300 ms on one core and can be stopped every 10 ms, as a real one can between two of
its operations. It is called by an application with `nnasync.asgi`, and by one as they are usually
written: on a thread of an executor, with `asyncio.wait_for` as the deadline. Requests are handed
to the applications as a server hands them, without a socket. Then requests come at random, 1.5
times as many as there is time for, each with a deadline: how late are the answers?

Each figure is the milliseconds until the request in question has its answer; of rounds the median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from benchmarks._report import arguments, percentile, publish, table
from nnasync import asgi
from nnasync.devices import NullEngine

RUN_MS, STEPS = 300, 30
LATE = {"x-request-timeout": "50ms"}
HIGH, LOW = {"x-request-priority": "high"}, {"x-request-priority": "low"}
ROOM = 4
LOAD, BUDGET_MS, SHORT_MS = 1.5, 100, 10

Headers = Mapping[str, str]
App = Callable[[int], AbstractAsyncContextManager[Starlette]]
"""Makes an application of a network that takes so many milliseconds."""


# -- applications


def model() -> nn.Model:
    """Returns a model of one operation, whose duration is the engine's."""
    builder = nn.ModelBuilder("slow")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def routed(endpoint: Callable[[Request], Awaitable[JSONResponse]], **options: Any) -> Starlette:
    return Starlette(routes=[Route("/slow", endpoint, methods=["POST"])], **options)


@asynccontextmanager
async def with_asgi(run_ms: int) -> AsyncIterator[Starlette]:
    """Runs an application that uses `nnasync.asgi`."""
    engine = NullEngine("slow", latency_ns=run_ms * 10**6, steps=STEPS)
    options = nn.Options(cores=1, queue_limit=ROOM, inline_budget_us=0, competition_budget_ms=0)
    networks = asgi.Networks(
        {"slow": model()}, runtime=lambda: nn.open_runtime(devices=[engine], options=options)
    )
    call = networks.call("slow")

    async def slow(request: Request) -> JSONResponse:
        net = await call(request)
        return JSONResponse((await net(np.ones((1, 4), np.float32))).tolist())

    app = routed(slow, lifespan=networks.lifespan)
    networks.install(app)
    async with networks.lifespan():
        yield app


@asynccontextmanager
async def with_executor(run_ms: int) -> AsyncIterator[Starlette]:
    """Runs an application as they are usually written, with an executor."""
    with ThreadPoolExecutor(1) as pool:

        async def slow(request: Request) -> JSONResponse:
            loop = asyncio.get_running_loop()
            timeout = request.headers.get("x-request-timeout")
            running = loop.run_in_executor(pool, time.sleep, run_ms / 1000)
            try:
                await asyncio.wait_for(running, float(timeout[:-2]) / 1000 if timeout else None)
            except TimeoutError:
                return JSONResponse({"error": "timeout"}, 504)
            return JSONResponse([])

        yield routed(slow)


APPLICATIONS: dict[str, App] = {"nnasync.asgi": with_asgi, "in an executor": with_executor}


# -- clients


class Client:
    """A request, with the time and the status of its answer."""

    def __init__(self, app: Starlette, headers: Headers = {}) -> None:  # noqa: B006  # It is read.
        self._app = app
        self._headers = headers
        self._gone = asyncio.Event()
        self._messages = [{"type": "http.request", "body": b"", "more_body": False}]
        self.status = 0
        self.began_s = time.perf_counter()
        self.took_ms = 0.0
        self.task = asyncio.create_task(self._ask())

    def hang_up(self) -> None:
        self._gone.set()

    async def _ask(self) -> None:
        given = [(name.encode(), text.encode()) for name, text in self._headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/slow",
            "raw_path": b"/slow",
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "headers": [(b"host", b"here"), *given],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.took_ms = 1000 * (time.perf_counter() - self.began_s)

    async def answer(self) -> tuple[float, int]:
        """Returns the milliseconds until the answer, and its status."""
        await self.task
        return self.took_ms, self.status


async def soon() -> None:
    """Waits until what was asked is under way."""
    await asyncio.sleep(0.03)


async def late_in_the_queue(app: Starlette) -> tuple[float, int]:
    """Asks with a deadline of 50 ms, behind a run that has just begun."""
    first = Client(app)
    await soon()
    found = await Client(app, LATE).answer()
    await first.answer()
    return found


async def late_while_it_runs(app: Starlette) -> tuple[float, int]:
    """Asks for a run of 300 ms with a deadline of 50 ms."""
    return await Client(app, LATE).answer()


async def behind_one_who_is_late(app: Starlette) -> tuple[float, int]:
    """Asks when the request before has just been answered with 504."""
    await Client(app, LATE).answer()
    return await Client(app).answer()


async def behind_two_who_hung_up(app: Starlette) -> tuple[float, int]:
    """Asks when two clients have hung up, one of which ran and one waited."""
    gone = [Client(app), Client(app)]
    await soon()
    for each in gone:
        each.hang_up()
    found = await Client(app).answer()
    await asyncio.gather(*(each.task for each in gone))
    return found


async def urgent(app: Starlette) -> tuple[float, int]:
    """Asks for a HIGH run behind four LOW ones, one of which runs."""
    others = [Client(app, LOW) for _ in range(ROOM)]
    await soon()
    found = await Client(app, HIGH).answer()
    for each in others:
        await each.answer()
    return found


async def one_too_many(app: Starlette) -> tuple[float, int]:
    """Asks as the sixth, where one runs and four wait."""
    others = [Client(app)]
    await soon()
    others += [Client(app) for _ in range(ROOM)]
    await soon()
    found = await Client(app).answer()
    for each in others:
        await each.answer()
    return found


CASES = {
    "deadline 50 ms, waiting behind a run": late_in_the_queue,
    "deadline 50 ms, running": late_while_it_runs,
    "the next one after a deadline has passed": behind_one_who_is_late,
    "the next one after two have hung up": behind_two_who_hung_up,
    "HIGH behind four LOW": urgent,
    "the sixth, where four may wait": one_too_many,
}


async def overloaded(app: Starlette, requests: int) -> dict[str, float]:
    """Sends requests at random, each with a deadline; returns goodput, and how late errors are."""
    chance, clients = random.Random(0), []
    for _ in range(requests):
        clients.append(Client(app, {"x-request-timeout": f"{BUDGET_MS}ms"}))
        await asyncio.sleep(chance.expovariate(LOAD / (SHORT_MS / 1000)))
    found = [await client.answer() for client in clients]
    errors = [max(0.0, took_ms - BUDGET_MS) for took_ms, status in found if status != 200]
    good = sum(status == 200 and took_ms <= BUDGET_MS for took_ms, status in found)
    return {
        "in time %": 100 * good / len(found),
        "of what is possible %": 100 * good / len(found) * LOAD,
        "errors late by p50 ms": percentile(errors, 0.5) if errors else 0.0,
        "errors late by p99 ms": percentile(errors, 0.99) if errors else 0.0,
    }


async def measure(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns both tables."""
    figures: dict[str, Any] = {}
    for _ in range(options.rounds):
        for name, make in APPLICATIONS.items():
            for case, ask in CASES.items():
                async with make(RUN_MS) as app:
                    figures.setdefault(case, {}).setdefault(name, []).append(await ask(app))
            async with make(SHORT_MS) as app:
                for what, value in (await overloaded(app, options.requests)).items():
                    figures.setdefault(what, {}).setdefault(name, []).append((value, 0))
    rows = [
        [case, *(cell(found[name]) for name in APPLICATIONS)] for case, found in figures.items()
    ]
    return table([f"run of {RUN_MS} ms", *APPLICATIONS], rows), json.loads(json.dumps(figures))


def cell(found: list[tuple[float, int]]) -> str:
    """Returns the median, and the status where there is one."""
    middle, status = sorted(found)[len(found) // 2]
    return f"{middle:.0f} ms, {status}" if status else f"{middle:.1f}"


def main() -> None:
    """Measure, and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--requests", type=int, default=300, help="at random (%(default)s)")
    options = parser.parse_args()
    text, figures = nn.run(measure, options)
    publish("Promises to requests", text, figures, options)


if __name__ == "__main__":
    main()
