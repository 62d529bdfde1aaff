"""Scheduling: what a submit and a dispatch cost, with few and with many executions in the queue.

The queue is filled, a third of each priority and half of them with deadlines, and then emptied,
without and with work that is due for its age. Beside the scheduler alone stands the whole of
`Workers.submit` for tasks behind busy threads, which adds the lock, the alarm and the fence. And
what a VLOG line costs whose tag is off.

Aging: in a flood of HIGH calls that keeps the only core busy, how long LOW calls wait, as a share
of the bound that is stated for them: (1 + calls before it) times the aging time, and two
dispatches for each of these.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from benchmarks._report import BEST, arguments, median, publish, spread, table
from nnasync import now_ns
from nnasync._core.clock import Watchdog
from nnasync._core.workers import Task, Workers
from nnasync.devices import NullEngine
from nnasync.engine import Given, StopFlag
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import AGING_NS, NEVER_NS, Estimate, Job, Scheduler
from nnasync.tracing import Tracer, vlog

SIZES = (100, 1_000, 10_000, 100_000)
HOUR_NS = 3600 * 10**9
ALL = (Priority.HIGH, Priority.MEDIUM, Priority.LOW)


def jobs(count: int) -> list[Job]:
    """Returns jobs of all priorities, every other one with a deadline."""
    estimate = Estimate()
    return [
        Job(Priority(i % 3), estimate, HOUR_NS + i * 7919 % count if i & 1 else NEVER_NS)
        for i in range(count)
    ]


def scheduler_costs(count: int, aging_ns: int) -> tuple[float, float]:
    """Returns the microseconds of a submit and of a dispatch; each dispatch advances 1 ms."""
    queue = Scheduler(servers=2, queue_limit=count, aging_ns=aging_ns)
    made = jobs(count)
    gc.collect()
    started = time.perf_counter_ns()
    for number, job in enumerate(made):
        queue.submit(job, number)
    submitted = time.perf_counter_ns()
    for number in range(count):
        queue.next(count + number * 1_000_000 % HOUR_NS, ALL)
    ended = time.perf_counter_ns()
    return (submitted - started) / count / 1000, (ended - submitted) / count / 1000


class Nothing:
    """A call without work, or one that waits to be let go."""

    def __init__(self, gate: Fence | None = None) -> None:
        self.gate = gate
        self.begun = Fence()

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Waits for the gate, if there is one, and finishes."""
        self.begun.signal()
        if self.gate is not None:
            self.gate.wait_blocking()
        return True

    def rewind(self) -> None:
        """Does nothing, since there is nothing to undo."""


def workers_costs(count: int) -> tuple[float, float]:
    """Returns the microseconds of a submit behind a busy thread, and from it to the end."""
    watchdog = Watchdog()
    workers = Workers(
        cores=1,
        inline_budget_ns=0,
        stall_budget_ns=0,
        queue_limit=count + 1,
        watchdog=watchdog,
        tracer=Tracer(),
    )
    gate, estimate, call = Fence(), Estimate(), Nothing()
    busy = Nothing(gate)
    workers.submit(Task(busy, Priority.HIGH, Estimate(), NEVER_NS, "busy"))
    busy.begun.wait_blocking()
    tasks = [Task(call, Priority.MEDIUM, estimate, NEVER_NS, "task") for _ in range(count)]
    gc.collect()
    started = time.perf_counter_ns()
    for task in tasks:
        workers.submit(task)
    submitted = time.perf_counter_ns()
    gate.signal()
    tasks[-1].fence.wait_blocking()
    ended = time.perf_counter_ns()
    workers.close()
    workers.join(10)
    watchdog.close()
    return (submitted - started) / count / 1000, (ended - submitted) / count / 1000


def vlog_ns(calls: int = 200_000) -> float:
    """Returns the nanoseconds of a VLOG line whose tag is off, less those of the loop."""
    vlog.select("")
    started = time.perf_counter_ns()
    for _ in range(calls):
        pass
    between = time.perf_counter_ns()
    for number in range(calls):
        vlog.execution("%s: %d", "task", number)
    return (time.perf_counter_ns() - between - (between - started)) / calls


async def aging(flood: int, waiting: int, aging_ms: float, run_ms: float) -> list[float]:
    """Returns waits of LOW calls that come at once, each as a share of its stated bound."""
    engine = NullEngine(latency_ns=int(run_ms * 1e6))
    options = nn.Options(
        cores=1, inline_budget_us=0, aging_ms=aging_ms, competition_budget_ms=0, queue_limit=10**6
    )
    shares: list[float] = []
    async with nn.open_runtime(devices=[engine], options=options) as rt:
        urgent = await rt.compile(tiny(), priority=Priority.HIGH, options=BEST)
        patient = await rt.compile(tiny(), priority=Priority.LOW, options=BEST)
        x = np.ones((1, 4), np.float32)

        async def hurry() -> None:
            while len(shares) < waiting:
                await urgent(x)

        async def wait(before: int) -> None:
            started = now_ns()
            _, timing = await patient.measured(x)
            waited_ns = now_ns() - started - timing.time_on_device_ns
            bound_ms = (1 + before) * (aging_ms + 2 * run_ms)
            shares.append(waited_ns / 1e6 / bound_ms)

        async with anyio.create_task_group() as group:
            for _ in range(flood):
                group.start_soon(hurry)
            # Nothing signals the length of a queue; this is before the measurement.
            while rt.statistics().workers.scheduler.queued[2] < flood // 2:  # noqa: ASYNC110
                await anyio.sleep(run_ms / 1e3)
            for number in range(waiting):
                group.start_soon(wait, number)
    return shares


def tiny() -> nn.Model:
    """Returns a model of one addition."""
    builder = nn.ModelBuilder("add")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def measure(rounds: int, sizes: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Returns the microseconds by contestant and size, one a round."""
    contestants: dict[str, Callable[[int], tuple[float, float]]] = {
        "scheduler": lambda count: scheduler_costs(count, AGING_NS),
        "scheduler, much of it due": lambda count: scheduler_costs(count, 5_000_000),
        "workers": workers_costs,
    }
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for name, costs in contestants.items():
            for size in sizes:
                for what, value in zip(("submit", "dispatch"), costs(size), strict=True):
                    found.setdefault(f"{name}: {what}", {}).setdefault(str(size), []).append(value)
    return found


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="jobs at most (%(default)s)")
    parser.add_argument("--aging-ms", type=float, default=100, help="of the flood (%(default)s)")
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.most] or [options.most]
    found = measure(options.rounds, sizes)
    lines = [vlog_ns() for _ in range(options.rounds)]
    rows = [[name, *(spread(by_size[str(s)]) for s in sizes)] for name, by_size in found.items()]
    text = table(["microseconds each, queued", *(f"{size:,}" for size in sizes)], rows)
    shares = nn.run(aging, 20, 8, options.aging_ms, 2.0)
    text += "\n\nLOW in a flood of HIGH, waits as shares of their bounds: "
    text += ", ".join(f"{share:.2f}" for share in shares)
    text += f"\n\na VLOG line that is off: {median(lines):.0f} ns"
    figures: dict[str, Any] = {"microseconds": found, "vlog_ns": lines, "aging": shares}
    publish("Scheduling", text, figures, options)


if __name__ == "__main__":
    main()
