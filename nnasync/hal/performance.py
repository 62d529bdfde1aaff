"""Performance figures: looking them up, those of whole operations, those of older HAL versions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nnasync._core.deferred import deferred
from nnasync.hal.enums import OperandType
from nnasync.hal.structs import (
    Capabilities,
    Model,
    OperandPerformance,
    Operation,
    PerformanceInfo,
    Struct,
    Subgraph,
)

if TYPE_CHECKING:
    import bisect

    from nnasync.hal import operations
else:
    bisect = deferred("bisect")
    operations = deferred("nnasync.hal.operations")

_NOT_RATED = (OperandType.SUBGRAPH,)
_RELAXED = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)


class Capabilities10(Struct):
    """Performance figures as a device of HAL 1.0 states them."""

    float32_performance: PerformanceInfo
    quantized8_performance: PerformanceInfo


class Capabilities11(Struct):
    """Performance figures as a device of HAL 1.1 states them."""

    float32_performance: PerformanceInfo
    quantized8_performance: PerformanceInfo
    relaxed_float32_to_float16_performance: PerformanceInfo


class Capabilities12(Struct):
    """Performance figures as a device of HAL 1.2 states them."""

    relaxed_float32_to_float16_performance_scalar: PerformanceInfo
    relaxed_float32_to_float16_performance_tensor: PerformanceInfo
    operand_performance: tuple[OperandPerformance, ...]


def lookup(operand_performance: Sequence[OperandPerformance], type: int) -> PerformanceInfo:
    """The figures of a type in a sorted table; infinities for a type that the table lacks.

    That is the HAL's text. (Android's own runtime answers with the next larger type that is there.)
    """
    index = bisect.bisect_left(operand_performance, type, key=_type_of)
    if index == len(operand_performance) or operand_performance[index].type != type:
        return PerformanceInfo()
    return operand_performance[index].info


def update(
    operand_performance: Sequence[OperandPerformance], type: OperandType, info: PerformanceInfo
) -> tuple[OperandPerformance, ...]:
    """The table with the figures of one type set, still sorted."""
    others = [entry for entry in operand_performance if entry.type != type]
    return tuple(sorted([*others, OperandPerformance(type, info)], key=_type_of))


def uniform_performance(
    info: PerformanceInfo, types: Iterable[OperandType] = OperandType
) -> tuple[OperandPerformance, ...]:
    """A table that gives each of the types the same figures; SUBGRAPH never has any."""
    rated = sorted(type for type in types if type not in _NOT_RATED)
    return tuple(OperandPerformance(type, info) for type in rated)


def type_performance(
    capabilities: Capabilities | Capabilities12, type: int, *, relaxed: bool = False
) -> PerformanceInfo:
    """The figures for operations whose first input has this type.

    `relaxed` is the model's `relax_computation_float32_to_float16`.
    """
    if relaxed and type in _RELAXED:
        if type == OperandType.FLOAT32:
            return capabilities.relaxed_float32_to_float16_performance_scalar
        return capabilities.relaxed_float32_to_float16_performance_tensor
    return lookup(capabilities.operand_performance, type)


def operation_performance(
    capabilities: Capabilities,
    model: Model,
    operation: Operation,
    subgraph: Subgraph | None = None,
) -> PerformanceInfo:
    """The figures of an operation of a legal model, of its main subgraph if no other is named.

    They are those of its first input's type. An IF adds the mean of its branches, a WHILE its
    condition and its body, once; a subgraph counts as the sum of its operations.
    """
    place = subgraph or model.main
    known: dict[int, PerformanceInfo] = {}
    for index in inner_first(model, referred(place, operation)):
        inner = model.referenced[index]
        known[index] = _sum(
            _rate(capabilities, model, inner, operation, known) for operation in inner.operations
        )
    return _rate(capabilities, model, place, operation, known)


def subgraph_performance(
    capabilities: Capabilities, model: Model, subgraph: Subgraph
) -> PerformanceInfo:
    """The sum of the figures of a subgraph's operations."""
    return _sum(
        operation_performance(capabilities, model, operation, subgraph)
        for operation in subgraph.operations
    )


def _type_of(entry: OperandPerformance) -> int:
    return entry.type


def _sum(infos: Iterable[PerformanceInfo]) -> PerformanceInfo:
    exec_time = power_usage = 0.0
    for info in infos:
        exec_time += info.exec_time
        power_usage += info.power_usage
    return PerformanceInfo(exec_time, power_usage)


@functools.cache
def _referring() -> dict[int, tuple[int, int]]:
    known = operations.OperationType
    return {known.IF: (1, 2), known.WHILE: (0, 1)}


def referred(subgraph: Subgraph, operation: Operation) -> list[int]:
    """Indices of the two subgraphs that an IF or a WHILE runs; none of other operations."""
    positions = _referring().get(operation.type, ())
    return [subgraph.operands[operation.inputs[p]].location.offset for p in positions]


def inner_first(model: Model, roots: Iterable[int] | None = None) -> list[int]:
    """The referenced subgraphs, or those reached from `roots`, each after those it refers to."""
    order: dict[int, None] = {}
    path = list(range(len(model.referenced)) if roots is None else roots)
    while path:
        index = path[-1]
        inner = model.referenced[index]
        missing = [
            target
            for operation in inner.operations
            for target in referred(inner, operation)
            if target not in order
        ]
        if missing:
            path += missing
        else:
            order[path.pop()] = None
    return list(order)


def _rate(
    capabilities: Capabilities,
    model: Model,
    subgraph: Subgraph,
    operation: Operation,
    known: dict[int, PerformanceInfo],
) -> PerformanceInfo:
    inner = [known[index] for index in referred(subgraph, operation)]
    if operation.type == operations.OperationType.IF:
        both = _sum(inner)
        mean = PerformanceInfo(both.exec_time / 2, both.power_usage / 2)
        return _sum([capabilities.if_performance, mean])
    if operation.type == operations.OperationType.WHILE:
        return _sum([capabilities.while_performance, *inner])
    if not operation.inputs:
        return PerformanceInfo(1.0, 1.0)
    type = subgraph.operands[operation.inputs[0]].type
    relaxed = model.relax_computation_float32_to_float16
    return type_performance(capabilities, type, relaxed=relaxed)
