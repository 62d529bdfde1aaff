"""Deadlines: how long after a deadline its answer comes, from a driver that hangs.

Every execution begins on the device, hangs there and is deaf to its stop flag; its deadline is a
few milliseconds away. Measured is when the awaiting task has `MissedDeadline` in its hands, less
the deadline, on every path and every loop. Then the device is let go, and the next one begins, on
another network: of one that is known to take too long the deadline would be refused at once.
`prepare` is a compilation that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from benchmarks._report import arguments, foreign_load, percentile, publish, table
from nnasync import Deadline, now_ns
from nnasync.devices import NullEngine
from nnasync.hal import ExecutionPreference, Model

LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"backend": "asyncio", "backend_options": {"use_uvloop": False}},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}
PATHS = ("call", "launch", "duration", "burst", "prepare")


class Hanging(NullEngine):
    """A null engine whose compilations hang as well, once it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.compiles = threading.Event()
        self.compiles.set()

    def compile(self, model: Model, preference: ExecutionPreference) -> Any:
        """Waits until compilations are released."""
        self.compiles.wait()
        return super().compile(model, preference)


def model(columns: int = 4) -> Model:
    """Returns a model of one addition."""
    builder = nn.ModelBuilder("add")
    x = builder.input("x", (1, columns))
    builder.output("y", builder.add(x, x))
    return builder.build()


class Paths:
    """Measures each way to a missed deadline: by how many nanoseconds the answer was late."""

    def __init__(self, rt: nn.Runtime, engine: Hanging, ahead_ms: float) -> None:
        self.rt, self.engine = rt, engine
        self.x = np.ones((1, 4), np.float32)
        self.ahead_ms = ahead_ms

    async def late(self, attempt: Callable[[Deadline], Awaitable[Any]]) -> int:
        """Awaits an attempt that misses its deadline; returns how late the answer was."""
        deadline = nn.within(ms=self.ahead_ms)
        try:
            await attempt(deadline)
        except nn.MissedDeadline:
            return now_ns() - deadline.at_ns
        raise SystemExit("an execution that hangs has ended")

    async def lateness(self, path: str) -> int:
        """Misses a deadline on that path, with a network of its own.

        Returns how late the answer was.
        """
        self.net = await self.rt.compile(model())
        try:
            late_ns: int = await getattr(self, path)()
        finally:
            self.engine.compiles.set()
            self.engine.release()
        await self.net.close()
        # Nothing signals that no worker runs any more; this is between measurements.
        while self.rt.statistics().workers.running:  # noqa: ASYNC110
            await anyio.sleep(0.0002)
        return late_ns

    async def call(self) -> int:
        """Measures a plain call."""
        return await self.late(lambda deadline: self.net(self.x, deadline=deadline))

    async def launch(self) -> int:
        """Measures a launch whose fence is awaited."""

        async def launched(deadline: Deadline) -> None:
            execution = await self.net.launch(self.x, deadline=deadline)
            await execution.fence

        return await self.late(launched)

    async def duration(self) -> int:
        """Measures a launch behind a fence, whose duration is limited."""
        fence = nn.Fence()
        limit = self.ahead_ms / 1e3
        execution = await self.net.launch(self.x, wait_for=[fence], duration_s=limit)

        async def awaited(_: Deadline) -> None:
            fence.signal()
            await execution.fence

        return await self.late(awaited)

    async def burst(self) -> int:
        """Measures the call of a burst."""
        async with self.net.burst() as burst:
            return await self.late(lambda deadline: burst(self.x, deadline=deadline))

    async def prepare(self) -> int:
        """Measures the compilation of a model that has no plan yet."""
        self.engine.compiles.clear()
        return await self.late(lambda deadline: self.rt.compile(model(5), deadline=deadline))


async def measure(counts: int, ahead_ms: float) -> dict[str, list[float]]:
    """Returns the microseconds after the deadline, by path."""
    engine = Hanging()
    options = nn.Options(competition_budget_ms=0)
    found: dict[str, list[float]] = {path: [] for path in PATHS}
    async with nn.open_runtime(devices=[engine], options=options) as rt:
        engine.hang()
        paths = Paths(rt, engine, ahead_ms)
        for number in range(counts + 1):
            for path in PATHS:
                late_ns = await paths.lateness(path)
                if number:
                    found[path].append(late_ns / 1e3)
        engine.heal()
    return found


def rows(loop: str, found: dict[str, list[float]]) -> list[list[str]]:
    """Returns a row for each path, and one for all together."""
    everything = [late for values in found.values() for late in values]
    return [
        [
            f"{loop}: {path}",
            *(f"{percentile(values, share):.0f}" for share in (0, 0.5, 0.9, 0.99, 1)),
            f"{100 * sum(0 <= late <= 2000 for late in values) / len(values):.1f} %",
        ]
        for path, values in [*found.items(), ("all", everything)]
    ]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=100)
    parser.add_argument("--ahead-ms", type=float, default=4.0, help="deadlines (%(default)s)")
    parser.add_argument("--busy", type=int, default=0, help="foreign busy processes (%(default)s)")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for loop, backend in LOOPS.items():
        seconds = options.rounds * len(PATHS) * (options.ahead_ms + 50) / 1e3
        with foreign_load(options.busy, seconds):
            found[loop] = anyio.run(measure, options.rounds, options.ahead_ms, **backend)
    lines = [row for loop, by_path in found.items() for row in rows(loop, by_path)]
    heads = ["microseconds after it", "least", "median", "90 %", "99 %", "most", "within 2 ms"]
    publish("Answers at deadlines", table(heads, lines), {"late_us": found}, options)


if __name__ == "__main__":
    main()
