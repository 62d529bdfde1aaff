"""Compile: how long until the first answer of a model, beside the engines alone with the same file.

Every figure is of a fresh process, in turn with the others. nnasync starts with nothing known, with
a verdict of an earlier contest, and with a cache of compilations; each engine loads the file itself
and answers once. Times count from the moment when numpy is imported, which all of them need.
*Start* of nnasync includes its own import and the opening of a runtime, *load* does not; the engine
that answers is imported in both, as it is where it runs alone. *Again* is what an application pays
that runs already: the engine loads the file a second time, a runtime that has compiled before
compiles it once more with nothing known. Beside the first compilation a 1 ms ticker looks how late
the loop is until the best plan runs; the processor time of the contest is that of its process. An
engine that does not run a model is left out there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._report import arguments, models_folder, publish, table

NEW, VERDICT, CACHE = "nnasync", "nnasync, verdict", "nnasync, cache"
OURS = (NEW, VERDICT, CACHE)
PERIOD_S = 0.001
SETTLING_S = 0.3
"""What a network began in the background has ended this long after it was closed."""
TIMEOUT_S = 300
ASKED = 1.5
SUFFIXES = (".tflite", ".onnx")
KEYS = ("start_ms", "load_ms", "again_ms")

Figures = dict[str, float]


def litert(path: Path) -> None:
    """Load and run by LiteRT alone."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]  # no types

    runner = Interpreter(str(path))
    runner.allocate_tensors()
    for each in runner.get_input_details():
        runner.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
    runner.invoke()
    for each in runner.get_output_details():
        runner.get_tensor(each["index"])


def onnxruntime(path: Path) -> None:
    """Load and run by ONNX Runtime alone."""
    import onnxruntime as ort  # type: ignore[import-untyped]  # no types

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    given: dict[str, Any] = {
        each.name: np.zeros([n if isinstance(n, int) else 1 for n in each.shape], types[each.type])
        for each in session.get_inputs()
    }
    session.run(None, given)


def openvino(path: Path) -> None:
    """Load and run by OpenVINO alone."""
    import openvino as ov  # type: ignore[import-untyped]  # no types

    compiled = ov.Core().compile_model(str(path), "CPU")
    compiled(
        [np.zeros(tuple(each.shape), each.element_type.to_dtype()) for each in compiled.inputs]
    )


ENGINES: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "LiteRT": (litert, (".tflite",)),
    "ONNX Runtime": (onnxruntime, (".onnx",)),
    "OpenVINO": (openvino, SUFFIXES),
}


def alone(engine: str, path: Path) -> Figures:
    """What an engine takes in this process, with its import, and then once more."""
    took_ms = []
    for _ in range(2):
        began = time.perf_counter()
        ENGINES[engine][0](path)
        took_ms.append((time.perf_counter() - began) * 1e3)
    return {"start_ms": took_ms[0], "load_ms": took_ms[0], "again_ms": took_ms[1]}


async def again(path: Path, state: str, devices: Sequence[str] | None) -> float:
    """Milliseconds to an answer in a runtime that has compiled the model before."""
    import nnasync as nn

    took_ms = 0.0
    async with nn.open_runtime(devices=devices, options=nn.Options(state_dir=state)) as rt:
        for _ in range(2):
            began = time.perf_counter()
            net = await rt.compile(path)
            await net(*zeros(net))
            took_ms = (time.perf_counter() - began) * 1e3
            await net.aclose()
            await asyncio.sleep(SETTLING_S)
    return took_ms


def zeros(net: Any) -> list[Any]:
    """Inputs of a network."""
    return [np.zeros([n or 1 for n in port.shape], port.dtype) for port in net.inputs]


def ours(
    path: Path, state: str, cache: str | None, devices: Sequence[str] | None, *, waits: bool
) -> Figures:
    """What nnasync takes in this process; then it waits for the best plan."""
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
    """Hold the contest, and fill the cache, in this process."""
    import nnasync as nn

    async def main() -> None:
        async with nn.open_runtime(devices=devices, options=nn.Options(state_dir=state)) as rt:
            options = nn.CompileOptions(wait="best")
            await (await rt.compile(path, cache_dir=cache, options=options)).aclose()

    nn.run(main)


def child(task: dict[str, Any]) -> None:
    """One measurement, as JSON on standard output."""
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


def measured(**task: Any) -> Figures | None:
    """The figures of a fresh process; None where it failed."""
    command = [sys.executable, "-m", "benchmarks.compile", "--child", json.dumps(task)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        env=environment,
    )
    if ran.returncode:
        return None
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def of_model(path: Path, options: argparse.Namespace) -> dict[str, list[Figures]]:
    """All figures of a model, in turns."""
    rounds, only = options.rounds, options.only
    whos = [*OURS, *(name for name, (_, suffixes) in ENGINES.items() if path.suffix in suffixes)]
    whos = [who for who in whos if not only or who in only]
    found: dict[str, list[Figures]] = {who: [] for who in whos}
    with tempfile.TemporaryDirectory() as folder:
        places = {"state": f"{folder}/state", "cache": f"{folder}/cache"}
        devices = options.devices
        os.mkdir(places["cache"], 0o700)
        if {VERDICT, CACHE} & set(whos):
            measured(who="prepare", path=str(path), devices=devices, **places)
        for number in range(rounds):
            for who in [*whos[number % len(whos) :], *whos[: number % len(whos)]]:
                figures = measured(who=who, path=str(path), devices=devices, **places)
                if figures is not None:
                    found[who].append(figures)
    return found


def middle(found: Sequence[Figures], key: str) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    values = sorted(each[key] for each in found if key in each)
    if not values:
        return (float("nan"),) * 3
    return values[len(values) // 4], statistics.median(values), values[len(values) * 3 // 4]


def row(model: str, who: str, figures: Sequence[Figures], fastest: Figures) -> list[str]:
    """One line of the table."""
    if not figures:
        return [model, who, "does not run it"]
    cells = [model, who]
    for key in KEYS:
        low, median, high = middle(figures, key)
        if math.isnan(median):
            cells += ["", ""]
            continue
        cells += [f"{median:.1f} ({low:.1f}..{high:.1f})", f"{median / fastest[key]:.2f}"]
    if who == NEW:
        keys = ("best_ms", "own_cpu_ms", "contest_cpu_ms", "worst_tick_ms")
        cells += [f"{middle(figures, key)[1]:.0f}" for key in keys]
    return cells


def report(options: argparse.Namespace) -> None:
    """Measure every model and print the table."""
    paths = options.model
    if not paths:
        folder = models_folder(options.models)
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    rows, every = [], {}
    heads = ["model", "who", "start ms", "ratio", "load ms", "ratio", "again ms", "ratio"]
    heads += ["best after ms", "cpu for it ms", "contest cpu ms", "worst tick ms"]
    for path in paths:
        every[path.name] = found = of_model(path, options)
        fastest = {
            key: min((middle(found[who], key)[1] for who in ENGINES if found.get(who)), default=1.0)
            for key in KEYS
        }
        for who, figures in found.items():
            cells = row(path.name, who, figures, fastest)
            rows.append(cells + [""] * (len(heads) - len(cells)))
    title = f"First answers; asked: at most {ASKED} times the fastest engine alone"
    publish(title, table(heads, rows), every, options.json)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--models", type=Path, help="folder of models (the reference models)")
    parser.add_argument("--model", type=Path, nargs="+", help="these files only")
    parser.add_argument("--devices", nargs="+", help="of nnasync (all that are installed)")
    parser.add_argument("--only", nargs="+", default=[], help="these contestants only")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child)
    else:
        report(options)


if __name__ == "__main__":
    main()
