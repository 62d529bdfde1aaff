"""Web applications: what a request costs beside Starlette's own part, and what batching saves.

Requests are handed to the application as a server hands them, without a socket, one after the
other: what is counted is processor time of the application. `in an executor` is what is usual
without nnasync: the network's engine called on a thread, here with no engine at all, so that it is
the price of the two hops alone.

Batching: clients that ask again as soon as they are answered, for networks of one row, each call by
itself and joined; what `Batcher` itself found out beforehand stands in the last column.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from benchmarks._report import BEST, arguments, median, percentile, publish, table
from nnasync import asgi
from nnasync.batching import Batcher

CLIENTS = 16
BODY = json.dumps([1.0, 2.0, 3.0, 4.0]).encode()
DEVICE = "nnasync-reference"


# -- requests


def doubler() -> nn.Model:
    """Returns a model that doubles four numbers."""
    builder = nn.ModelBuilder("double")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def applications(networks: asgi.Networks, pool: ThreadPoolExecutor) -> dict[str, Starlette]:
    """Returns the same endpoint, written in several ways."""
    call = networks.call("double")

    async def nothing(request: Request) -> JSONResponse:
        row = np.array([await request.json()], np.float32)
        return JSONResponse((row * 2).tolist())

    async def executor(request: Request) -> JSONResponse:
        row = np.array([await request.json()], np.float32)
        loop = asyncio.get_running_loop()
        return JSONResponse((await loop.run_in_executor(pool, lambda: row * 2)).tolist())

    async def network(request: Request) -> JSONResponse:
        net = await call(request)
        return JSONResponse((await net(np.array([await request.json()], np.float32))).tolist())

    def route(endpoint: Callable[[Request], Awaitable[JSONResponse]]) -> Starlette:
        return Starlette(routes=[Route("/double", endpoint, methods=["POST"])])

    installed, hang_ups = route(network), route(nothing)
    networks.install(installed)
    hang_ups.add_middleware(asgi.HangUps)
    return {
        "Starlette alone": route(nothing),
        "and HangUps": hang_ups,
        "in an executor": route(executor),
        "nnasync.asgi": installed,
    }


async def ask(app: Starlette) -> None:
    """Makes one request, as a server makes it."""
    gone = asyncio.Event()
    messages = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"status {message['status']}")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/double",
        "raw_path": b"/double",
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "headers": [(b"host", b"here"), (b"content-length", b"20")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)


async def requests(rounds: int, count: int) -> dict[str, list[float]]:
    """Returns the microseconds of processor time of a request, for each round."""
    networks = asgi.Networks(
        {"double": doubler()}, runtime=lambda: nn.open_runtime(devices=[DEVICE])
    )
    found: dict[str, list[float]] = {}
    with ThreadPoolExecutor(2) as pool:
        apps = applications(networks, pool)
        async with networks.lifespan():
            for number in range(rounds + 1):
                for name, app in apps.items():
                    began_s = time.process_time()
                    for _ in range(count):
                        await ask(app)
                    took_us = 1e6 * (time.process_time() - began_s) / count
                    if number:
                        found.setdefault(name, []).append(took_us)
    return found


# -- batching


def products(width: int) -> nn.Model:
    """Returns four products with matrices: several rows cost hardly more than one."""
    random = np.random.default_rng(0)
    builder = nn.ModelBuilder(f"products of {width}")
    value = builder.input("x", (0, width))
    for _ in range(4):
        weights = random.normal(0, 0.05, (width, width)).astype(np.float32)
        value = builder.fully_connected(value, weights, np.zeros(width, np.float32))
    builder.output("y", value)
    return builder.build()


def waves(width: int) -> nn.Model:
    """Returns a function of each number: several rows cost as much as one after the other."""
    builder = nn.ModelBuilder(f"tanh of {width}")
    builder.output("y", builder.tanh(builder.input("x", (0, width))))
    return builder.build()


async def flood(call: Callable[[Any], Awaitable[Any]], row: Any, calls: int) -> dict[str, float]:
    """Returns calls a second of clients that ask again and again, and their latencies."""
    times_ms: list[float] = []

    async def client() -> None:
        for _ in range(calls):
            began_ns = time.perf_counter_ns()
            await call(row)
            times_ms.append((time.perf_counter_ns() - began_ns) / 1e6)

    began_s = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(CLIENTS):
            tasks.start_soon(client)
    took_s = time.perf_counter() - began_s
    return {
        "calls/s": len(times_ms) / took_s,
        "p50 ms": percentile(times_ms, 0.5),
        "p99 ms": percentile(times_ms, 0.99),
    }


async def batches(rounds: int, calls: int) -> tuple[list[list[str]], dict[str, Any]]:
    """Returns a row for each network: joined calls over separate ones, measured in turns."""
    rows, figures = [], {}
    async with nn.open_runtime(devices=[DEVICE]) as rt:
        for model, width in ((products(512), 512), (products(1024), 1024), (waves(8192), 8192)):
            net = await rt.compile(model, options=BEST)
            row = np.random.default_rng(1).random((1, width), np.float32)
            async with (
                Batcher(net, max_rows=CLIENTS) as asked,
                Batcher(net, max_rows=CLIENTS, when="always") as batcher,
            ):
                found: dict[str, list[dict[str, float]]] = {"alone": [], "joined": []}
                for _ in range(rounds):
                    found["alone"].append(await flood(net, row, calls))
                    found["joined"].append(await flood(batcher, row, calls))
                rows.append(told(model.name, found, asked.report.most_rows))
                figures[model.name] = found
    return rows, figures


def told(name: str, found: dict[str, list[dict[str, float]]], most_rows: int) -> list[str]:
    """Returns a row of the table: medians of rounds."""

    def of(way: str, what: str) -> float:
        return median([each[what] for each in found[way]])

    ratios = [
        joined["calls/s"] / alone["calls/s"]
        for alone, joined in zip(found["alone"], found["joined"], strict=True)
    ]
    return [
        name,
        f"{median(ratios):.2f}",
        f"{of('alone', 'p50 ms'):.2f} -> {of('joined', 'p50 ms'):.2f}",
        f"{of('alone', 'p99 ms'):.2f} -> {of('joined', 'p99 ms'):.2f}",
        f"up to {most_rows}" if most_rows > 1 else "no",
    ]


async def measure(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Returns both tables."""
    costs = await requests(options.rounds, options.requests)
    base = costs["Starlette alone"]
    first = table(
        ["microseconds of processor time", "median", "ratio of rounds"],
        [
            [
                name,
                f"{median(values):.0f}",
                f"{median([a / b for a, b in zip(values, base, strict=True)]):.2f}",
            ]
            for name, values in costs.items()
        ],
    )
    rows, figures = await batches(options.rounds, options.calls)
    heads = [f"{CLIENTS} clients", "calls/s joined/alone", "p50 ms", "p99 ms", "joined by itself"]
    text = f"{first}\n\n{table(heads, rows)}"
    return text, {"request_us": costs, "batching": figures}


def main() -> None:
    """Measure, and print."""
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--requests", type=int, default=300, help="of a round (%(default)s)")
    parser.add_argument("--calls", type=int, default=40, help="of a client (%(default)s)")
    options = parser.parse_args()
    text, figures = nn.run(measure, options)
    publish("Web applications", text, figures, options)


if __name__ == "__main__":
    main()
