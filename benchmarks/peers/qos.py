"""QoS: a HIGH client with a period and a deadline beside four LOW clients that never stop.

HIGH is released every 10 ms by a timer of the system, whether or not the last one has finished, and
counts from that timer's expiry, so a late event loop counts too. With eight outstanding the next
ones are dropped, which counts as missed. Every turn is a fresh process. The second table is the
same with two foreign busy processes beside every contestant.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, Protocol

import nnasync as nn
from benchmarks._report import cores, foreign_load, percentile, table
from benchmarks.peers.asyncio_use import OnnxRuntimeRunAsync, OpenVinoQueue
from benchmarks.peers.catalog import Entry, input_arrays
from benchmarks.peers.engines import LiteRT, OnnxRuntime, Peer, reason
from benchmarks.peers.section import Context, Section, mark, number
from benchmarks.peers.timing import middle
from nnasync.hal import Array

__all__ = ["CONTESTANTS", "child", "run"]

Tell = Callable[[str], None]
Infer = Callable[[], Awaitable[object]]

HIGH, LOW = "mobilenet_v1_0.25_128", "mobilenet_v2_1.0_224_quant"
PERIOD_S, LOW_CLIENTS, OUTSTANDING, FOREIGN = 0.010, 4, 8, 2
SETTLE_S = 0.3
OURS, ALONE = "nnasync", "HIGH alone, LiteRT"
WITHIN_MS = (10, 2, 1)
LOW_FACTOR, HIT_2MS_LIMIT = 1.8, 99.5
P99_FACTOR = 0.8 / 1.04
"""HIGH's p99 may be at most this times that of HIGH alone, measured in the same run."""


class Pair(Protocol):
    """A way to run both models; `low` is None where there is no load."""

    high: Infer
    low: Infer | None


class Executors:
    """One thread for HIGH and one per core for LOW, with an engine each."""

    def __init__(self, make: Callable[[Entry, int], Peer], high: Entry, low: Entry | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.high: Infer = self.pool(make, high, 1)
        self.low: Infer | None = None if low is None else self.pool(make, low, len(cores()))

    def pool(self, make: Callable[[Entry, int], Peer], entry: Entry, threads: int) -> Infer:
        local = threading.local()
        ready = threading.Barrier(threads + 1)

        def begin() -> None:
            local.engine = make(entry, 1)
            ready.wait()

        def work() -> Array:
            engine: Peer = local.engine
            return engine.run(engine.inputs)

        pool = ThreadPoolExecutor(threads, initializer=begin)
        for _ in range(threads):
            pool.submit(int)
        ready.wait()
        return lambda: self.loop.run_in_executor(pool, work)


class Queues:
    """OpenVINO: an AsyncInferQueue each; LOW has a stream per core."""

    def __init__(self, high: Entry, low: Entry) -> None:
        self.high: Infer = OpenVinoQueue(high, 1).infer
        self.low: Infer | None = OpenVinoQueue(low).infer


class RunAsync:
    """ONNX Runtime: two sessions with a pool of two threads or more each, `run_async`."""

    def __init__(self, high: Entry, low: Entry) -> None:
        self.high: Infer = OnnxRuntimeRunAsync(high).infer
        self.low: Infer | None = OnnxRuntimeRunAsync(low).infer


class Nnasync:
    """One runtime; both prepared for one core each, with their priorities."""

    high: Infer
    low: Infer | None

    @classmethod
    async def open(
        cls, stack: AsyncExitStack, task: Mapping[str, Any], high: Entry, low: Entry
    ) -> Nnasync:
        self, devices, quantum_ms = cls(), task["devices"], task["quantum_ms"]
        runtime = await stack.enter_async_context(nn.open_runtime(devices=devices))
        self.high = await self.net(runtime, high, nn.Priority.HIGH, None)
        self.low = await self.net(runtime, low, nn.Priority.LOW, quantum_ms)
        return self

    async def net(
        self, runtime: nn.Runtime, entry: Entry, priority: nn.Priority, quantum_ms: float | None
    ) -> Infer:
        model = nn.load(entry.path)
        arrays = input_arrays(model)
        net = await runtime.compile(
            model,
            priority=priority,
            preference=nn.Preference.SUSTAINED_SPEED,
            options=nn.CompileOptions(preemption_quantum_ms=quantum_ms),
        )
        await net.optimized()  # As the others, it is measured as it stays.
        return lambda: net(*arrays)


CONTESTANTS: dict[str, Callable[[Entry, Entry], Pair] | None] = {
    ALONE: lambda high, _low: Executors(LiteRT, high, None),
    OURS: None,
    "LiteRT, two executors": lambda high, low: Executors(LiteRT, high, low),
    "OpenVINO, two queues": Queues,
    "ONNX Runtime, two executors": lambda high, low: Executors(OnnxRuntime, high, low),
    "ONNX Runtime, run_async": RunAsync,
}
"""Ours needs a runtime, which is opened in the child."""


async def child(task: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Runs one turn of one contestant: `high` and `low` paths, `seconds`, `quantum_ms`."""
    high, low = Entry(HIGH, task["high"]), Entry(LOW, task["low"])
    tell("loading")
    async with AsyncExitStack() as stack:
        make = CONTESTANTS[task["contestant"]]
        pair: Pair
        try:
            if make is None:
                pair = await Nnasync.open(stack, task, high, low)
            else:
                pair = make(high, low)
        except Exception as error:
            return {"refused": reason(error)}
        tell("running")
        return await Drive(pair).run(task["seconds"])


class Drive:
    """Runs one turn: releases HIGH by the timer, keeps LOW going, and counts."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.loop = asyncio.get_running_loop()
        self.latencies_ms: list[float] = []
        self.released = self.dropped = self.outstanding = self.low_done = 0
        self.stopped = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.timer, self.started_s = -1, 0.0

    async def run(self, seconds: float) -> dict[str, Any]:
        clients = LOW_CLIENTS if self.pair.low is not None else 0
        lows = [self.loop.create_task(self.low()) for _ in range(clients)]
        for _ in range(20):
            await self.pair.high()
        await asyncio.sleep(SETTLE_S)
        self.low_done, began = 0, time.monotonic()
        self.timer, self.started_s = _timer(PERIOD_S)
        self.loop.add_reader(self.timer, self.expired)
        await asyncio.sleep(seconds)
        taken_s, low_done = time.monotonic() - began, self.low_done
        self.loop.remove_reader(self.timer)
        os.close(self.timer)
        self.stopped = True
        await asyncio.gather(*self.tasks, *lows)
        return self.figures(low_done / taken_s)

    async def low(self) -> None:
        infer = self.pair.low
        while infer is not None and not self.stopped:
            await infer()
            self.low_done += 1

    def expired(self) -> None:
        for _ in range(int.from_bytes(os.read(self.timer, 8), "little")):
            self.released += 1
            due_s = self.started_s + self.released * PERIOD_S
            if self.outstanding >= OUTSTANDING:
                self.dropped += 1
            else:
                self.tasks.add(self.loop.create_task(self.high(due_s)))

    async def high(self, due_s: float) -> None:
        self.outstanding += 1
        await self.pair.high()
        self.outstanding -= 1
        self.latencies_ms.append((time.monotonic() - due_s) * 1e3)

    def figures(self, low_per_s: float) -> dict[str, Any]:
        within = {
            f"within_{limit}ms": 100
            * sum(latency <= limit for latency in self.latencies_ms)
            / max(1, self.released)
            for limit in WITHIN_MS
        }
        return {
            **within,
            "p50_ms": percentile(self.latencies_ms, 0.5),
            "p99_ms": percentile(self.latencies_ms, 0.99),
            "worst_ms": max(self.latencies_ms),
            "dropped": self.dropped,
            "low_per_s": low_per_s,
        }


def _timer(period_s: float) -> tuple[int, float]:
    """Returns a timer of the system that expires each period from now on, and its start."""
    library = ctypes.CDLL(None, use_errno=True)
    monotonic = 1
    timer = library.timerfd_create(monotonic, os.O_NONBLOCK | os.O_CLOEXEC)
    period_ns = int(period_s * 1e9)
    times = (ctypes.c_long * 4)(0, period_ns, 0, period_ns)
    library.timerfd_settime(timer, 0, times, None)
    return timer, time.monotonic()


# -- the tables


def run(context: Context, *, seconds: float = 1.5, quantum_ms: float | None = None) -> Section:
    """Measures all contestants in turns, alone and beside foreign busy processes."""
    high, low = context.entry(HIGH), context.entry(LOW)
    if high is None or low is None:
        return Section("QoS", f"not measured: needs {HIGH} and {LOW}", {})
    if not hasattr(os, "eventfd"):
        return Section("QoS", "not measured: needs a timer that Linux has", {})
    task = {"high": high.path, "low": low.path, "seconds": seconds, "quantum_ms": quantum_ms}
    parts, figures = [], {}
    halves_s = context.left_s() / 2
    for foreign in (0, FOREIGN):
        context.begin(halves_s)
        turns, notes = _turns(context, task, foreign)
        title = f"beside {foreign} foreign busy processes" if foreign else "no foreign load"
        figures[title] = turns
        parts += [title, _table(turns), _verdict(turns, foreign), "\n".join(notes)]
    return Section("QoS", "\n\n".join(filter(None, parts)), figures)


def _turns(
    context: Context, task: Mapping[str, Any], foreign: int
) -> tuple[dict[str, list[Any]], list[str]]:
    turns: dict[str, list[Any]] = {name: [] for name in CONTESTANTS}
    refused: dict[str, str] = {}
    for turn in range(context.rounds):
        for name in CONTESTANTS:
            if name in refused:
                continue
            if context.is_over():
                return turns, [*_notes(refused), f"round {turn + 1}: no time left for {name}"]
            with foreign_load(foreign, 60):
                outcome = context.measure(
                    "qos", f"{name}, round {turn + 1}", {**task, "contestant": name}
                )
            found = outcome.figures
            if found is None or "refused" in found:
                refused[name] = outcome.failure if found is None else found["refused"]
            else:
                turns[name].append(found)
    return turns, _notes(refused)


def _notes(refused: Mapping[str, str]) -> list[str]:
    return [f"{name}: {why}" for name, why in refused.items()]


def _medians(turns: Mapping[str, list[Any]]) -> dict[str, dict[str, float]]:
    return {
        name: {key: middle([one[key] for one in rounds]) for key in rounds[0]}
        for name, rounds in turns.items()
        if rounds
    }


def _table(turns: Mapping[str, list[Any]]) -> str:
    rows = [
        [
            name,
            *(number(found[f"within_{limit}ms"], 1) for limit in WITHIN_MS),
            number(found["p50_ms"], 2),
            number(found["p99_ms"], 2),
            number(found["worst_ms"], 1),
            number(found["dropped"], 0),
            number(found["low_per_s"], 0),
        ]
        for name, found in _medians(turns).items()
    ]
    heads = [f"% in {limit} ms" for limit in WITHIN_MS]
    return table(["HIGH", *heads, "p50 ms", "p99 ms", "worst", "dropped", "LOW per s"], rows)


def _verdict(turns: Mapping[str, list[Any]], foreign: int) -> str:
    medians = _medians(turns)
    peers = {name: found for name, found in medians.items() if name not in (OURS, ALONE)}
    if OURS not in medians or not peers:
        return ""
    ours = medians[OURS]
    if foreign:
        wins = [
            f"{label}: {'best' if is_best else 'not the best'}"
            for label, is_best in _columns(ours, peers)
        ]
        return "nnasync among all in each column: " + "; ".join(wins)
    best_low = max(found["low_per_s"] for found in peers.values())
    more = ours["low_per_s"] / best_low
    told = [
        f"100 % in 10 ms: {mark(ours['within_10ms'], 100, at_least=True)}",
        f"{HIT_2MS_LIMIT} % in 2 ms: {mark(ours['within_2ms'], HIT_2MS_LIMIT, at_least=True)}",
        f"LOW {more:.2f} times the best peer's, at least {LOW_FACTOR}: "
        f"{mark(more, LOW_FACTOR, at_least=True)}",
    ]
    if ALONE in medians:
        limit = medians[ALONE]["p99_ms"] * P99_FACTOR
        told.append(
            f"HIGH p99 {ours['p99_ms']:.2f} ms, at most {limit:.2f}: {mark(ours['p99_ms'], limit)}"
        )
    return "; ".join(told)


def _columns(
    ours: Mapping[str, float], peers: Mapping[str, Mapping[str, float]]
) -> list[tuple[str, bool]]:
    others = list(peers.values())
    keys = {"% in 10 ms": "within_10ms", "% in 2 ms": "within_2ms", "LOW": "low_per_s"}
    found = [
        (label, ours[key] >= max(other[key] for other in others)) for label, key in keys.items()
    ]
    return [*found, ("p99", ours["p99_ms"] <= min(other["p99_ms"] for other in others))]
