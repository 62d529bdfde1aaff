"""Awaited: one inference as a coroutine on uvloop sees it, nnasync beside the peers' own ways.

One in flight gives the latency. Eight in flight give the throughput, and how far a task that wants
to wake each millisecond is held up. A client yields to the loop before each inference: outside the
latency with one in flight; with eight, what the others do to the loop is part of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import nnasync as nn
from benchmarks._report import BEST, percentile, table
from benchmarks.peers.asyncio_use import FLIGHT, USES
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.engines import LiteRT, reason
from benchmarks.peers.section import Context, Section, mark, number
from benchmarks.peers.timing import called_us, middle
from nnasync.errors import NNError

__all__ = ["FACTORS", "MODELS", "Infer", "child", "drive", "factor_of", "run"]

Infer = Callable[[], Awaitable[object]]
Tell = Callable[[str], None]

MODELS = ("hello_world_float", "tts_float", "micro_speech_quantized", "mobilenet_v1_0.25_128")
CROWDED = "mobilenet_v1_0.25_128"
FACTORS = ((50.0, 5.0), (120.0, 2.5), (500.0, 1.25))
"""Up to so many microseconds of the bare engine, so many times faster than the best peer."""
RATE_FACTOR, STALL_LIMIT_MS = 1.2, 1.5
OURS = "nnasync"
TICK_S = 0.001


async def child(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Measures one model: `name`, `path`, `rounds`, `seconds` of a turn, `crowded`."""
    entry = Entry(task["name"], task["path"])
    refused: dict[str, str] = {}
    async with nn.open_runtime(devices=task["devices"]) as runtime:
        tell("compiling")
        contestants: dict[str, Infer] = {}
        try:
            contestants[OURS] = await _ours(runtime, entry)
        except NNError as error:
            refused[OURS] = reason(error)
        for name, make in USES.items():
            tell(name)
            try:
                use = make(entry)
                await use.infer()
            except Exception as error:
                refused[name] = reason(error)
            else:
                contestants[name] = use.infer
        flights = [1] + [FLIGHT] * task["crowded"]
        turns: dict[str, dict[str, list[Any]]] = {name: {} for name in contestants}
        for turn in range(task["rounds"]):
            tell(f"round {turn + 1} of {task['rounds']}")
            for name, infer in _shifted(contestants, turn):
                for flight in flights:
                    found = await drive(infer, flight, task["seconds"])
                    turns[name].setdefault(str(flight), []).append(found)
    return {"turns": turns, "refused": refused, "bare_us": _bare_us(entry, refused)}


def _shifted(contestants: Mapping[str, Infer], turn: int) -> list[tuple[str, Infer]]:
    pairs = list(contestants.items())
    shift = turn % max(1, len(pairs))
    return pairs[shift:] + pairs[:shift]


async def _ours(runtime: nn.Runtime, entry: Entry) -> Infer:
    model = nn.load(entry.path)
    arrays = input_arrays(model)
    net = await runtime.compile(model, options=BEST)
    await net.optimized()  # As the others, it is measured as it stays.
    await net(*arrays)

    def infer() -> Awaitable[object]:
        return net(*arrays)

    return infer


def _bare_us(entry: Entry, refused: dict[str, str]) -> float | None:
    """Returns the microseconds of the model by LiteRT directly, which measure its size."""
    try:
        engine = LiteRT(entry)
    except Exception as error:
        refused["LiteRT, bare"] = reason(error)
        return None
    return middle(called_us(engine.invoke, 0.1))


async def drive(infer: Infer, flight: int, seconds: float) -> dict[str, float]:
    """Runs one turn: returns latencies in us, inferences a second, and lags of the ticker in ms."""
    await _flow(infer, flight, seconds / 5)
    latencies, lags, taken_s = await _flow(infer, flight, seconds)
    return {
        "p50_us": percentile(latencies, 0.5),
        "p99_us": percentile(latencies, 0.99),
        "per_second": len(latencies) / taken_s,
        "stall_p99_ms": percentile(lags, 0.99),
        "stall_ms": max(lags),
    }


async def _flow(
    infer: Infer, flight: int, seconds: float
) -> tuple[list[float], list[float], float]:
    clock = time.perf_counter
    latencies: list[float] = []
    lags: list[float] = []
    ends = clock() + seconds

    async def client() -> None:
        while clock() < ends:
            started = clock()
            await asyncio.sleep(0)
            if flight == 1:
                started = clock()
            await infer()
            latencies.append((clock() - started) * 1e6)

    async def ticker() -> None:
        while clock() < ends:
            started = clock()
            await asyncio.sleep(TICK_S)
            lags.append((clock() - started - TICK_S) * 1e3)

    began = clock()
    await asyncio.gather(ticker(), *(client() for _ in range(flight)))
    return latencies, lags, clock() - began


# -- the tables


def factor_of(bare_us: float | None) -> float | None:
    """Returns how many times faster than the best peer a model of this size must be."""
    if bare_us is None:
        return None
    return next((factor for limit, factor in FACTORS if bare_us < limit), 1.0)


def run(context: Context) -> Section:
    """Measures each model in a child of its own."""
    figures: dict[str, Any] = {}
    latency_rows: list[list[str]] = []
    parts: list[str] = []
    notes: list[str] = []
    for name in MODELS:
        entry = context.entry(name)
        if entry is None or context.is_over():
            notes.append(
                f"{name}: not measured, {'not chosen' if entry is None else 'no time left'}"
            )
            continue
        crowded = name == CROWDED
        task = {"name": name, "path": entry.path, "rounds": context.rounds, "crowded": crowded}
        outcome = context.measure("awaited", name, task | {"seconds": 0.2})
        if outcome.figures is None:
            notes.append(f"{name}: {outcome.during}: {outcome.failure}")
            continue
        figures[name] = found = _medians(outcome.figures)
        notes += [f"{name}: {who}: {why}" for who, why in found["refused"].items()]
        latency_rows += _latency_rows(name, found)
        if crowded:
            parts.append(_crowd(name, found["turns"]))
    heads = ["one in flight", "bare us", "best peer", "p50 us", "nnasync us", "faster", "at least"]
    text = table([*heads, "kept"], latency_rows)
    return Section("Awaited", "\n\n".join([text, *parts, "\n".join(notes)]), figures)


def _medians(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the median of each figure over the rounds, and the longest of the worst stalls."""
    turns = {
        name: {flight: _median_turn(rounds) for flight, rounds in flights.items()}
        for name, flights in found["turns"].items()
    }
    return {**found, "turns": turns, "rounds": found["turns"]}


def _median_turn(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    medians = {key: middle([one[key] for one in rounds]) for key in rounds[0]}
    return medians | {"worst_stall_ms": max(one["stall_ms"] for one in rounds)}


def _best(turns: Mapping[str, Any], flight: str, key: str, sign: int) -> str | None:
    peers = [name for name in turns if name != OURS]
    return min(peers, key=lambda name: sign * turns[name][flight][key], default=None)


def _latency_rows(name: str, found: Mapping[str, Any]) -> list[list[str]]:
    turns = found["turns"]
    best = _best(turns, "1", "p50_us", 1)
    if best is None or OURS not in turns:
        return []
    peer_us, ours_us = turns[best]["1"]["p50_us"], turns[OURS]["1"]["p50_us"]
    factor = factor_of(found["bare_us"])
    faster = peer_us / ours_us
    return [
        [
            name,
            number(found["bare_us"]),
            best,
            number(peer_us),
            number(ours_us),
            number(faster, 2),
            number(factor, 2),
            mark(faster, factor, at_least=True),
        ]
    ]


def _crowd(name: str, turns: Mapping[str, Any]) -> str:
    flight = str(FLIGHT)
    rows = [
        [
            contestant,
            number(by[flight]["per_second"], 0),
            number(by[flight]["p50_us"], 0),
            number(by[flight]["stall_p99_ms"], 2),
            number(by[flight]["stall_ms"], 2),
            number(by[flight]["worst_stall_ms"], 2),
        ]
        for contestant, by in turns.items()
    ]
    heads = ["per second", "p50 us", "stall p99 ms", "worst of a round, median", "of all rounds"]
    text = table([f"{FLIGHT} in flight on {name}", *heads], rows)
    best = _best(turns, flight, "per_second", -1)
    if best is None or OURS not in turns:
        return text
    ours = turns[OURS][flight]
    more = ours["per_second"] / turns[best][flight]["per_second"]
    stall = ours["stall_ms"]
    return (
        f"{text}\n\nthroughput: {more:.2f} times the best peer's (at least {RATE_FACTOR}: "
        f"{mark(more, RATE_FACTOR, at_least=True)}); worst stall of a round: {stall:.2f} ms "
        f"(below {STALL_LIMIT_MS}: {mark(stall, STALL_LIMIT_MS)})"
    )
