"""Compile and drop: what is left of networks that are gone.

A tiny network is compiled, called once and closed, many times over; then the same without closing
it, so that garbage collection has to. Resident memory, file descriptors and threads are read as it
goes on; after the first networks they should stay where they are.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import anyio.lowlevel
import numpy as np

import nnasync as nn
from benchmarks._report import BEST, arguments, publish, table

WARM = 500
READINGS = 10


def model() -> nn.Model:
    """Returns a model of a fully connected layer with an activation."""
    builder = nn.ModelBuilder("tiny")
    x = builder.input("x", (1, 16))
    weights = np.full((8, 16), 0.25, np.float32)
    builder.output("y", builder.relu(builder.fully_connected(x, weights)))
    return builder.build()


def resident_bytes() -> int:
    """Returns the resident memory of this process; its peak where the system tells no other."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


def descriptors() -> int:
    """Returns the number of open file descriptors."""
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def reading(cycle: int) -> dict[str, float]:
    """Returns what the process holds now: memory, descriptors, threads and objects."""
    gc.collect()
    return {
        "cycle": cycle,
        "resident_mb": resident_bytes() / 2**20,
        "descriptors": descriptors(),
        "threads": threading.active_count(),
        "objects": len(gc.get_objects()),
    }


async def cycles(rt: nn.Runtime, count: int, *, closing: bool) -> list[dict[str, float]]:
    """Compiles, calls and drops so many networks; returns readings on the way."""
    x, made = np.ones((1, 16), np.float32), model()
    readings = []
    for cycle in range(count + 1):
        if cycle in (0, min(WARM, count // 2)) or cycle % max(1, count // READINGS) == 0:
            readings.append(reading(cycle))
        net = await rt.compile(made, options=BEST)
        await net(x)
        if closing:
            await net.close()
        else:
            del net
            await anyio.lowlevel.checkpoint()
    return readings


async def measure(options: argparse.Namespace) -> None:
    """Measures both ways, one after the other, in one runtime."""
    warnings.simplefilter("ignore", ResourceWarning)
    figures: dict[str, Any] = {}
    rows = []
    async with nn.open_runtime(devices=[options.device]) as rt:
        for name, count, closing in (
            ("closed", options.cycles, True),
            ("collected", options.collected, False),
        ):
            started = time.perf_counter()
            readings = await cycles(rt, count, closing=closing)
            each_ms = (time.perf_counter() - started) / (count + 1) * 1e3
            warm = next(each for each in readings if each["cycle"] >= min(WARM, count // 2))
            growth = readings[-1]["resident_mb"] - warm["resident_mb"]
            figures[name] = {"readings": readings, "growth_mb": growth, "cycle_ms": each_ms}
            rows += [
                [f"{name}, {each['cycle']:,.0f}", *(f"{each[key]:,.1f}" for key in list(each)[1:])]
                for each in readings
            ]
            rows.append(
                [f"{name}: growth since {warm['cycle']:,.0f}", f"{growth:+.1f}", "", "", ""]
            )
            rows.append([f"{name}: milliseconds a cycle", f"{each_ms:.2f}", "", "", ""])
        figures["nets"] = rt.statistics().nets
    heads = ["networks", "resident MB", "descriptors", "threads", "objects"]
    publish("Compile and drop", table(heads, rows), figures, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--cycles", type=int, default=10_000, help="closed (%(default)s)")
    parser.add_argument("--collected", type=int, default=1_000, help="dropped (%(default)s)")
    parser.add_argument("--device", default="nnasync-reference", help="(%(default)s)")
    nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
