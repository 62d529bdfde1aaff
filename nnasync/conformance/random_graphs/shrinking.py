"""Making a failing graph small: fewer operations, then smaller operands, as long as it still fails.

An operation is cut out by giving what it computed, on the reference, as inputs. First each
operation is tried alone; where none fails alone, operations are removed in halves, then one by one.
Dimensions shrink by cutting the values of inputs and constants: all dimensions of one size at once,
then each by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import msgspec

from nnasync import hal
from nnasync.conformance.random_graphs.graph import GraphOperand, Origin, RandomGraph
from nnasync.conformance.random_graphs.reference import evaluate_as_far_as_possible
from nnasync.errors import ModelError
from nnasync.hal import Array, ChannelQuant, OperationType
from nnasync.kernels import OPERATIONS

Fails = Callable[[RandomGraph], Awaitable[bool]]
"""Whether a graph still fails in the way that is looked into."""

_ATTEMPTS = 400


class _Budget:
    """Tries graphs until so many were tried."""

    def __init__(self, fails: Fails, attempts: int) -> None:
        self._fails = fails
        self._left = attempts

    async def fails(self, graph: RandomGraph | None) -> bool:
        """Returns whether the graph fails; False for no graph and once the budget is used up."""
        if graph is None or self._left <= 0:
            return False
        self._left -= 1
        return await self._fails(graph)


async def shrink(graph: RandomGraph, fails: Fails, attempts: int = _ATTEMPTS) -> RandomGraph:
    """A smaller graph that fails too, or the same one; tries at most so many graphs."""
    budget = _Budget(fails, attempts)
    return await _with_smaller_operands(await _with_fewer_operations(graph, budget), budget)


# -- operations


async def _with_fewer_operations(graph: RandomGraph, budget: _Budget) -> RandomGraph:
    values = evaluate_as_far_as_possible(graph)
    everything = list(range(len(graph.operations)))
    if len(everything) == 1:
        return graph
    for place in everything:
        alone = _part(graph, [place], values)
        if await budget.fails(alone) and alone is not None:
            return alone
    kept = await _fewest(graph, everything, values, budget)
    return _part(graph, kept, values) or graph


async def _fewest(
    graph: RandomGraph, places: list[int], values: Sequence[Array | None], budget: _Budget
) -> list[int]:
    """The places of operations that are left when no more can be removed."""
    step = len(places) // 2
    while step:
        begin = 0
        while begin < len(places):
            rest = places[:begin] + places[begin + step :]
            if rest and await budget.fails(_part(graph, rest, values)):
                places = rest
            else:
                begin += step
        step //= 2
    return places


def _part(
    graph: RandomGraph, places: Sequence[int], values: Sequence[Array | None]
) -> RandomGraph | None:
    """Returns a graph of some operations, with other results as inputs; None if unknown."""
    operations = tuple(graph.operations[place] for place in places)
    made = {index for each in operations for index in each.outputs}
    read = {index for each in operations for index in each.inputs}
    changed = {}
    for index in read - made:
        operand = graph.operands[index]
        if operand.origin is Origin.COMPUTED:
            value = values[index]
            if value is None:
                return None
            changed[index] = msgspec.structs.replace(
                operand, origin=Origin.INPUT, shape=value.shape, value=value
            )
    outputs = tuple(
        index
        for each in operations
        for index in each.outputs
        if index in graph.outputs or index not in read
    )
    part = msgspec.structs.replace(
        graph.with_operands(changed), operations=operations, outputs=outputs
    )
    return _with_an_input(part.pruned())


def _with_an_input(graph: RandomGraph) -> RandomGraph | None:
    """The graph with a constant as an input, if it has none."""
    if graph.inputs:
        return graph
    for index, operand in enumerate(graph.operands):
        if operand.origin is Origin.CONSTANT and not hal.is_scalar(operand.type):
            changed = msgspec.structs.replace(operand, origin=Origin.INPUT)
            return graph.with_operands({index: changed})
    return None


# -- operands


async def _with_smaller_operands(graph: RandomGraph, budget: _Budget) -> RandomGraph:
    progress = True
    while progress:
        progress = False
        for axes in _groups(graph):
            smaller = await _with_smaller_dimensions(graph, axes, budget)
            if smaller is not graph:
                graph, progress = smaller, True
                break
    return graph


async def _with_smaller_dimensions(
    graph: RandomGraph, axes: Sequence[tuple[int, int]], budget: _Budget
) -> RandomGraph:
    """The graph with these dimensions of leaves cut as far as it fails: to 1, or by halves."""
    index, axis = axes[0]
    size = graph.operands[index].shape[axis]
    for shorter in dict.fromkeys((1, size // 2, size - 1)):
        cut = _cut(graph, axes, shorter)
        if await budget.fails(cut) and cut is not None:
            return cut
    return graph


def _groups(graph: RandomGraph) -> Iterator[list[tuple[int, int]]]:
    """Dimensions of leaves to cut together, as (operand, axis)."""
    by_size: dict[int, list[tuple[int, int]]] = {}
    for index, operand in enumerate(graph.operands):
        if operand.value is not None:
            for axis, size in enumerate(operand.shape):
                if size > 1:
                    by_size.setdefault(size, []).append((index, axis))
    groups = [by_size[size] for size in sorted(by_size, reverse=True)]
    yield from groups
    for group in groups:
        if len(group) > 1:
            yield from ([each] for each in group)


def _cut(graph: RandomGraph, axes: Iterable[tuple[int, int]], size: int) -> RandomGraph | None:
    """The graph with dimensions of leaves cut to a size; None where the operations refuse that."""
    changed: dict[int, GraphOperand] = {}
    for index, axis in axes:
        changed[index] = _cut_operand(changed.get(index, graph.operands[index]), axis, size)
    return _with_shapes(graph.with_operands(changed))


def _cut_operand(operand: GraphOperand, axis: int, size: int) -> GraphOperand:
    if operand.value is None:
        return operand
    value = operand.value[(slice(None),) * axis + (slice(size),)].copy()
    quant = operand.channel_quant
    if quant is not None and quant.channel_dim == axis:
        quant = ChannelQuant(quant.scales[:size], axis)
    return msgspec.structs.replace(operand, shape=value.shape, value=value, channel_quant=quant)


def _with_shapes(graph: RandomGraph) -> RandomGraph | None:
    """The graph with the shapes of what is computed as the operations' rules give them."""
    operands = list(graph.operands)
    for operation in graph.operations:
        rule = OPERATIONS[OperationType(operation.type)]
        types = [operands[index].type for index in operation.outputs]
        try:
            results = rule.infer([operands[index].tensor for index in operation.inputs], types)
        except ModelError:
            return None
        for index, result in zip(operation.outputs, results, strict=True):
            before = operands[index]
            if result.is_known and 0 not in before.shape:
                operands[index] = msgspec.structs.replace(before, shape=result.shape)
    return msgspec.structs.replace(graph, operands=tuple(operands))
