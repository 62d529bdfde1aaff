"""Compile floor: the least that a first answer takes which waits on no loop and trusts no file.

All in one process and in turns, each with a file of fresh bytes, so that nothing is remembered:
LiteRT alone on the calling thread; LiteRT opened by another thread, which also digests the file,
and run by it in a second piece of work; the same with our look at the file before LiteRT gets it,
without which a damaged file ends the process; and nnasync. What lies between the last two is the
runtime: devices, verdicts, scheduling, memory of calls, reports. Lower quartiles, in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import hashlib
import itertools
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

MODELS = (
    "hello_world_int8.tflite",
    "micro_speech_quantized.tflite",
    "mobilenet_v1_0.25_128_quant.tflite",
    "mobilenet_v1_0.5_160_quant.tflite",
)
REST_S = 0.15
"""Before each answer: a model is seldom loaded right after another one."""

Answer = Callable[[Path], Awaitable[tuple[Any, Any]]]
"""What was loaded, and its results."""


def opened(path: Path, *, looks: bool) -> Any:
    """LiteRT with a file that is read and digested, as each file is that a verdict is about."""
    content = path.read_bytes()
    hashlib.sha256(content).digest()
    if looks:
        nn.load(path, form="whole")
    runner = Interpreter(model_content=content)
    runner.allocate_tensors()
    return runner


def ran(runner: Any) -> tuple[Any, Any]:
    """The results for zeros."""
    for each in runner.get_input_details():
        runner.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
    runner.invoke()
    return runner, [runner.get_tensor(each["index"]) for each in runner.get_output_details()]


async def alone(path: Path) -> tuple[Any, Any]:
    """LiteRT on this thread."""
    runner = Interpreter(str(path))
    runner.allocate_tensors()
    return ran(runner)


async def on_thread(thread: ThreadPoolExecutor, path: Path, *, looks: bool) -> tuple[Any, Any]:
    """LiteRT on another thread."""
    submit = asyncio.get_running_loop().run_in_executor
    runner = await submit(thread, functools.partial(opened, path, looks=looks))
    return await submit(thread, ran, runner)


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


async def report(options: argparse.Namespace) -> None:
    """Measure every model and print the table."""
    paths: Sequence[Path] = options.model or [models_folder(None) / name for name in MODELS]
    rows, every = [], {}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as thread:
        settings = nn.Options(state_dir=f"{name}/state")
        async with nn.open_runtime(devices=options.devices, options=settings) as rt:
            whos: dict[str, Answer] = {
                "LiteRT alone": alone,
                "on a thread": functools.partial(on_thread, thread, looks=False),
                "and looked at": functools.partial(on_thread, thread, looks=True),
                "nnasync": functools.partial(answered, rt),
            }
            for path in paths:
                found = await measured(fresh_files(path, Path(name)), whos, options.rounds)
                every[path.name] = found
                lows = [percentile(each, 0.25) for each in found.values()]
                rows.append([path.name, *(f"{low:.2f} ({low / lows[0]:.2f})" for low in lows)])
    publish("First answers and their floor", table(["model", *whos], rows), every, options.json)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=20)
    parser.add_argument("--model", type=Path, nargs="+", help="(four of the reference models)")
    parser.add_argument("--devices", nargs="+", help="of nnasync (all that are installed)")
    nn.run(report, parser.parse_args())


if __name__ == "__main__":
    main()
