"""What replicas of Ray Serve serve in tests: they import this module by its name."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import nnasync as nn
from nnasync import asgi
from nnasync.devices import NullEngine

STEP_NS = 50_000_000
STEPS = 6


def doubler() -> nn.Model:
    """Output y = 2 x."""
    builder = nn.ModelBuilder("double")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def build(cores: int) -> Starlette:
    """A network that takes 300 ms, and one that takes nothing."""
    options = nn.Options(cores=cores, competition_budget_ms=0, queue_limit=64)
    slow = NullEngine("slow", latency_ns=STEP_NS * STEPS, steps=STEPS)

    async def on_slow(runtime: nn.Runtime) -> nn.Net:
        return await runtime.compile(doubler(), devices=["slow"], name="slow")

    async def on_reference(runtime: nn.Runtime) -> nn.Net:
        return await runtime.compile(doubler(), devices=["nnasync-reference"], name="double")

    networks = asgi.Networks(
        {"slow": on_slow, "double": on_reference},
        runtime=lambda: nn.open_runtime(devices=[slow, "nnasync-reference"], options=options),
    )
    calls = {name: networks.call(name) for name in ("slow", "double")}

    async def call(request: Request) -> JSONResponse:
        net = await calls[request.path_params["name"]](request)
        row = np.array([await request.json()], np.float32)
        return JSONResponse({"pid": os.getpid(), "y": (await net(row)).tolist()})

    async def about(request: Request) -> JSONResponse:
        told: dict[str, Any] = {
            "pid": os.getpid(),
            "cores": networks.runtime.options.cores,
            "on_main_thread": threading.current_thread() is threading.main_thread(),
            "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "runs": slow.counters.run,
            "stopped": slow.counters.stopped,
        }
        return JSONResponse(told)

    routes = [Route("/call/{name}", call, methods=["POST"]), Route("/about", about)]
    app = Starlette(routes=routes, lifespan=networks.lifespan)
    networks.install(app)
    return app
