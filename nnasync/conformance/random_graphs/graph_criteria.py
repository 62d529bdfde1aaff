"""Whether a device's results of a graph are right: the criteria of graphs by size and operation.

Where two devices may rightly differ, nothing is compared but shapes: what RANDOM_MULTINOMIAL draws
need only be classes, and the scratch memory of an LSTM step may hold anything.

A criterion of a class also limits the bias, mean(d), and the mean square, mean(d^2), of the
deviations d, which for floats are divided by max(1, |expected|). What is dequantized or cast from
quantized results of the graph is held to what these may differ by: in steps, not in real numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync import hal
from nnasync._core.accuracy import Criterion, compare
from nnasync.conformance.random_graphs.graph import GraphOperand, RandomGraph
from nnasync.hal import Array, OperandType, Operation, OperationType
from nnasync.kernels import OPERATIONS
from nnasync.kernels.facts import CriterionClass

_SMALL = 5
"""Graphs of more operations than one and up to this are small."""

_CRITERIA: dict[CriterionClass, tuple[tuple[float, float, float], ...]] = {
    CriterionClass.STRICT: ((1e-6, 1e-7, 1e-10), (1e-3, 1e-4, 1e-8), (1, 0.1, 0.1)),
    CriterionClass.MEDIUM: ((1e-5, 1e-6, 1e-8), (1e-2, 1e-3, 1e-5), (2, 1.2, 1.2)),
    CriterionClass.RELAXED: ((1e-3, 3e-5, 1e-6), (1.0, 5e-3, 1e-3), (10, 1.5, 1.5)),
    CriterionClass.CONVOLUTION: ((2e-2, 4e-4, 1e-5), (1.0, 5e-2, 1e-2), (10, 1.5, 1.5)),
    CriterionClass.SMALL_GRAPH: ((1e-2, 4e-4, 1e-5), (1.0, 5e-2, 1e-2), (12, 2, 2)),
    CriterionClass.LARGE_GRAPH: ((1e-1, 1e-2, 1e-4), (1.0, 1e-1, 5e-2), (12, 2, 2)),
}
"""(tolerance, bias, mean square) for float32, float16 and quantized types."""

_WRONG_BOOLEANS = 0.1
_SINGLE = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_HALF = (OperandType.FLOAT16, OperandType.TENSOR_FLOAT16)
_INTEGERS = (OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32)


def criterion_class(graph: RandomGraph) -> CriterionClass:
    """The class of criteria that the results of a graph are held to."""
    if graph.criteria is not None:
        return graph.criteria
    if len(graph.operations) > _SMALL:
        return CriterionClass.LARGE_GRAPH
    if len(graph.operations) > 1:
        return CriterionClass.SMALL_GRAPH
    return OPERATIONS[OperationType(graph.operations[0].type)].facts.criteria


def class_criterion(name: CriterionClass, type: int) -> Criterion:
    """Returns the tolerance for outputs of a type in a class of random graphs."""
    if type in (OperandType.BOOL, OperandType.TENSOR_BOOL8):
        return Criterion(mismatches=_WRONG_BOOLEANS, allows_invalid=True)
    if type in _INTEGERS:
        return Criterion(1, allows_invalid=True)
    single, half, quantized = _CRITERIA[name]
    if type in _SINGLE or type in _HALF:
        tolerance, bias, mse = single if type in _SINGLE else half
        return Criterion(tolerance, tolerance, bias, mse, allows_invalid=True)
    tolerance, bias, mse = quantized
    return Criterion(tolerance, tolerance, bias, mse, allows_invalid=True)


def first_fault(graph: RandomGraph, given: Sequence[Array], expected: Sequence[Array]) -> str:
    """Returns what is wrong with results of a device, empty if nothing is."""
    if len(given) != len(expected):
        return f"{len(given)} outputs, expected {len(expected)}"
    name = criterion_class(graph)
    for position, index in enumerate(graph.outputs):
        fault = _fault(graph, index, name, given[position], expected[position])
        if fault:
            return f"output {position} ({_writer(graph, index)}): {fault}"
    return ""


def _fault(
    graph: RandomGraph, index: int, name: CriterionClass, given: Array, expected: Array
) -> str:
    operation = _operation(graph, index)
    if given.shape != expected.shape:
        return f"has shape {list(given.shape)}, expected {list(expected.shape)}"
    if operation.type == OperationType.LSTM and operation.outputs[0] == index:
        return ""
    if operation.type == OperationType.RANDOM_MULTINOMIAL:
        classes = graph.operands[operation.inputs[0]].shape[1]
        legal = not given.size or (given.min() >= 0 and given.max() < classes)
        return "" if legal else f"has {given.min()} to {given.max()}, there are {classes} classes"
    type = graph.operands[index].type
    if (source := _computed_bytes(graph, operation)) is not None:
        # What may differ by steps may do so where the steps are told in numbers of another type.
        type = source.type
        step = source.scale if operation.type == OperationType.DEQUANTIZE else 1
        with np.errstate(all="ignore"):
            given, expected = (each.astype(np.float64) / step for each in (given, expected))
    return compare(given, expected, type, class_criterion(name, type)).fault


def _computed_bytes(graph: RandomGraph, operation: Operation) -> GraphOperand | None:
    """The quantized result of the graph that this tells in another type; None if it does not."""
    if operation.type not in (OperationType.DEQUANTIZE, OperationType.CAST):
        return None
    source = operation.inputs[0]
    operand = graph.operands[source]
    computed = any(source in each.outputs for each in graph.operations)
    return operand if computed and operand.scale > 0 else None


def difference(graph: RandomGraph, given: Sequence[Array], expected: Sequence[Array]) -> str:
    """Returns where results that must be the very same differ, empty if they do not."""
    for position, index in enumerate(graph.outputs):
        one, other = given[position], expected[position]
        where = f"output {position} ({_writer(graph, index)})"
        if one.shape != other.shape or one.dtype != other.dtype:
            return (
                f"{where} is {one.dtype}{list(one.shape)},"
                f" expected {other.dtype}{list(other.shape)}"
            )
        wrong = ~((one == other) | ((one != one) & (other != other)))
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            return (
                f"{where}: {np.count_nonzero(wrong)} of {one.size} differ, the first at"
                f" {list(at)}: {one[at]}, expected {other[at]}"
            )
    return ""


def _operation(graph: RandomGraph, index: int) -> Operation:
    return next(each for each in graph.operations if index in each.outputs)


def _writer(graph: RandomGraph, index: int) -> str:
    return hal.operation_name(_operation(graph, index).type)
