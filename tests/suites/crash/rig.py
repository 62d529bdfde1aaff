"""Small networks, and the crash suite on devices that are made wrong on purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import nnasync as nn
from nnasync.suites import SuiteRow
from nnasync.suites.crash import CrashPlan, run_crash

DEVICES = "tests.suites.crash.wrong_devices:"
WIDTH = 32


def small_networks(folder: Path, count: int = 2) -> tuple[str, ...]:
    """Files of networks with a layer each."""
    paths = []
    for number in range(count):
        random = np.random.default_rng(number)
        builder = nn.ModelBuilder(f"small {number}")
        x = builder.input("x", (1, WIDTH))
        weights = random.standard_normal((WIDTH, WIDTH), np.float32)
        builder.output("y", builder.fully_connected(x, weights, np.zeros(WIDTH, np.float32)))
        path = folder / f"small_{number}.nnm"
        nn.save(builder.build(), path)
        paths.append(str(path))
    return tuple(paths)


async def crash_rows(
    device: str, folder: Path, *modes: str, patience_s: float = 60, least_s: float = 0.2
) -> list[SuiteRow]:
    """The rows of modes on a device of `wrong_devices`, the row in quiet first."""
    rows: list[SuiteRow] = []
    plan = CrashPlan(
        (DEVICES + device,),
        small_networks(folder),
        modes,
        scale=1e-6,
        patience_s=patience_s,
        least_s=least_s,
    )
    await run_crash(plan, rows.append)
    return rows
