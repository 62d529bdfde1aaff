"""LOW work in a service beside HIGH work in the application, alone and beside busy processes.

The application runs a network of about half a millisecond every 5 ms, HIGH, with a deadline of
2 ms, and a ticker of 1 ms on the same loop. Beside that two clients await a LOW network in a loop:
none, one in the same process, or one of an isolated device, whose process runs LOW at the lowest
priority of the operating system. Measured are the ticker's lag, the share of HIGH in time, and how
much LOW work got done. Networks of LOW are those of `loop_lag`, many small operations and few large
ones, on the reference, which takes and drops the interpreter lock all the time; and one on LiteRT,
which computes without it.

Two more figures say what isolation is about, and depend little on what else runs: how often the
thread of the loop gave its core up for each HIGH call, since it waited for the lock or for work,
and how much processor time an execution of LOW took in all processes.

The last table says, for each kind of LOW work, whether the service is better for HIGH, round by
round and with an interval of 95 %: a share in time that is higher and a p99 of the lag that is
lower speak for it, and LOW may not lose more than half of its rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from benchmarks._report import (
    BEST,
    arguments,
    foreign_load,
    models_folder,
    percentile,
    publish,
    table,
)
from benchmarks._verdicts import differences, ratios, told, verdict
from benchmarks.loop_lag import few_large, many_small, tick
from nnasync import ModelBuilder
from nnasync.hal import Array, Model

DEVICE = "nnasync-reference"
LITERT = "litert-cpu"
LITERT_MODEL = "mobilenet_v2_1.0_224_quant.tflite"
PERIOD_S = 0.005
DEADLINE_MS = 2.0
CLIENTS = 2
FOREIGN = 2
WORST_LAG_MS = 20.0
LEAST_LOW = 0.5
LOADS: dict[str, tuple[str, Callable[[Path], Model]]] = {
    "many small operations": (DEVICE, lambda _: many_small()),
    "few large operations": (DEVICE, lambda _: few_large()),
    "a network on LiteRT": (LITERT, lambda folder: nn.load(folder / LITERT_MODEL)),
}
PLACES = ("no LOW", "same process", "service")


def urgent() -> Model:
    """Returns a model of four products of 8 rows with 512 x 512 matrices."""
    builder = ModelBuilder("urgent")
    rng = np.random.default_rng(0)
    value = builder.input("x", (8, 512))
    for _ in range(4):
        weights = rng.normal(0, 0.05, (512, 512)).astype(np.float32)
        value = builder.fully_connected(value, weights, np.zeros(512, np.float32))
    builder.output("y", value)
    return builder.build()


async def hurry(net: Any, x: Array, seconds: float) -> tuple[int, int]:
    """Calls HIGH in its period; returns how many were in time, and how many in all."""
    hits = calls = 0
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calls += 1
        with contextlib.suppress(nn.MissedDeadline):
            await net(x, deadline=nn.within(ms=DEADLINE_MS))
            hits += 1
        due = max(due + PERIOD_S, time.perf_counter())
    return hits, calls


async def loop(net: Any, x: Array, counts: list[int]) -> None:
    """Calls LOW for ever, as one client."""
    while True:
        await net(x)
        counts[0] += 1


def switches() -> int:
    """Returns how often the calling thread gave its core up so far."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    (count,) = (line.split()[1] for line in status.splitlines() if line.startswith("voluntary"))
    return int(count)


def processor_s() -> float:
    """Returns the processor time so far of this process and of its running children."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def cell(
    load: str, place: str, foreign: int, seconds: float, folder: Path
) -> tuple[list[float], int, int, float, int, float, int]:
    """Measures one combination: returns lags, then HIGH in time and in all, LOW a second.

    Then switches, processor time and executions of LOW.
    """
    counts, (device, make) = [0], LOADS[load]
    async with contextlib.AsyncExitStack() as stack:
        opening = nn.open_runtime(devices=[DEVICE, LITERT])
        here = await stack.enter_async_context(opening)
        high = await here.compile(urgent(), devices=[DEVICE], priority=nn.Priority.HIGH)
        x = np.zeros(high.inputs[0].shape, np.float32)
        for _ in range(20):
            await high(x)
        if place != PLACES[0]:
            runtime = here
            if place == "service":
                opening = nn.open_runtime(devices=[device], isolate=[device])
                runtime = await stack.enter_async_context(opening)
            low = await runtime.compile(
                make(folder), devices=[device], priority=nn.Priority.LOW, options=BEST
            )
            value = np.zeros(low.inputs[0].shape, low.inputs[0].dtype)
            await low(value)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            for _ in range(CLIENTS):
                group.start_soon(loop, low, value, counts)
        gc.collect()
        with foreign_load(foreign, seconds + 10):
            runs, gave_up, spent_s = counts[0], switches(), processor_s()
            lags, (hits, calls) = await asyncio.gather(tick(seconds), hurry(high, x, seconds))
            runs, gave_up = counts[0] - runs, switches() - gave_up
            spent_s = processor_s() - spent_s
    return lags, hits, calls, runs / seconds, gave_up, spent_s, runs


async def measure(options: Any) -> None:
    cells = [(load, place, n) for load in LOADS for place in PLACES for n in (0, FOREIGN)]
    lags: dict[tuple[str, str, int], list[float]] = {name: [] for name in cells}
    sums: dict[tuple[str, str, int], list[float]] = {name: [0.0] * 6 for name in cells}
    each: dict[tuple[str, str, int], list[tuple[float, float, float]]]
    each = {name: [] for name in cells}
    folder = models_folder(options.models)
    for _ in range(options.rounds):
        for load, place, foreign in cells:
            found, *rest = await cell(load, place, foreign, options.seconds, folder)
            lags[load, place, foreign] += found
            hits, calls, rate = rest[:3]
            round_of = 100 * hits / calls, percentile(found, 0.99), rate
            each[load, place, foreign].append(round_of)
            for at, value in enumerate(rest):
                sums[load, place, foreign][at] += value
    report(lags, sums, proposals(each), options)


def proposals(
    each: dict[tuple[str, str, int], list[tuple[float, float, float]]],
) -> list[list[str]]:
    """Returns a row for each kind of LOW work: whether it belongs into a service."""
    rows = []
    for load in LOADS:
        for foreign in (0, FOREIGN):
            here, there = (zip(*each[load, place, foreign], strict=True) for place in PLACES[1:])
            (hits, lag, rate), (hits_there, lag_there, rate_there) = here, there
            gain = differences(hits_there, hits)
            lower, low, high = ratios(lag_there, lag)
            kept, low_rate, high_rate = ratios(rate_there, rate)
            said = (
                verdict(gain.low, gain.high, at_least=0.0),
                verdict(low, high, at_most=1.0),
                verdict(low_rate, high_rate, at_least=LEAST_LOW),
            )
            worst = max(said, key=("holds", "cannot tell", "does not hold").index)
            rows.append(
                [
                    f"{load}, {f'{foreign} busy processes' if foreign else 'alone'}",
                    f"{gain.mean:+.1f} ({gain.low:+.1f} to {gain.high:+.1f})",
                    told(lower, low, high),
                    told(kept, low_rate, high_rate),
                    worst,
                ]
            )
    return rows


def report(
    lags: dict[tuple[str, str, int], list[float]],
    sums: dict[tuple[str, str, int], list[float]],
    proposed: list[list[str]],
    options: Any,
) -> None:
    """Print a row for each combination."""
    rows: list[list[str]] = []
    figures: list[dict[str, Any]] = []
    for (load, place, foreign), values in lags.items():
        hits, calls, rate, gave_up, spent_s, runs = sums[load, place, foreign]
        found = {
            "p50_ms": percentile(values, 0.5),
            "p99_ms": percentile(values, 0.99),
            "worst_ms": percentile(values, 1.0),
            "high_in_time": hits / calls,
            "low_runs_s": rate / options.rounds,
            "switches_per_high": gave_up / calls,
            # The busy processes are children, too.
            "processor_ms_per_low": 1e3 * spent_s / runs if runs and not foreign else 0.0,
        }
        figures.append({"load": load, "place": place, "foreign": foreign} | found)
        rows.append(
            [
                f"{load}: {place}",
                ["alone", f"{foreign} busy processes"][foreign > 0],
                *(f"{found[name]:.2f}" for name in ("p50_ms", "p99_ms", "worst_ms")),
                f"{100 * found['high_in_time']:.1f} %",
                f"{found['low_runs_s']:.0f}",
                f"{found['switches_per_high']:.1f}",
                f"{found['processor_ms_per_low']:.2f}" if runs and not foreign else "",
            ]
        )
    heads = ["LOW", "beside", "lag p50 ms", "p99 ms", "worst ms", "HIGH in time", "LOW runs/s"]
    heads += ["switches per HIGH", "processor ms per LOW"]
    served = [row["worst_ms"] for row in figures if row["place"] == "service"]
    text = table(heads, rows)
    text += f"\n\nworst lag with LOW in the service: {max(served):.2f} ms (limit {WORST_LAG_MS:g})"
    heads = ["a service is better", "HIGH in time, points", "lag p99, ratio", "LOW, ratio", ""]
    text += f"\n\n{table(heads, proposed)}"
    publish("LOW in a service, HIGH in the application", text, {"cells": figures}, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each cell (%(default)s)")
    options = parser.parse_args()
    nn.run(measure, options)


if __name__ == "__main__":
    main()
