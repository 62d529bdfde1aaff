"""A run of many random graphs, spread over processes that may die or hang.

Each process gets one order at a time. One that dies of it, or does not answer in time, costs that
graph, which is saved as it was generated; another process takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import anyio
import msgspec

from nnasync._core.child_process import ChildProcess, child_process, ending
from nnasync.conformance.random_graphs.examination import GraphVerdict
from nnasync.conformance.random_graphs.generation import generate
from nnasync.conformance.random_graphs.inspector import operation_names, saved_graph
from nnasync.conformance.random_graphs.worker_messages import Order, OrderResult, WorkerAssignment

ANSWER_LIMIT_S = 300.0
"""A process that needs longer for one graph, shrinking included, hangs."""
WORKER = ("-m", "nnasync.conformance.random_graphs.graph_worker")
"""What the interpreter runs as a worker."""

_MAX_RESULT_BYTES = 1 << 20
_results = msgspec.json.Decoder(OrderResult)


async def run_fleet(
    assignment: WorkerAssignment,
    orders: Iterable[Order],
    jobs: int,
    done: Callable[[OrderResult], object],
    limit_s: float = ANSWER_LIMIT_S,
) -> None:
    """Carry out orders in that many processes; `done` gets each result, in no particular order."""
    rest = iter(orders)
    async with anyio.create_task_group() as tasks:
        for _ in range(jobs):
            tasks.start_soon(_man, assignment, rest, done, limit_s)


async def _man(
    assignment: WorkerAssignment,
    orders: Iterator[Order],
    done: Callable[[OrderResult], object],
    limit_s: float,
) -> None:
    """Have a process carry out orders, and another one when it is lost."""
    order = next(orders, None)
    while order is not None:
        async with child_process(WORKER, leads=False) as process:
            worker = _Worker(assignment, process)
            await worker.begin()
            lost = False
            while order is not None and not lost:
                result, lost = await worker.carry_out(order, limit_s)
                done(result)
                order = next(orders, None)


class _Worker:
    """A process that examines graphs."""

    def __init__(self, assignment: WorkerAssignment, process: ChildProcess) -> None:
        self._assignment = assignment
        self._process = process

    async def begin(self) -> None:
        """Tell it what its orders are about."""
        await self._process.say(msgspec.json.encode(self._assignment))

    async def carry_out(self, order: Order, limit_s: float) -> tuple[OrderResult, bool]:
        """The result of an order, and whether the process was lost over it."""
        await self._process.say(msgspec.json.encode(order))
        with anyio.move_on_after(limit_s):
            line = await self._process.line(_MAX_RESULT_BYTES)
            if line is not None:
                return _results.decode(line), False
            died = f"the process of the device died: {ending(await self._process.ended())}"
            return self._lost(order, "process", died), True
        return self._lost(order, "process", f"no answer within {limit_s:g} s"), True

    def _lost(self, order: Order, check: str, reason: str) -> OrderResult:
        graph = generate(order.size, order.seed, order.kind, self._assignment.menu)
        saved = saved_graph(graph, Path(self._assignment.folder))
        return OrderResult(order, GraphVerdict.FAILED, operation_names(graph), check, reason, saved)
