"""Bursts to a driver service: round trips, by what the device does and by the size of tensors.

A device that computes nothing, beside the bare ping-pong of two eventfds and, where it is
installed, iceoryx2 polling; a device that reads a byte of each page of its input, which lies in
shared memory and is written in place, with and without the time that the reading takes; and two
small networks. Networks also in process. At LOW_POWER nobody looks for an answer: who waits sleeps,
and short work comes to the core of that sleeper, or, for comparison, to any. The times are of calls
in a row on uvloop.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import numpy as np

import nnasync as nn
from benchmarks._report import (
    BEST,
    arguments,
    interleave,
    median,
    models_folder,
    percentile,
    publish,
    table,
)
from benchmarks.message_queue import round_trips
from nnasync import ModelBuilder, connect, serve
from nnasync._core.drivers.service import remote_bursts
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.device import Device
from nnasync.devices import NullEngine
from nnasync.errors import NNError
from nnasync.fences import Fence
from nnasync.hal import (
    DataLocation,
    ExecutionConfig,
    Model,
    OperandType,
    OperationType,
    Request,
    RequestArgument,
)
from nnasync.memory import Pool

NETWORKS = ("tts_float", "micro_speech_quantized")
SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20, "4 MB": 1 << 22}
PAGE = 4096
WARM_UP = 100

Call = Callable[[], Awaitable[int]]
"""A call that returns the nanoseconds that are no part of the border, where they are known."""

Opens = Callable[[nn.Runtime], contextlib.AbstractAsyncContextManager[Call]]


def doubling() -> Model:
    """Returns a model with one small input, for a device that does not compute it."""
    builder = ModelBuilder("nothing")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def touched(size: int) -> Model:
    """Returns a model that reads a byte of each page of its input."""
    builder = ModelBuilder("touch")
    x = builder.input("x", (size,), type=OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)
    first = builder.operation(
        OperationType.STRIDED_SLICE,
        x,
        *(builder.constant(np.array([each], np.int32)) for each in (0, size, PAGE)),
        *(builder.constant(np.int32(0)) for _ in range(3)),
    )
    builder.output("first bytes", first)
    return builder.build()


class InPlace:
    """A burst of the HAL whose request names memory that the caller writes."""

    def __init__(self, controller: BurstController, request: Request, memory: Any) -> None:
        self._controller = controller
        self._arguments = controller.encode(request)
        self._first = memory[:1]

    async def call(self) -> int:
        """Writes a byte, and runs; returns the nanoseconds that the device computed."""
        self._first[0] ^= 1
        fence = Fence()
        outcomes: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            fence.signal()

        self._controller.send(self._arguments, done, ExecutionConfig(measure=True))
        if not fence.done:
            await fence
        (outcome,) = outcomes
        if isinstance(outcome, NNError):
            raise outcome
        return outcome.timing.time_on_device_ns


@contextlib.asynccontextmanager
async def in_place(device: Device, size: int) -> AsyncIterator[Call]:
    """Yields calls of `touched` on memory that is shared with the device."""
    prepared = await device.prepare_model(touched(size))
    requests, results = LocalChannel(), LocalChannel()
    controller = BurstController(requests, results)
    context = await prepared.configure_execution_burst(controller, requests, results)
    controller.attach(context)
    pages = max(size // PAGE, 1)
    with Pool.allocate(size + pages) as pool:
        request = Request(
            (RequestArgument(location=DataLocation(0, 0, size)),),
            (RequestArgument(location=DataLocation(0, size, pages)),),
            (pool,),
        )
        try:
            yield InPlace(controller, request, pool.view).call
        finally:
            controller.close(nn.errors.DeviceUnavailable("the benchmark is over"))
            await prepared.close()


# -- a device that reads a byte of each page, in a process of its own


async def serve_pages(path: Path) -> None:
    """Runs this process as the service."""

    def read(inputs: Sequence[Any]) -> list[Any]:
        return [inputs[0][::PAGE]]

    engine = NullEngine("pages", compute=read)
    async with nn.open_runtime(devices=[engine]) as rt, anyio.create_task_group() as tasks:
        await tasks.start(serve, rt.devices[0], path)
        print("listens", flush=True)


@contextlib.contextmanager
def page_service() -> Iterator[Path]:
    """Runs the service in a process while the block runs; yields its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s" / "pages.socket"
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service_bursts", "--serve", str(path)],
            stdout=subprocess.PIPE,
        )
        try:
            if process.stdout is None or b"listens" not in process.stdout.readline():
                sys.exit("the service of the device that reads pages did not start")
            yield path
        finally:
            process.kill()
            process.communicate()


@contextlib.asynccontextmanager
async def network(
    rt: nn.Runtime, model: Model, preference: nn.Preference = nn.Preference.FAST_SINGLE_ANSWER
) -> AsyncIterator[Call]:
    """Yields calls of a burst of a network."""
    net = await rt.compile(model, preference=preference, options=BEST)
    inputs = [np.zeros(port.shape, port.dtype) for port in net.inputs]
    async with net.burst() as burst:

        async def call() -> int:
            await burst(*inputs)
            return 0

        yield call
    await net.close()


async def times(call: Call, calls: int) -> tuple[list[float], list[float]]:
    """Returns the microseconds of each call, and of its border alone."""
    clock = time.perf_counter_ns
    for _ in range(WARM_UP):
        await call()
    found, borders = [], []
    for _ in range(calls):
        began = clock()
        device_ns = await call()
        took_ns = clock() - began
        found.append(took_ns / 1e3)
        borders.append((took_ns - device_ns) / 1e3)
    return found, borders


class Measuring:
    """Contestants, each with a runtime that is kept, and what they gave."""

    def __init__(self, stack: contextlib.AsyncExitStack, calls: int) -> None:
        self._stack = stack
        self._calls = calls
        self.found: dict[str, list[list[float]]] = {}
        self.contestants: dict[str, Callable[[], Awaitable[float]]] = {}

    async def both(self, name: str, device: str, make: Opens) -> None:
        """Adds a contestant in process and in a service; `make` gives a context with its calls."""
        await self.one(f"{name}, in process", device, (), make)
        await self.one(f"{name}, service", device, (device,), make)

    async def one(self, name: str, device: str, isolate: Sequence[str], make: Opens) -> None:
        """Adds a contestant with a runtime of its own."""
        rt = await self._stack.enter_async_context(
            nn.open_runtime(devices=[device], isolate=isolate)
        )
        self.add(name, await self._stack.enter_async_context(make(rt)))

    def add(self, name: str, call: Call) -> None:
        """Adds a contestant by its call."""

        async def run() -> float:
            found, borders = await times(call, self._calls)
            self.found.setdefault(name, []).append(found)
            if borders != found:
                self.found.setdefault(f"{name}, less the reading", []).append(borders)
            return 0.0

        self.contestants[name] = run

    async def sleeping(self, name: str, device: str, model: Model) -> None:
        """Adds contestants that sleep until the answer comes, kept on their core and not."""
        make = functools.partial(network, model=model, preference=nn.Preference.LOW_POWER)
        label = f"{name} at LOW_POWER"
        await self.one(f"{label}, service", device, (device,), make)
        await self.one(f"{label}, on any core, service", device, (device,), make)
        placed = self.contestants[f"{label}, on any core, service"]

        async def run() -> float:
            with mock.patch.object(remote_bursts, "current_core", return_value=-1):
                return await placed()

        self.contestants[f"{label}, on any core, service"] = run

    def add_bare(self, name: str) -> None:
        """Adds a contestant of the benchmark of message queues, for its smallest packet."""

        async def run() -> float:
            trips = round_trips(name, None, None, 0.05)
            self.found.setdefault(name, []).append(trips[0])
            return 0.0

        self.contestants[name] = run


async def measure(options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Returns times by contestant, then by round."""
    async with contextlib.AsyncExitStack() as stack:
        measuring = Measuring(stack, options.calls)
        await measuring.both("nothing", "null", functools.partial(network, model=doubling()))
        measuring.add_bare("eventfd, bare")
        if importlib.util.find_spec("iceoryx2") is not None:
            measuring.add_bare("iceoryx2, polling")
        await measuring.sleeping("nothing", "null", doubling())
        device = await connect(stack.enter_context(page_service()))
        stack.push_async_callback(device.close)
        for label, size in SIZES.items():
            touching = await stack.enter_async_context(in_place(device, size))
            measuring.add(f"a byte a page of {label}", touching)
        if not options.without_networks:
            folder = models_folder(options.models)
            for name in NETWORKS:
                model = nn.load(folder / f"{name}.tflite")
                await measuring.both(name, "litert-cpu", functools.partial(network, model=model))
                await measuring.sleeping(name, "litert-cpu", model)
        await interleave(measuring.contestants, options.rounds)
    return measuring.found


def report(found: dict[str, list[list[float]]], options: argparse.Namespace) -> None:
    """Print medians over rounds of each round's percentiles, and what the border adds."""
    figures: dict[str, float] = {}
    rows = []
    for name, rounds in found.items():
        p50, p99 = (median([percentile(one, share) for one in rounds]) for share in (0.5, 0.99))
        figures[f"{name}, p50"], figures[f"{name}, p99"] = p50, p99
        inside = figures.get(f"{name.removesuffix(', service')}, in process, p50", p50)
        border = f"{p50 - inside:+.1f}" if name.endswith(", service") else ""
        rows.append([name, f"{p50:.1f}", f"{p99:.1f}", border])
    text = table(["microseconds a call", "p50", "p99", "the border"], rows)
    publish("Bursts to a service", text, {"microseconds": figures}, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--calls", type=int, default=500, help="in a round (%(default)s)")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="of the networks")
    parser.add_argument("--without-networks", action="store_true", help="borders alone")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        nn.run(serve_pages, options.serve)
        return
    report(nn.run(measure, options), options)


if __name__ == "__main__":
    main()
