"""Carries out orders on one device: generates, examines, shrinks and saves."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from nnasync import hal
from nnasync.conformance.lowerings import InLowering, ways
from nnasync.conformance.random_graphs.examination import Examination, GraphVerdict, examine
from nnasync.conformance.random_graphs.generation import Menu, generate
from nnasync.conformance.random_graphs.graph import RandomGraph, model_of
from nnasync.conformance.random_graphs.graph_criteria import criterion_class
from nnasync.conformance.random_graphs.saved_graphs import save_graph
from nnasync.conformance.random_graphs.shrinking import shrink
from nnasync.conformance.random_graphs.worker_messages import Order, OrderResult
from nnasync.conformance.trial import error_text
from nnasync.device import Device
from nnasync.errors import NNError


class Inspector:
    """Examines graphs on one device, and makes those that fail small."""

    def __init__(
        self,
        device: Device,
        folder: Path,
        menu: Menu | None = None,
        lowering: str | None = None,
    ) -> None:
        self._device = device
        self._folder = folder
        self._menu = menu
        self._lowering = lowering

    async def carry_out(self, order: Order) -> OrderResult:
        """Examine one graph; one that fails is shrunk and saved."""
        try:
            graph = generate(order.size, order.seed, order.kind, self._menu)
        except Exception as error:
            return OrderResult(order, GraphVerdict.FAILED, (), "generation", error_text(error))
        found, device = await self.examined(graph)
        if found.verdict is not GraphVerdict.FAILED:
            return OrderResult(order, found.verdict, operation_names(graph), reason=found.reason)
        small = await self.shrink(graph, found, device)
        return OrderResult(
            order,
            found.verdict,
            operation_names(small),
            found.check,
            found.reason,
            saved_graph(small, self._folder),
        )

    async def examined(self, graph: RandomGraph) -> tuple[Examination, Device]:
        """Returns the worst result of a graph in the wanted lowerings, and the device."""
        found = Examination(GraphVerdict.UNSUPPORTED), self._device
        try:
            devices = await ways(self._device, model_of(graph), self._lowering)
        except NNError:
            devices = [self._device]
        for device in devices:
            now = await examine(graph, device)
            if now.verdict is GraphVerdict.FAILED:
                where = f"in {device.lowering}: " if isinstance(device, InLowering) else ""
                return structs.replace(now, reason=f"{where}{now.reason}"), device
            if found[0].verdict is GraphVerdict.UNSUPPORTED:
                found = now, device
        return found

    async def shrink(
        self, graph: RandomGraph, found: Examination, device: Device | None = None
    ) -> RandomGraph:
        """A smaller graph that fails the same check, on the device or in one of its lowerings."""
        where = device or self._device

        async def fails(smaller: RandomGraph) -> bool:
            again = await examine(smaller, where)
            return (again.verdict, again.check) == (found.verdict, found.check)

        held = structs.replace(graph, criteria=criterion_class(graph))
        return await shrink(held, fails)


def operation_names(graph: RandomGraph) -> tuple[str, ...]:
    """The names of a graph's operations, in order."""
    return tuple(hal.operation_name(each.type) for each in graph.operations)


def saved_graph(graph: RandomGraph, folder: Path) -> str:
    """Save a graph and say where; nowhere if the model is not even legal."""
    try:
        return str(save_graph(graph, folder))
    except (NNError, OSError):
        return ""
