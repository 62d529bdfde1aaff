"""A run of many random graphs, spread over processes that may die or hang.

Each process gets one order at a time. One that dies of it, or does not answer in time, costs that
graph, which is saved as it was generated; another process takes its place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from nnasync.conformance.parallel import ending
from nnasync.conformance.random_graphs.examination import GraphVerdict
from nnasync.conformance.random_graphs.generation import generate
from nnasync.conformance.random_graphs.inspector import operation_names, saved_graph
from nnasync.conformance.random_graphs.worker_messages import Order, OrderResult, WorkerAssignment
from nnasync.errors import GeneralFailure

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
        async with _Worker(assignment) as worker:
            lost = False
            while order is not None and not lost:
                result, lost = await worker.carry_out(order, limit_s)
                done(result)
                order = next(orders, None)


class _Worker:
    """A process that examines graphs; to be used with `async with`."""

    def __init__(self, assignment: WorkerAssignment) -> None:
        self._assignment = assignment

    async def __aenter__(self) -> _Worker:
        self._process = await anyio.open_process(
            [sys.executable, *WORKER], stdout=subprocess.PIPE, stderr=None
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise GeneralFailure("a worker has no standard input or output")
        self._channel: anyio.abc.ByteSendStream = self._process.stdin
        self._lines = BufferedByteReceiveStream(self._process.stdout)
        await self._send(self._assignment)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        with anyio.CancelScope(shield=True):
            await self._process.aclose()

    async def carry_out(self, order: Order, limit_s: float) -> tuple[OrderResult, bool]:
        """The result of an order, and whether the process was lost over it."""
        await self._send(order)
        with anyio.move_on_after(limit_s):
            line = await self._read()
            if line is not None:
                return _results.decode(line), False
            code = await self._process.wait()
            died = f"the process of the device died: {ending(code)}"
            return self._lost(order, "process", died), True
        return self._lost(order, "process", f"no answer within {limit_s:g} s"), True

    async def _send(self, message: WorkerAssignment | Order) -> None:
        try:
            await self._channel.send(msgspec.json.encode(message) + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # It has died; that it does not answer will tell.

    async def _read(self) -> bytes | None:
        try:
            return await self._lines.receive_until(b"\n", _MAX_RESULT_BYTES)
        except (anyio.IncompleteRead, anyio.EndOfStream):
            return None

    def _lost(self, order: Order, check: str, reason: str) -> OrderResult:
        graph = generate(order.size, order.seed, order.kind, self._assignment.menu)
        saved = saved_graph(graph, Path(self._assignment.folder))
        return OrderResult(order, GraphVerdict.FAILED, operation_names(graph), check, reason, saved)
