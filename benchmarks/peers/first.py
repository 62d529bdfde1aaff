"""First: the first execution of a freshly prepared model against the later ones, per device.

Each device prepares the model several times, in a child process per model; the first preparation
in a process also finds the engine cold, so the median and the worst ratio are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import nnasync as nn
from benchmarks._report import BEST, table
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.engines import reason
from benchmarks.peers.section import Context, Section, mark, number
from benchmarks.peers.timing import awaited_us, middle
from nnasync.errors import NNError
from nnasync.hal import Array

__all__ = ["child", "run"]

Tell = Callable[[str], None]

LIMIT = 1.5


async def child(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Measures one model on every device: `name`, `path`, `rounds`, `seconds`, `skip`."""
    model = nn.load(Entry(task["name"], task["path"]).path)
    arrays = input_arrays(model)
    found: dict[str, Any] = {}
    async with nn.open_runtime(devices=task["devices"]) as runtime:
        for device in runtime.devices:
            if device.name in task["skip"]:
                continue
            tell(device.name)
            try:
                found[device.name] = [
                    await _once(runtime, model, device.name, arrays, task["seconds"])
                    for _ in range(task["rounds"])
                ]
            except NNError as error:
                found[device.name] = reason(error)
    return found


async def _once(
    runtime: nn.Runtime, model: nn.Model, device: str, arrays: list[Array], seconds: float
) -> dict[str, float]:
    net = await runtime.compile(model, devices=[device], options=BEST)
    started = time.perf_counter_ns()
    await net(*arrays)
    first_us = (time.perf_counter_ns() - started) / 1e3
    median_us = middle(await awaited_us(lambda: net(*arrays), seconds))
    await net.close()
    return {"first_us": first_us, "median_us": median_us}


def run(context: Context) -> Section:
    """Measure every model in a child of its own."""
    figures: dict[str, Any] = {}
    rows: list[list[str]] = []
    notes: list[str] = []
    for entry in context.entries:
        if context.is_over():
            notes.append(f"{entry.name}: not measured, the section's time was over")
            continue
        found = _measured(context, entry)
        figures[entry.name] = found
        for device, rounds in found.items():
            if isinstance(rounds, str):
                notes.append(f"{entry.name} on {device}: {rounds}")
            else:
                rows.append(_row(entry.name, device, rounds))
    heads = ["first execution", "device", "first us", "median us", "ratio", "worst"]
    text = "\n\n".join(filter(None, [table([*heads, "limit", "kept"], rows), "\n".join(notes)]))
    return Section("First execution", text, figures)


def _measured(context: Context, entry: Entry) -> dict[str, Any]:
    """Returns figures by device; one that ends its process is left out the next time."""
    skip: dict[str, str] = {}
    while True:
        task = {
            "name": entry.name,
            "path": entry.path,
            "rounds": context.rounds,
            "seconds": 0.05,
            "skip": list(skip),
        }
        outcome = context.measure("first", entry.name, task)
        if outcome.figures is not None:
            return {**outcome.figures, **skip}
        if not outcome.during or outcome.during in skip or context.is_over():
            return {outcome.during or "all": outcome.failure, **skip}
        skip[outcome.during] = outcome.failure


def _row(model: str, device: str, rounds: list[dict[str, float]]) -> list[str]:
    ratios = [one["first_us"] / one["median_us"] for one in rounds]
    first, median = (middle([one[key] for one in rounds]) for key in ("first_us", "median_us"))
    ratio = middle(ratios)
    cells = [number(first), number(median), number(ratio, 2), number(max(ratios), 2)]
    return [model, device, *cells, number(LIMIT), mark(ratio, LIMIT)]
