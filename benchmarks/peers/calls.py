"""Calls: what bursts, chains of fences and results cost above the bare engine.

The bare engine is LiteRT's own invocation on one thread. A burst carries the state of `tts_float`
from call to call, as LiteRT does in its variables. A chain is eight launches, each behind the fence
of the one before, with one await at its end. Memory is that of Python's and numpy's allocations
during calls that write into arrays of the caller (`out=`): what stays after many calls, and how far
it rises within one.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

import nnasync as nn
from benchmarks._report import BEST, table
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.engines import PEERS, LiteRT, reason
from benchmarks.peers.section import Context, Section, mark, number
from benchmarks.peers.timing import awaited_us, called_us, middle

__all__ = ["child", "run"]

Tell = Callable[[str], None]

BURSTS = ("hello_world_float", "tts_float")
CHAINED, CHAIN = "micro_speech_quantized", 8
LARGE = "mobilenet_v1_0.25_128"
BURST_LIMIT_US, CHAIN_LIMIT = 8.0, 1.15
COUNTED, TRACED = 1000, 500


async def child(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Measures all contestants: `paths` by name, `rounds`, `seconds` of a turn."""
    paths: Mapping[str, str] = task["paths"]
    rounds, seconds = task["rounds"], task["seconds"]
    found: dict[str, Any] = {"bursts": {}, "memory": {}, "refused": {}}
    async with nn.open_runtime(devices=task["devices"]) as runtime:
        for name in BURSTS:
            if name in paths:
                tell(f"burst of {name}")
                entry = Entry(name, paths[name])
                found["bursts"][name] = await _burst(runtime, entry, rounds, seconds)
        if CHAINED in paths:
            tell(f"chain of {CHAINED}")
            entry = Entry(CHAINED, paths[CHAINED])
            found["chain"] = await _chain(runtime, entry, rounds, seconds, found["refused"])
        for name in (*BURSTS, LARGE):
            if name in paths:
                tell(f"memory of {name}")
                found["memory"][name] = await _memory(runtime, Entry(name, paths[name]))
    return found


async def _burst(
    runtime: nn.Runtime, entry: Entry, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Returns microseconds of the bare engine and of a burst call, a median a round."""
    engine = LiteRT(entry)
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    net = await runtime.compile(model, options=BEST)
    found: dict[str, list[float]] = {"bare_us": [], "burst_us": []}
    async with net.burst() as burst:
        for _ in range(rounds):
            found["bare_us"].append(middle(called_us(engine.invoke, seconds)))
            found["burst_us"].append(middle(await awaited_us(lambda: burst(*arrays), seconds)))
    return found


async def _chain(
    runtime: nn.Runtime, entry: Entry, rounds: int, seconds: float, refused: dict[str, str]
) -> dict[str, list[float]]:
    """Returns microseconds of a chain of launches, and of one bare invocation of each engine."""
    engines = {}
    for name, make in PEERS.items():
        try:
            engines[name] = make(entry, 1)
        except Exception as error:
            refused[name] = reason(error)
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    net = await runtime.compile(model, preference=nn.Preference.SUSTAINED_SPEED, options=BEST)

    async def chain() -> None:
        wait_for: list[Any] = []
        for _ in range(CHAIN):
            execution = await net.launch(*arrays, wait_for=wait_for)
            wait_for = [execution.fence]
        await wait_for[0]

    found: dict[str, list[float]] = {name: [] for name in ("chain_us", "await_us", *engines)}
    for _ in range(rounds):
        for name, engine in engines.items():
            # Whatever the last contestant left spinning shall have stopped; no loop work is due.
            time.sleep(0.02)  # noqa: ASYNC251
            found[name].append(middle(called_us(engine.invoke, seconds)))
        found["await_us"].append(middle(await awaited_us(lambda: net(*arrays), seconds)))
        found["chain_us"].append(middle(await awaited_us(chain, seconds)))
    return found


async def _memory(runtime: nn.Runtime, entry: Entry) -> dict[str, float]:
    """Returns memory blocks and bytes of calls with `out=`."""
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    net = await runtime.compile(model, options=BEST)
    outs = tuple(np.empty(port.shape, port.dtype) for port in net.outputs)
    out = outs if len(outs) > 1 else outs[0]

    def call() -> Awaitable[object]:
        return net(*arrays, out=out)

    for _ in range(COUNTED):
        await call()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(COUNTED):
        await call()
    blocks = sys.getallocatedblocks() - blocks
    kept, risen = await _traced(call)
    result = float(sum(each.nbytes for each in outs))
    return {
        "blocks_kept": blocks / COUNTED,
        "bytes_kept": kept,
        "bytes_within": risen,
        "bytes_of_result": result,
    }


async def _traced(call: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Returns the bytes that stay after a call on average, and the median of its peaks."""
    tracemalloc.start()
    try:
        for _ in range(TRACED):
            await call()
        before = tracemalloc.get_traced_memory()[0]
        highest = np.zeros(TRACED)
        for index in range(TRACED):
            tracemalloc.reset_peak()
            started = tracemalloc.get_traced_memory()[0]
            await call()
            highest[index] = tracemalloc.get_traced_memory()[1] - started
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    return max(0, after - before) / TRACED, float(np.median(highest))


# -- the tables


def run(context: Context) -> Section:
    """Measure in one child."""
    wanted = dict.fromkeys((*BURSTS, CHAINED, LARGE))
    entries = [entry for name in wanted if (entry := context.entry(name)) is not None]
    task = {
        "paths": {entry.name: entry.path for entry in entries},
        "rounds": context.rounds,
        "seconds": 0.1,
    }
    outcome = context.measure("calls", "bursts and chains", task)
    if outcome.figures is None:
        return Section("Calls", f"{outcome.during}: {outcome.failure}", {})
    found = outcome.figures
    parts = [_bursts(found["bursts"]), _memories(found["memory"])]
    if "chain" in found:
        parts.insert(1, _chains(found["chain"]))
    parts += [f"{CHAINED}: {name}: {why}" for name, why in found["refused"].items()]
    return Section("Calls", "\n\n".join(parts), found)


def _bursts(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    rows = []
    for name, times in found.items():
        bare, burst = middle(times["bare_us"]), middle(times["burst_us"])
        above = burst - bare
        cells = [number(bare), number(burst), number(above), number(BURST_LIMIT_US, 0)]
        rows.append([name, *cells, mark(above, BURST_LIMIT_US)])
    return table(["burst call, microseconds", "LiteRT", "burst", "above", "limit", "kept"], rows)


def _chains(found: Mapping[str, list[float]]) -> str:
    chain = middle(found["chain_us"])
    rows = []
    for name, times in found.items():
        if name == "chain_us":
            continue
        bare = middle(times)
        label = "await net(x) itself" if name == "await_us" else f"{name}, 1 thread"
        ratio = chain / (CHAIN * bare)
        limit = None if name == "await_us" else CHAIN_LIMIT
        cells = [number(CHAIN * bare), number(chain), number(ratio, 2), number(limit, 2)]
        rows.append([label, *cells, mark(ratio, limit)])
    head = f"chain of {CHAIN} {CHAINED}, microseconds"
    return table([head, f"{CHAIN} bare", "chain", "ratio", "limit", "kept"], rows)


def _memories(found: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        [
            name,
            number(memory["blocks_kept"], 3),
            number(memory["bytes_kept"], 1),
            number(memory["bytes_within"], 0),
            number(memory["bytes_of_result"], 0),
        ]
        for name, memory in found.items()
    ]
    heads = ["memory a call, out=", "blocks kept", "bytes kept", "bytes within", "size of result"]
    return table(heads, rows)
