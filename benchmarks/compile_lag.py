"""Compile lag: how late a 1 ms ticker is while a model is compiled beside it.

Each round is a process of its own, with empty folders for what nnasync keeps: it compiles the model
twice, each time as if nothing were known of it. The first time imports the engines as well. Where
a tick is late, it also counts how long the loop's own thread computed meanwhile: the rest of its
lateness is calls of libraries in other threads that keep the interpreter lock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nnasync as nn
from benchmarks._report import BEST, arguments, models_folder, percentile, publish, table

MODEL = "mobilenet_v2_1.0_224_quant.tflite"
PERIOD_S = 0.001
WHICH = ("first", "second")


async def ticks(lags: list[tuple[float, float]]) -> None:
    """Notes for each tick how late it was, and the processor time of this thread, both in ms."""
    while True:
        began, cpu_began = time.perf_counter(), time.thread_time()
        await asyncio.sleep(PERIOD_S)
        late_ms = (time.perf_counter() - began - PERIOD_S) * 1e3
        lags.append((late_ms, (time.thread_time() - cpu_began) * 1e3))


async def compile_beside_ticks(path: Path, devices: Sequence[str] | None) -> dict[str, float]:
    """Compiles in a runtime with an empty state folder, beside a ticker; returns its figures."""
    with tempfile.TemporaryDirectory() as folder:
        options = nn.Options(state_dir=folder)
        async with nn.open_runtime(devices=devices, options=options) as rt:
            lags: list[tuple[float, float]] = []
            ticker = asyncio.create_task(ticks(lags))
            began = time.perf_counter()
            net = await rt.compile(path, options=BEST)
            took_s = time.perf_counter() - began
            ticker.cancel()
            await net.close()
    late = [lag for lag, _ in lags]
    worst, its_cpu = max(lags)
    return {
        "took_s": took_s,
        "p50": percentile(late, 0.5),
        "p99": percentile(late, 0.99),
        "worst": worst,
        "worst_cpu": its_cpu,
    }


async def child(path: Path, devices: Sequence[str] | None) -> None:
    """Makes both compilations, and prints the figures as JSON."""
    print(json.dumps([await compile_beside_ticks(path, devices) for _ in WHICH]))


def rounds_of(
    path: Path, devices: Sequence[str] | None, count: int
) -> dict[str, list[dict[str, Any]]]:
    """Returns the figures of so many fresh processes."""
    found: dict[str, list[dict[str, Any]]] = {which: [] for which in WHICH}
    for _ in range(count):
        command = [sys.executable, "-m", "benchmarks.compile_lag", "--child", str(path)]
        command += ["--devices", *devices] if devices else []
        ran = subprocess.run(command, stdout=subprocess.PIPE, timeout=300, check=True)
        for which, figures in zip(WHICH, json.loads(ran.stdout), strict=True):
            found[which].append(figures)
    return found


def report(options: argparse.Namespace) -> None:
    """Run the rounds and print medians, and the worst of all."""
    path = options.model or models_folder(None) / MODEL
    found = rounds_of(path, options.devices, options.rounds)
    keys = ("took_s", "p50", "p99", "worst", "worst_cpu")
    rows = []
    for which, figures in found.items():
        medians = [f"{statistics.median(each[key] for each in figures):.2f}" for key in keys]
        rows.append([f"{which} compilation", *medians, f"{max(f['worst'] for f in figures):.2f}"])
    heads = ["ms late", "compiled in s", "p50", "p99", "worst", "of it computing", "worst of all"]
    publish(f"Compile lag: {path.name}", table(heads, rows), found, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--model", type=Path, help=f"({MODEL} of the reference models)")
    parser.add_argument("--devices", nargs="+", help="(all that are installed)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        nn.run(child, options.child, options.devices)
    else:
        report(options)


if __name__ == "__main__":
    main()
