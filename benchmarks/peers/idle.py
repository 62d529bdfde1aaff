"""Idle: fifty models loaded in one runtime, what they use while nothing runs, and what they cost.

Each model has run once, so all threads and buffers are there. The CPU time is that of the whole
process over some seconds of sleep. One of them is then run by itself, alternating with rounds in
which the other forty-nine are not loaded.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import nnasync as nn
from benchmarks._report import BEST, table
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.section import Context, Section, mark, number
from benchmarks.peers.timing import awaited_us, middle

__all__ = ["child", "run"]

Tell = Callable[[str], None]

LOADED = 50
MODELS = (
    "mobilenet_v1_0.25_128",
    "hello_world_float",
    "micro_speech_quantized",
    "tts_float",
    "mobilenet_v1_0.25_128_quant",
)
"""The first is the one that runs."""
RATIO_LIMIT, CPU_LIMIT = 1.05, 0.5
IDLE_S = 3.0


async def child(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Measures all contestants: `paths` by name, the first runs; `rounds`, `seconds`, `idle_s`."""
    models = [nn.load(path) for path in task["paths"].values()]
    found: dict[str, Any] = {"alone_us": [], "among_us": []}
    async with nn.open_runtime(devices=task["devices"]) as runtime:
        runner = await runtime.compile(models[0], options=BEST)
        arrays = input_arrays(models[0])

        async def once() -> float:
            return middle(await awaited_us(lambda: runner(*arrays), task["seconds"]))

        for turn in range(task["rounds"]):
            tell(f"round {turn + 1}: alone")
            found["alone_us"].append(
                middle(await awaited_us(lambda: runner(*arrays), task["seconds"]))
            )
            tell(f"round {turn + 1}: loading")
            nets = await _load(runtime, models)
            if turn == 0:
                tell("idle")
                found |= await _idle(task["idle_s"])
            tell(f"round {turn + 1}: among {LOADED}")
            found["among_us"].append(
                middle(await awaited_us(lambda: runner(*arrays), task["seconds"]))
            )
            for net in nets:
                await net.close()
    return found


async def _load(runtime: nn.Runtime, models: list[nn.Model]) -> list[nn.Net]:
    nets = []
    for model in itertools.islice(itertools.cycle(models), LOADED - 1):
        net = await runtime.compile(model, options=BEST)
        await net(*input_arrays(model))
        nets.append(net)
    return nets


async def _idle(seconds: float) -> dict[str, float]:
    await asyncio.sleep(seconds / 4)
    busy_s, began_s = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    busy_s = time.process_time() - busy_s
    share = 100 * busy_s / (time.monotonic() - began_s)
    return {"cpu_percent": share, "python_threads": threading.active_count()}


def run(context: Context) -> Section:
    """Measure in one child."""
    entries: list[Entry] = [entry for name in MODELS if (entry := context.entry(name)) is not None]
    if not entries:
        return Section("Idle", f"not measured: needs one of {', '.join(MODELS)}", {})
    task = {
        "paths": {entry.name: entry.path for entry in entries},
        "rounds": context.rounds,
        "seconds": 0.3,
        "idle_s": IDLE_S,
    }
    outcome = context.measure("idle", f"{LOADED} models", task)
    found = outcome.figures
    if found is None:
        return Section("Idle", f"{outcome.during}: {outcome.failure}", {})
    alone, among = middle(found["alone_us"]), middle(found["among_us"])
    busy, ratio = found["cpu_percent"], among / alone
    rows = [
        ["CPU use, %", number(busy, 2), number(CPU_LIMIT), mark(busy, CPU_LIMIT)],
        [f"{entries[0].name}, alone, us", number(alone), "", ""],
        [f"the same among {LOADED}, us", number(among), "", ""],
        ["ratio", number(ratio, 3), number(RATIO_LIMIT, 2), mark(ratio, RATIO_LIMIT)],
    ]
    text = table([f"{LOADED} models loaded, idle", "", "limit", "kept"], rows)
    return Section("Idle", text, found)
