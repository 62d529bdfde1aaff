"""Whether a device's results of a graph are right: the criteria of graphs by size and operation.

Where two devices may rightly differ, nothing is compared but shapes: what RANDOM_MULTINOMIAL draws
need only be classes, and the scratch memory of an LSTM step may hold anything. Operations that the
classes do not cover, recurrent ones and detection, are held to the class "relaxed".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync import hal
from nnasync.accuracy import CriterionClass, class_criterion, class_of, compare
from nnasync.conformance.random_graphs.graph import Graph
from nnasync.hal import Array, HalVersion, Operation, OperationType
from nnasync.kernels import OPERATIONS

__all__ = ["criterion_class", "difference", "first_fault"]

_SMALL = 5
"""Graphs of more operations than one and up to this are small."""


def criterion_class(graph: Graph) -> CriterionClass:
    """The class of criteria that the results of a graph are held to."""
    if graph.criteria is not None:
        return graph.criteria
    if len(graph.operations) > _SMALL:
        return CriterionClass.LARGE_GRAPH
    if len(graph.operations) > 1:
        return CriterionClass.SMALL_GRAPH
    (operation,) = graph.operations
    version = _version(graph, operation)
    return class_of(OperationType(operation.type), version) or CriterionClass.RELAXED


def _version(graph: Graph, operation: Operation) -> HalVersion:
    tensors = [graph.operands[index].tensor for index in operation.inputs]
    outputs = [tensor for index in operation.outputs if (tensor := graph.operands[index].tensor)]
    return OPERATIONS[OperationType(operation.type)].minimum_version(tensors, outputs)


def first_fault(graph: Graph, given: Sequence[Array], expected: Sequence[Array]) -> str:
    """What is wrong with results of a device, empty if nothing is."""
    if len(given) != len(expected):
        return f"{len(given)} outputs, expected {len(expected)}"
    name = criterion_class(graph)
    for position, index in enumerate(graph.outputs):
        fault = _fault(graph, index, name, given[position], expected[position])
        if fault:
            return f"output {position} ({_writer(graph, index)}): {fault}"
    return ""


def _fault(graph: Graph, index: int, name: CriterionClass, given: Array, expected: Array) -> str:
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
    return compare(given, expected, type, class_criterion(name, type)).fault


def difference(graph: Graph, given: Sequence[Array], expected: Sequence[Array]) -> str:
    """Where results that must be the very same differ, empty if they do not."""
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


def _operation(graph: Graph, index: int) -> Operation:
    return next(each for each in graph.operations if index in each.outputs)


def _writer(graph: Graph, index: int) -> str:
    return hal.operation_name(_operation(graph, index).type)
