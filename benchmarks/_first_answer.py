"""One measurement of `benchmarks.compile`, in a process that has imported nothing of ours yet.

The task is JSON, the only argument; so are the figures, on standard output. Times count from the
moment when numpy and what the standard library has for waiting are there.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NEW, VERDICT, CACHE = "nnasync", "nnasync, verdict", "nnasync, cache"
OURS = (NEW, VERDICT, CACHE)
PERIOD_S = 0.001
SETTLING_S = 0.3
"""What a network began in the background has ended this long after it was closed.

An engine rests as long before it loads a file again: right after the first time all is in caches.
"""
SUFFIXES = (".tflite", ".onnx")

Figures = dict[str, float]


def litert(path: Path) -> object:
    """Loads and runs the model by LiteRT alone; returns what was loaded."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]  # no types

    runner = Interpreter(str(path))
    runner.allocate_tensors()
    for each in runner.get_input_details():
        runner.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
    runner.invoke()
    for each in runner.get_output_details():
        runner.get_tensor(each["index"])
    return runner


def onnxruntime(path: Path) -> object:
    """Loads and runs the model by ONNX Runtime alone; returns what was loaded."""
    import onnxruntime as ort  # type: ignore[import-untyped]  # no types

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    given: dict[str, Any] = {
        each.name: np.zeros([n if isinstance(n, int) else 1 for n in each.shape], types[each.type])
        for each in session.get_inputs()
    }
    session.run(None, given)
    return session


def openvino(path: Path) -> object:
    """Loads and runs the model by OpenVINO alone; returns what was loaded."""
    import openvino as ov  # type: ignore[import-untyped]  # no types

    compiled = ov.Core().compile_model(str(path), "CPU")
    compiled(
        [np.zeros(tuple(each.shape), each.element_type.to_dtype()) for each in compiled.inputs]
    )
    return compiled


ENGINES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "LiteRT": (litert, (".tflite",)),
    "ONNX Runtime": (onnxruntime, (".onnx",)),
    "OpenVINO": (openvino, SUFFIXES),
}


def alone(engine: str, path: Path) -> Figures:
    """Returns how long an engine takes to the first answer, with its import, and then once more.

    To let go of what was loaded is no part of it.
    """
    took_ms = []
    for number in range(2):
        if number:
            time.sleep(SETTLING_S)
        began = time.perf_counter()
        loaded = ENGINES[engine][0](path)
        took_ms.append((time.perf_counter() - began) * 1e3)
        del loaded
    return {"start_ms": took_ms[0], "load_ms": took_ms[0], "again_ms": took_ms[1]}


async def again(path: Path, state: str, devices: Sequence[str] | None) -> float:
    """Returns the milliseconds to an answer in a runtime that has compiled the model before."""
    import nnasync as nn

    took_ms = 0.0
    async with nn.open_runtime(devices=devices, options=nn.Options(state_dir=state)) as rt:
        for _ in range(2):
            began = time.perf_counter()
            net = await rt.compile(path)
            await net(*zeros(net))
            took_ms = (time.perf_counter() - began) * 1e3
            await net.aclose()
            del net
            await asyncio.sleep(SETTLING_S)
    return took_ms


def zeros(net: Any) -> list[Any]:
    """Returns arrays of zeros for the inputs of a network."""
    return [np.zeros([n or 1 for n in port.shape], port.dtype) for port in net.inputs]


def ours(
    path: Path, state: str, cache: str | None, devices: Sequence[str] | None, *, waits: bool
) -> Figures:
    """Returns how long nnasync takes to the first answer; then waits for the best plan."""
    began = time.perf_counter()
    import nnasync as nn

    found: Figures = {}

    async def main() -> None:
        late = [0.0]

        async def ticks() -> None:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(PERIOD_S)
                late.append((time.perf_counter() - before - PERIOD_S) * 1e3)

        options = nn.Options(state_dir=state)
        async with nn.open_runtime(devices=devices, options=options) as rt:
            opened = time.perf_counter()
            ticker = asyncio.create_task(ticks()) if waits else None
            net = await rt.compile(path, cache_dir=cache)
            await net(*zeros(net))
            over = time.perf_counter()
            found["start_ms"], found["load_ms"] = (over - began) * 1e3, (over - opened) * 1e3
            if ticker is not None:
                cpu = time.process_time()
                await net.optimized()
                ticker.cancel()
                found["best_ms"] = (time.perf_counter() - opened) * 1e3
                found["own_cpu_ms"] = (time.process_time() - cpu) * 1e3
                found["worst_tick_ms"] = max(late)
            await net.aclose()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        found["contest_cpu_ms"] = (children.ru_utime + children.ru_stime) * 1e3
        if waits:
            found["again_ms"] = await again(path, f"{state}/again", devices)

    nn.run(main)
    return found


def prepare(path: Path, state: str, cache: str, devices: Sequence[str] | None) -> None:
    """Holds the contest, and fills the cache, in this process."""
    import nnasync as nn

    async def main() -> None:
        async with nn.open_runtime(devices=devices, options=nn.Options(state_dir=state)) as rt:
            options = nn.CompileOptions(wait="best")
            await (await rt.compile(path, cache_dir=cache, options=options)).aclose()

    nn.run(main)


def main() -> None:
    """Measure, and print the figures as JSON."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    path, who, devices = Path(task["path"]), task["who"], task["devices"]
    if who == "prepare":
        prepare(path, task["state"], task["cache"], devices)
        print(json.dumps({}))
    elif who in ENGINES:
        print(json.dumps(alone(who, path)))
    elif who == NEW:
        with tempfile.TemporaryDirectory() as state:
            print(json.dumps(ours(path, state, None, devices, waits=True)))
    else:
        cache = task["cache"] if who == CACHE else None
        print(json.dumps(ours(path, task["state"], cache, devices, waits=False)))


if __name__ == "__main__":
    main()
