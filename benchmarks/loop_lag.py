"""Loop lag: how late a 1 ms ticker is beside a saturating LOW load.

The load is two clients that await a LOW network in a loop: once a plan of many small
operations, which takes and drops the interpreter lock all the time, once a plan of a few large
matrix products, which run without it. Each alone and beside two foreign busy processes, and
each with the interpreter's own switch interval and with the one that the runtime sets. A tick's
lag is the time from when it was due. What the networks of earlier cells left behind is collected
first.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from benchmarks._report import arguments, foreign_load, percentile, publish, table
from nnasync import ModelBuilder
from nnasync.hal import Array, Model

PERIOD_S = 0.001
CLIENTS = 2
FOREIGN = 2
LOADS: dict[str, Callable[[], Model] | None]


@functools.cache
def many_small() -> Model:
    """Returns a model of three thousand additions of 64 numbers."""
    builder = ModelBuilder("many_small")
    value = builder.input("x", (1, 64))
    step = np.full((1, 64), 0.001, np.float32)
    for _ in range(3000):
        value = builder.add(value, step)
    builder.output("y", value)
    return builder.build()


@functools.cache
def few_large() -> Model:
    """Returns a model of eight products of 64 rows with 1024 x 1024 matrices."""
    builder = ModelBuilder("few_large")
    rng = np.random.default_rng(0)
    value = builder.input("x", (64, 1024))
    for _ in range(8):
        weights = rng.normal(0, 0.03, (1024, 1024)).astype(np.float32)
        value = builder.fully_connected(value, weights, np.zeros(1024, np.float32))
    builder.output("y", value)
    return builder.build()


LOADS = {"idle": None, "many small operations": many_small, "few large operations": few_large}


async def tick(seconds: float) -> list[float]:
    """Returns the lags of ticks in milliseconds; ticks that are already past are left out."""
    lags = []
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        due = max(due + PERIOD_S, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())
        lags.append(max(0.0, time.perf_counter() - due) * 1e3)
    return lags


async def client(net: Any, x: Array, counts: list[int]) -> None:
    """Calls the network for ever, as one client of the load."""
    while True:
        await net(x)
        counts[0] += 1


async def cell(
    make: Callable[[], Model] | None,
    foreign: int,
    switch_interval_us: float | None,
    seconds: float,
) -> tuple[list[float], float]:
    """Returns the lags of one combination, and executions of the load a second."""
    counts = [0]
    options = nn.Options(switch_interval_us=switch_interval_us)
    async with nn.open_runtime(options=options) as rt, anyio.create_task_group() as group:
        if make is not None:
            net = await rt.compile(make(), devices=["nnasync-reference"], priority=nn.Priority.LOW)
            x = np.zeros(net.inputs[0].shape, np.float32)
            await net(x)
            for _ in range(CLIENTS):
                group.start_soon(client, net, x, counts)
        gc.collect()
        with foreign_load(foreign, seconds + 10):
            before = counts[0]
            lags = await tick(seconds)
        group.cancel_scope.cancel()
    return lags, (counts[0] - before) / seconds


async def measure(options: Any) -> None:
    names = [(load, foreign) for load in LOADS for foreign in (0, FOREIGN)]
    intervals = {"default": 0.0, "ours": nn.Options().switch_interval_us}
    cells = [(*name, interval) for name in names for interval in intervals]
    lags: dict[tuple[str, int, str], list[float]] = {name: [] for name in cells}
    rates: dict[tuple[str, int, str], list[float]] = {name: [] for name in cells}
    for _ in range(options.rounds):
        for load, foreign, interval in cells:
            found, rate = await cell(LOADS[load], foreign, intervals[interval], options.seconds)
            lags[load, foreign, interval] += found
            rates[load, foreign, interval].append(rate)
    report(lags, rates, options)


def report(
    lags: dict[tuple[str, int, str], list[float]],
    rates: dict[tuple[str, int, str], list[float]],
    options: Any,
) -> None:
    """Print a row for each combination."""
    rows, figures = [], []
    for (load, foreign, interval), values in lags.items():
        shares = {"p50": 0.5, "p99": 0.99, "worst": 1.0}
        found = {name: percentile(values, share) for name, share in shares.items()}
        rate = sum(rates[load, foreign, interval]) / options.rounds
        label = ["alone", f"{foreign} busy processes"][foreign > 0]
        names = {"load": load, "foreign": foreign, "interval": interval, "runs_s": rate}
        figures.append(names | found)
        rows.append([load, label, interval, *(f"{v:.2f}" for v in found.values()), f"{rate:.0f}"])
    heads = ["load", "beside", "switch interval", "p50 ms", "p99 ms", "worst ms", "runs/s"]
    publish("Lag of a 1 ms ticker", table(heads, rows), {"cells": figures}, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each cell (%(default)s)")
    options = parser.parse_args()
    nn.run(measure, options)


if __name__ == "__main__":
    main()
