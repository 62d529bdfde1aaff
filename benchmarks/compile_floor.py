"""Compile floor: the least that a first answer takes which waits on no loop and trusts no file.

All in one process and in turns, each with a file of fresh bytes, so that nothing is remembered.
Each contestant does what the one before it does, and one thing more: LiteRT alone on the calling
thread; LiteRT opened by another thread, with the file digested, and run by it in a second piece of
work; with the tables of the file read and their structure checked; with the file judged,
as our model, without which a damaged one ends the process; by our driver, bound to memory; and
nnasync. What lies between the last two is the runtime: devices, verdicts, scheduling, reports. On
several cores the last two let LiteRT use all of them, as a first answer does. Lower quartiles, in
milliseconds, and times as long as LiteRT alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]  # no types

import nnasync as nn
from benchmarks._report import arguments, models_folder, percentile, publish, table
from nnasync._core import importers
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.importers.tflite.checking import check
from nnasync._core.importers.tflite.tflite_file import read_file
from nnasync.engine import StopFlag
from nnasync.hal import Array, ExecutionPreference, Model, Operand, dtype_of

MODELS = (
    "hello_world_int8.tflite",
    "micro_speech_quantized.tflite",
    "mobilenet_v1_0.25_128_quant.tflite",
    "mobilenet_v1_0.5_160_quant.tflite",
    "mobilenet_v2_1.0_224_quant.tflite",
    "mobilenet_v3-small_224_1.0_uint8.tflite",
)
REST_S = 0.15
"""Before each answer: a model is seldom loaded right after another one."""

ASIDE_BYTES = 1 << 19
"""Files of more are digested by a thread of their own."""

Answer = Callable[[Path], Awaitable[tuple[Any, Any]]]
"""What was loaded, and its results."""
Look = Callable[[Path, bytes], object]
"""What is done with a file before LiteRT gets it."""
Run = Callable[[], tuple[Any, Any]]


def read(path: Path, content: bytes) -> None:
    """The tables of a file, with their structure checked."""
    check(read_file(memoryview(content)))


def taken_in(path: Path, look: Look | None, aside: ThreadPoolExecutor) -> bytes:
    """A file that is read and looked at; a large one is digested aside meanwhile, as we do that."""
    content = path.read_bytes()
    if len(content) <= ASIDE_BYTES:
        hashlib.sha256(content).digest()
        if look is not None:
            look(path, content)
        return content
    digested = aside.submit(hashlib.sha256, content)
    if look is not None:
        look(path, content)
    digested.result().digest()
    return content


def opened(path: Path, look: Look | None, aside: ThreadPoolExecutor) -> Run:
    """LiteRT with a file that was looked at."""
    runner = Interpreter(model_content=taken_in(path, look, aside))
    runner.allocate_tensors()
    return functools.partial(ran, runner)


def ran(runner: Any) -> tuple[Any, Any]:
    """The results for zeros."""
    for each in runner.get_input_details():
        runner.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
    runner.invoke()
    return runner, [runner.get_tensor(each["index"]) for each in runner.get_output_details()]


def planned(path: Path, engine: LiteRTEngine, aside: ThreadPoolExecutor) -> Run:
    """Our driver with a file that was judged, bound to memory."""
    models = list[Model]()
    taken_in(path, lambda path, content: models.append(importers.load_whole(path, content)), aside)
    (model,) = models
    plan = engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
    main = model.main
    given = [memory_of(main.operands[index]) for index in main.input_indexes]
    results = [memory_of(main.operands[index]) for index in main.output_indexes]
    call = plan.bind(given, results)

    def run() -> tuple[Any, Any]:
        call.run(StopFlag())
        return plan, results

    return run


def memory_of(operand: Operand) -> Array:
    """Memory for an input or output; what is open is 1."""
    return np.zeros([n or 1 for n in operand.dimensions], dtype_of(operand.type))


async def alone(path: Path) -> tuple[Any, Any]:
    """LiteRT on this thread."""
    runner = Interpreter(str(path))
    runner.allocate_tensors()
    return ran(runner)


async def on_thread(
    thread: ThreadPoolExecutor, make: Callable[[Path], Run], path: Path
) -> tuple[Any, Any]:
    """What another thread makes of a file, and its results."""
    submit = asyncio.get_running_loop().run_in_executor
    run = await submit(thread, make, path)
    return await submit(thread, run)


async def answered(rt: nn.Runtime, path: Path) -> tuple[Any, Any]:
    """A network and its first answer."""
    net = await rt.compile(path)
    given = [np.zeros([n or 1 for n in port.shape], port.dtype) for port in net.inputs]
    return net, await net(*given)


def fresh_files(path: Path, folder: Path) -> Iterator[Path]:
    """Files of the same model, each with other bytes behind it."""
    content = path.read_bytes()
    for number in itertools.count():
        fresh = folder / f"{path.stem}-{number}.tflite"
        fresh.write_bytes(content + b"%d" % number)
        yield fresh


async def measured(
    files: Iterator[Path], whos: dict[str, Answer], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each to an answer, in turns; the first round counts not."""
    found = {who: list[float]() for who in whos}
    for number in range(rounds + 1):
        for who, answer in whos.items():
            fresh = next(files)
            gc.collect()
            await asyncio.sleep(REST_S)
            began = time.perf_counter()
            held = await answer(fresh)
            took_ms = (time.perf_counter() - began) * 1e3
            if isinstance(held[0], nn.Net):
                await held[0].aclose()
            del held
            if number:
                found[who].append(took_ms)
    return found


@contextlib.contextmanager
def threads() -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    """One that loads and runs, and one aside."""
    with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as aside:
        yield thread, aside


async def report(options: argparse.Namespace) -> None:
    """Measure every model and print the table."""
    paths: Sequence[Path] = options.model or [models_folder(None) / name for name in MODELS]
    rows, every = [], {}
    with tempfile.TemporaryDirectory() as name, threads() as (thread, aside):
        settings = nn.Options(state_dir=f"{name}/state")
        async with nn.open_runtime(devices=options.devices, options=settings) as rt:
            engine = LiteRTEngine()
            engine.cores = len(os.sched_getaffinity(0))
            makes: dict[str, Callable[[Path], Run]] = {
                "on a thread": functools.partial(opened, look=None, aside=aside),
                "tables read": functools.partial(opened, look=read, aside=aside),
                "file judged": functools.partial(opened, look=importers.load_whole, aside=aside),
                "our driver": functools.partial(planned, engine=engine, aside=aside),
            }
            whos: dict[str, Answer] = {
                "LiteRT alone": alone,
                **{who: functools.partial(on_thread, thread, make) for who, make in makes.items()},
                "nnasync": functools.partial(answered, rt),
            }
            for path in paths:
                found = await measured(fresh_files(path, Path(name)), whos, options.rounds)
                every[path.name] = found
                lows = [percentile(each, 0.25) for each in found.values()]
                rows.append([path.name, *(f"{low:.2f} ({low / lows[0]:.2f})" for low in lows)])
    publish("First answers and their floor", table(["model", *whos], rows), every, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=20)
    parser.add_argument("--model", type=Path, nargs="+", help="(six of the reference models)")
    parser.add_argument("--devices", nargs="+", help="of nnasync (all that are installed)")
    nn.run(report, parser.parse_args())


if __name__ == "__main__":
    main()
