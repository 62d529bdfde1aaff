"""What operations are expected to take, before anybody has measured them.

The work of an operation is its multiply-adds, or the elements that it reads and writes where those
are more. `operation_weights_ns` turns work into time: with the time of the whole model, once that
is measured, it shares it out; without, it takes a core of today.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from nnasync import hal
from nnasync._core.partition.control_flow import ROLES
from nnasync._core.validation import find_operation
from nnasync.hal import (
    Capabilities,
    ExecutionPreference,
    Model,
    Operand,
    Operation,
    OperationType,
    PerformanceInfo,
    Subgraph,
)
from nnasync.hal.performance import inner_first, referred

_NS_PER_UNIT = 0.05
"""Of work: 20 multiply-adds a nanosecond."""
_NS_PER_OPERATION = 500.0
"""Whatever the operation does."""
_TURNS = 3
"""So often a WHILE is expected to go round."""


def multiply_adds(model: Model) -> tuple[int, ...]:
    """Returns the multiply-adds of each operation of the main subgraph, at least 1.

    An IF counts its longer branch, a WHILE one turn. Unknown dimensions count as 1.
    """
    inner: dict[int, int] = {}
    for index in inner_first(model):
        subgraph = model.referenced[index]
        inner[index] = sum(_work(model, subgraph, each, inner) for each in subgraph.operations)
    return tuple(_work(model, model.main, each, inner) for each in model.main.operations)


def operation_weights_ns(model: Model, total_ns: float | None = None) -> tuple[float, ...]:
    """Returns the nanoseconds that each operation of the main subgraph is expected to take.

    With `total_ns`, the measured time of the whole model, the weights come to that.
    """
    weights = [_weight(work) for work in multiply_adds(model)]
    factor = 1.0 if total_ns is None else total_ns / sum(weights)
    return tuple(weight * factor for weight in weights)


def reported_costs(
    model: Model,
    capabilities: Sequence[Capabilities],
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
) -> tuple[tuple[float, ...], ...]:
    """Returns costs by what devices report: a row for each device, an entry for each operation.

    They are nanoseconds as a device of figures 1.0 would take; with LOW_POWER the figures are those
    of power. A figure that is not stated is infinity. Of an IF or a WHILE it is the cost of the
    device that takes all of it, by `control_flow_cost`.
    """
    works: dict[int, int] = {}
    inner: list[dict[int, float]] = [{} for _ in capabilities]
    for number in inner_first(model):
        subgraph = model.referenced[number]
        rows = _costs(model, subgraph, capabilities, preference, works, inner)
        works[number] = sum(_work(model, subgraph, each, works) for each in subgraph.operations)
        for known, row in zip(inner, rows, strict=True):
            known[number] = sum(row)
    return _costs(model, model.main, capabilities, preference, works, inner)


def control_flow_cost(type: int, own: float, bodies: Sequence[float]) -> float:
    """Returns the cost of an IF or a WHILE, from its own and those of its two subgraphs.

    An IF takes the mean of its branches, a WHILE three turns of condition and body.
    """
    return own + (0.5 if type == OperationType.IF else _TURNS) * sum(bodies)


def _costs(
    model: Model,
    subgraph: Subgraph,
    capabilities: Sequence[Capabilities],
    preference: ExecutionPreference,
    works: Mapping[int, int],
    inner: Sequence[Mapping[int, float]],
) -> tuple[tuple[float, ...], ...]:
    """Returns the costs of one subgraph; `inner` has those of subgraphs that it refers to."""
    weights = [_weight(_work(model, subgraph, each, works)) for each in subgraph.operations]
    return tuple(
        tuple(
            control_flow_cost(
                operation.type,
                _NS_PER_OPERATION * _flow_figure(figures, operation, preference),
                [known[number] for number in referred(subgraph, operation)],
            )
            if operation.type in ROLES
            else weight * _figure(figures, model, subgraph, operation, preference)
            for weight, operation in zip(weights, subgraph.operations, strict=True)
        )
        for figures, known in zip(capabilities, inner, strict=True)
    )


def _weight(work: int) -> float:
    return _NS_PER_OPERATION + _NS_PER_UNIT * work


def _figure(
    capabilities: Capabilities,
    model: Model,
    subgraph: Subgraph,
    operation: Operation,
    preference: ExecutionPreference,
) -> float:
    info = hal.operation_performance(capabilities, model, operation, subgraph)
    return _preferred(info, preference)


def _flow_figure(
    capabilities: Capabilities, operation: Operation, preference: ExecutionPreference
) -> float:
    branches = operation.type == OperationType.IF
    info = capabilities.if_performance if branches else capabilities.while_performance
    return _preferred(info, preference)


def _preferred(info: PerformanceInfo, preference: ExecutionPreference) -> float:
    low_power = preference == ExecutionPreference.LOW_POWER
    return info.power_usage if low_power else info.exec_time


def _work(model: Model, subgraph: Subgraph, operation: Operation, inner: Mapping[int, int]) -> int:
    inputs = [subgraph.operands[index] for index in operation.inputs]
    outputs = [subgraph.operands[index] for index in operation.outputs]
    if operation.type in (OperationType.IF, OperationType.WHILE):
        works = [inner[each.location.offset] for each in inputs if _is_subgraph(each)]
        return max(1, max(works) if operation.type == OperationType.IF else sum(works))
    known = find_operation(model, operation.type)
    count = None if known is None else known.facts.multiply_adds
    shapes = [each.dimensions for each in inputs]
    products = 0 if count is None else count(shapes, outputs[0].dimensions)
    return max(1, products, sum(map(_size, inputs)) + sum(map(_size, outputs)))


def _is_subgraph(operand: Operand) -> bool:
    return operand.lifetime == hal.OperandLifeTime.SUBGRAPH


def _size(operand: Operand) -> int:
    """Returns the number of elements, with unknown dimensions left out."""
    return math.prod(n for n in operand.dimensions if n)
