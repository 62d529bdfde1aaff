"""Call cost: what a call of a tiny network costs above its bare arithmetic.

p is the bare bound plan of `hello_world_float`, run in a plain loop. Beside it, all on one
event loop (uvloop where there is one) and in turn: `await net(x)`, a burst call,
`run_in_executor` of the same bound plan with the executor's thread pinned to another core and
to the same core as the loop's, and chains of networks: hops (each awaited before the next is
sent) against launches chained by fences.

The chain is measured free-running (from the first launch to the one await) and behind a gate:
launched ahead, from the signal on another thread to the await's end, with the wake-ups of the
loop counted.

A second table has files that run whole, beside LiteRT called directly as its users do it (the same
kernels, one thread), and one with open shapes beside ONNX Runtime: what an await adds may be ten
microseconds and a twentieth.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import nnasync as nn
from benchmarks._report import (
    Results,
    arguments,
    cores,
    interleave,
    median,
    models_folder,
    publish,
    relative,
    spread,
    table,
)
from nnasync._core.wakeup import Wakeup
from nnasync.devices import ReferenceEngine
from nnasync.engine import StopFlag
from nnasync.fences import Fence
from nnasync.hal import Array, ExecutionPreference, Operand, dtype_of

CHAIN = 8
WHOLE = ("hello_world_float", "dtln_noise_suppression", "mobilenet_v1_0.25_128")
WHOLE_ADDED_US, WHOLE_ADDED_SHARE = 10, 0.05
WIDTH = 8
ONE_CORE = nn.Options(cores=1, competition_budget_ms=0)
BARE, AWAIT, TIMED, BURST = "bare plan (p)", "await net(x)", "await net(x, deadline=)", "burst(x)"
MEASURED, MEASURED_BURST = "await net.measured(x)", "burst.measured(x)"
DIRECT = "its engine directly"
OTHER, SAME = "run_in_executor, other core", "run_in_executor, same core"
HOPS = f"{CHAIN} hops, run_in_executor, other core"
SAME_HOPS = f"{CHAIN} hops, run_in_executor, same core"
LAUNCHES = f"{CHAIN} hops, launch and await each"
FREE, GATED = f"chain of {CHAIN}, free-running", f"chain of {CHAIN}, behind a gate"

Contestant = Callable[[], Awaitable[float]]


def zeros(operand: Operand) -> Array:
    """Returns an array of the operand's type and shape."""
    return np.zeros(operand.dimensions, dtype_of(operand.type))


def bound_plan(path: Path) -> Callable[[], object]:
    """Returns the reference plan of a model, bound to arrays of its own, as a function."""
    model = nn.load(path)
    inputs, outputs = (
        [zeros(model.main.operands[index]) for index in indexes]
        for indexes in (model.main.input_indexes, model.main.output_indexes)
    )
    plan = ReferenceEngine().compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
    call, stop = plan.bind(inputs, outputs), StopFlag()
    return lambda: call.run(stop)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keeps this thread on a core while the block runs."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def executor_on(core: int) -> ThreadPoolExecutor:
    """Returns an executor with one thread, started, that stays on a core."""
    pin = (lambda: os.sched_setaffinity(0, {core})) if hasattr(os, "sched_setaffinity") else None
    executor = ThreadPoolExecutor(1, initializer=pin)
    executor.submit(int).result()
    return executor


class Calls:
    """The contestants; each runs a batch and returns microseconds a call (or a chain)."""

    def __init__(self, net: Any, burst: Any, call: Callable[[], object], calls: int) -> None:
        self.net, self.burst, self.call, self.calls = net, burst, call, calls
        self.chains = max(1, calls // CHAIN)
        self.x = np.full(net.inputs[0].shape, 0.5, net.inputs[0].dtype)
        self.wakeups: dict[str, list[float]] = {GATED: [], FREE: [], LAUNCHES: []}

    async def bare(self) -> float:
        started = time.perf_counter_ns()
        for _ in range(self.calls):
            self.call()
        return (time.perf_counter_ns() - started) / self.calls / 1e3

    def repeated(self, one: Callable[[], Awaitable[object]]) -> Contestant:
        """Returns a contestant that awaits `one` in a batch, and gives the mean."""

        async def run() -> float:
            started = time.perf_counter_ns()
            for _ in range(self.calls):
                await one()
            return (time.perf_counter_ns() - started) / self.calls / 1e3

        return run

    def in_executor(self, core: int, *, hops: int) -> Contestant:
        """Returns a contestant that runs `hops` bare plans in a row on an executor's thread."""
        executor = executor_on(core)

        async def run() -> float:
            loop = asyncio.get_running_loop()
            batch = max(1, self.calls // hops)
            with pinned(cores()[0]):
                started = time.perf_counter_ns()
                for _ in range(batch * hops):
                    await loop.run_in_executor(executor, self.call)
                return (time.perf_counter_ns() - started) / batch / 1e3

        return run

    def timed(self) -> Awaitable[object]:
        result: Awaitable[object] = self.net(self.x, deadline=nn.within(ms=100))
        return result

    async def launches(self) -> float:
        wakeup = Wakeup.current()
        woken, started = wakeup.wakeups, time.perf_counter_ns()
        for _ in range(self.chains):
            value = self.x
            for _ in range(CHAIN):
                execution = await self.net.launch(value)
                await execution.fence
                value = execution.outputs
        ended = time.perf_counter_ns()
        self.wakeups[LAUNCHES].append((wakeup.wakeups - woken) / self.chains)
        return (ended - started) / self.chains / 1e3

    async def chain(self, wait_for: list[Fence]) -> list[Any]:
        """Launch a chain and return its executions."""
        executions = [await self.net.launch(self.x, wait_for=wait_for)]
        while len(executions) < CHAIN:
            last = executions[-1]
            executions.append(await self.net.launch(last.outputs, wait_for=[last.fence]))
        return executions

    async def free_running(self) -> float:
        wakeup = Wakeup.current()
        woken, started = wakeup.wakeups, time.perf_counter_ns()
        for _ in range(self.chains):
            await (await self.chain([]))[-1].fence
        ended = time.perf_counter_ns()
        self.wakeups[FREE].append((wakeup.wakeups - woken) / self.chains)
        return (ended - started) / self.chains / 1e3

    async def gated(self) -> float:
        wakeup, total, woken = Wakeup.current(), 0, 0
        for _ in range(self.chains):
            gate, go = Fence(), threading.Event()
            executions = await self.chain([gate])
            signaled: list[int] = []
            thread = threading.Thread(target=signal_at, args=(go, gate, signaled))
            thread.start()
            before = wakeup.wakeups
            go.set()
            await executions[-1].fence
            total += time.perf_counter_ns() - signaled[0]
            woken += wakeup.wakeups - before
            thread.join()
        self.wakeups[GATED].append(woken / self.chains)
        return total / self.chains / 1e3

    def contestants(self) -> dict[str, Contestant]:
        here, *others = cores()
        found = {
            BARE: self.bare,
            AWAIT: self.repeated(lambda: self.net(self.x)),
            TIMED: self.repeated(self.timed),
            MEASURED: self.repeated(lambda: self.net.measured(self.x)),
            BURST: self.repeated(lambda: self.burst(self.x)),
            MEASURED_BURST: self.repeated(lambda: self.burst.measured(self.x)),
            SAME: self.in_executor(here, hops=1),
            SAME_HOPS: self.in_executor(here, hops=CHAIN),
            LAUNCHES: self.launches,
            FREE: self.free_running,
            GATED: self.gated,
        }
        if others:
            found |= {
                OTHER: self.in_executor(others[0], hops=1),
                HOPS: self.in_executor(others[0], hops=CHAIN),
            }
        return found


def signal_at(go: threading.Event, gate: Fence, signaled: list[int]) -> None:
    """Signal a fence from a thread of its own, after the loop has gone to sleep."""
    go.wait()
    time.sleep(0.001)
    signaled.append(time.perf_counter_ns())
    gate.signal()


def ratios(costs: dict[str, float]) -> dict[str, float]:
    """Returns the figures that count, from the microseconds of each contestant."""
    p = costs[BARE]
    found = {
        "await - p, microseconds": costs[AWAIT] - p,
        "burst - p, microseconds": costs[BURST] - p,
        "measured, microseconds": costs[MEASURED] - costs[AWAIT],
        "measured in a burst, microseconds": costs[MEASURED_BURST] - costs[BURST],
    }
    for executor in (OTHER, SAME):
        if executor in costs:
            found[f"(await - p) / ({executor} - p)"] = (costs[AWAIT] - p) / (costs[executor] - p)
    for chain in (FREE, GATED):
        for hops in (HOPS, SAME_HOPS, LAUNCHES):
            if hops in costs:
                name = f"({chain} - {CHAIN}p) / ({hops} - {CHAIN}p)"
                found[name] = (costs[chain] - CHAIN * p) / (costs[hops] - CHAIN * p)
    return found


async def measure(options: argparse.Namespace) -> None:
    path = models_folder(options.models) / "hello_world_float.tflite"
    call = bound_plan(path)
    async with nn.open_runtime() as rt:
        net = await rt.compile(nn.load(path), devices=["nnasync-reference"])
        async with net.burst() as burst:
            calls = Calls(net, burst, call, options.calls)
            contestants = calls.contestants()
            for contestant in contestants.values():
                await contestant()
            results = await interleave(contestants, options.rounds)
    whole = [await of_whole_file(name, options) for name in WHOLE]
    whole.append(await of_open_file(options))
    report(results, calls.wakeups, options, whole)


def litert_directly(path: Path, inputs: Sequence[Array]) -> Callable[[], object]:
    """Returns a function that runs a file as users of LiteRT do: sets inputs, invokes, fetches."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]  # no types

    runner = Interpreter(str(path), num_threads=1)
    runner.allocate_tensors()
    places = [each["index"] for each in runner.get_input_details()]
    results = [each["index"] for each in runner.get_output_details()]

    def run() -> None:
        for place, array in zip(places, inputs, strict=True):
            runner.set_tensor(place, array)
        runner.invoke()
        for place in results:
            runner.get_tensor(place)

    return run


async def of_whole_file(name: str, options: argparse.Namespace) -> tuple[str, Results]:
    """Measures the microseconds of a file run by LiteRT directly, and awaited."""
    path = models_folder(options.models) / f"{name}.tflite"
    async with nn.open_runtime(devices=["litert-cpu"], options=ONE_CORE) as rt:
        net = await rt.compile(nn.load(path, form="whole"))
        inputs = [np.zeros(port.shape, port.dtype) for port in net.inputs]
        return name, await beside(litert_directly(path, inputs), net, inputs, options)


async def of_open_file(options: argparse.Namespace) -> tuple[str, Results]:
    """Measures a file whose number of rows is open by ONNX Runtime directly, and awaited."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "open.onnx"
        write_open_file(path)
        async with nn.open_runtime(devices=["onnxruntime-cpu"], options=ONE_CORE) as rt:
            net = await rt.compile(nn.load(path, form="whole"))
            inputs = [np.ones((4, WIDTH), np.float32)]
            directly = onnxruntime_directly(path, inputs[0])
            return "open shapes", await beside(directly, net, inputs, options)


def write_open_file(path: Path) -> None:
    """Writes a model file of a dense layer for any number of rows."""
    import onnx

    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    weights = onnx.numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, float32, ("rows", WIDTH)) for name in "xy")
    graph = helper.make_graph(nodes, "open", [x], [y], [weights])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def onnxruntime_directly(path: Path, x: Array) -> Callable[[], object]:
    """Returns a function that runs a file as users of ONNX Runtime do."""
    import onnxruntime  # type: ignore[import-untyped]  # no types

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})


async def beside(
    directly: Callable[[], object],
    net: nn.Net[Any],
    inputs: Sequence[Array],
    options: argparse.Namespace,
) -> Results:
    """Measures the microseconds of runs by the engine alone, and of awaited ones."""

    async def bare() -> float:
        started = time.perf_counter_ns()
        for _ in range(options.calls):
            directly()
        took_us: float = (time.perf_counter_ns() - started) / options.calls / 1e3
        return took_us

    async def awaited() -> float:
        started = time.perf_counter_ns()
        for _ in range(options.calls):
            await net(*inputs)
        took_us: float = (time.perf_counter_ns() - started) / options.calls / 1e3
        return took_us

    contestants = {DIRECT: bare, AWAIT: awaited}
    for contestant in contestants.values():
        await contestant()
    return await interleave(contestants, options.rounds)


def of_whole_files(whole: Sequence[tuple[str, Results]]) -> str:
    """Returns the table of files that run whole; differences are within a round."""
    rows = []
    for name, results in whole:
        pairs = zip(results[AWAIT], results[DIRECT], strict=True)
        allowed = WHOLE_ADDED_US + WHOLE_ADDED_SHARE * median(results[DIRECT])
        added = median([awaited - directly for awaited, directly in pairs])
        cells = (spread(results[DIRECT]), spread(results[AWAIT]), f"{added:.1f}", f"{allowed:.1f}")
        rows.append([name, *cells])
    return table(["whole file, microseconds", DIRECT, AWAIT, "added", "allowed"], rows)


def report(
    results: Results,
    wakeups: dict[str, list[float]],
    options: argparse.Namespace,
    whole: Sequence[tuple[str, Results]],
) -> None:
    """Print the tables."""
    medians = {name: median(values) for name, values in results.items()}
    best = {name: min(values) for name, values in results.items()}
    rows = []
    for name, values in results.items():
        above = medians[name] - medians[BARE] * (CHAIN if str(CHAIN) in name else 1)
        woken = f"{median(wakeups[name]):.2f}" if name in wakeups else ""
        rows.append([name, spread(values), f"{best[name]:.1f}", f"{above:.1f}", woken])
    heads = ["microseconds", "median (quartiles)", "best", "median above p", "wake-ups"]
    found, found_best = ratios(medians), ratios(best)
    text = table(heads, rows) + "\n\n"
    pairs = [[name, f"{value:.2f}", f"{found_best[name]:.2f}"] for name, value in found.items()]
    text += table(["ratio", "of medians", "of best rounds"], pairs)
    text += "\n\n" + relative(results, BARE, "microseconds")
    text += "\n\n" + of_whole_files(whole)
    figures = {"ratios": found, "best": found_best, "microseconds": results, "wakeups": wakeups}
    figures["whole files"] = dict(whole)
    publish("Call cost on hello_world_float", text, figures, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=60)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--calls", type=int, default=100, help="calls a round (%(default)s)")
    options = parser.parse_args()
    nn.run(measure, options)


if __name__ == "__main__":
    main()
