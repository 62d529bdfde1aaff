"""A program that ends while executions are under way: `python -m tests.ending DEVICE HOW`.

It says "ready" when a device runs several of them, each of which takes long. Then the interpreter
ends by itself with status 7 (`exit`, with the runtime open and its loop standing still), or waits
for a signal (`wait-asyncio`, `wait-trio`).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from nnasync.hal import Model
from nnasync.tracing import Instrument

_CALLS, _ROWS, _COLUMNS, _LAYERS = 8, 64, 640, 6


def _model() -> Model:
    builder = nn.ModelBuilder("long")
    value = builder.input("x", (_ROWS, _COLUMNS))
    weights = np.zeros((_COLUMNS, _COLUMNS), np.float32)
    for _ in range(_LAYERS):
        bias = builder.constant(np.zeros(_COLUMNS, np.float32))
        value = builder.fully_connected(value, builder.constant(weights), bias)
    builder.output("y", value)
    return builder.build()


class _Watch(Instrument):
    """Tells when the first execution has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def task_started(self, task: Any, begun_ns: int) -> None:
        self.loop.call_soon_threadsafe(self.begun.set)


async def _begin(device: str) -> list[Any]:
    """What is under way, for the caller to hold on to."""
    watch = _Watch()
    runtime = nn.open_runtime(instruments=[watch])
    opened = await runtime.__aenter__()
    net = await opened.compile(_model(), devices=[device])
    x = np.zeros((_ROWS, _COLUMNS), np.float32)
    watch.begun.clear()
    launched = [await net.launch(x) for _ in range(_CALLS)]
    await watch.begun.wait()
    return [runtime, net, launched]


def _exit(device: str) -> None:
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(_begin(device))
    print("ready", flush=True)
    sys.exit(7 if kept else 1)


async def _wait(device: str) -> None:
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(_model(), devices=[device])
        x = np.zeros((_ROWS, _COLUMNS), np.float32)
        await net(x)
        print("ready", flush=True)
        while True:
            await net(x)


if __name__ == "__main__":
    _device, _how = sys.argv[1:]
    if _how == "exit":
        _exit(_device)
    else:
        anyio.run(_wait, _device, backend=_how.removeprefix("wait-"))
