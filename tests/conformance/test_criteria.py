"""What results of random graphs are held to, by the facts about their operations."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from nnasync import hal
from nnasync._core.accuracy import Criterion, compare
from nnasync.conformance.random_graphs import Size, generate, generated_operations
from nnasync.conformance.random_graphs.graph import GraphOperand, Origin, RandomGraph
from nnasync.conformance.random_graphs.graph_criteria import (
    class_criterion,
    criterion_class,
    first_fault,
)
from nnasync.conformance.random_graphs.reference import execute
from nnasync.hal import OperandType, Operation, OperationType
from nnasync.kernels import OPERATIONS
from nnasync.kernels.facts import CriterionClass


def test_share_of_wrong_booleans_is_rounded_up() -> None:
    criterion = class_criterion(CriterionClass.STRICT, OperandType.TENSOR_BOOL8)
    for wrong, agrees in ((0, True), (2, True), (3, False)):
        actual = np.arange(11) < wrong
        agreement = compare(actual, np.zeros(11, np.bool_), OperandType.TENSOR_BOOL8, criterion)
        assert (agreement.fault == "") == agrees


@pytest.mark.parametrize(
    ("name", "type", "tolerance", "bias", "mse"),
    [
        (CriterionClass.STRICT, OperandType.TENSOR_FLOAT32, 1e-6, 1e-7, 1e-10),
        (CriterionClass.MEDIUM, OperandType.TENSOR_FLOAT16, 1e-2, 1e-3, 1e-5),
        (CriterionClass.RELAXED, OperandType.TENSOR_QUANT8_ASYMM_SIGNED, 10, 1.5, 1.5),
        (CriterionClass.LARGE_GRAPH, OperandType.TENSOR_QUANT16_SYMM, 12, 2, 2),
        (CriterionClass.CONVOLUTION, OperandType.TENSOR_FLOAT32, 2e-2, 4e-4, 1e-5),
    ],
)
def test_class_tolerances(
    name: CriterionClass, type: OperandType, tolerance: float, bias: float, mse: float
) -> None:
    expected = Criterion(tolerance, tolerance, bias, mse, allows_invalid=True)
    assert class_criterion(name, type) == expected


def test_integers_may_be_one_off_in_every_class() -> None:
    for name in CriterionClass:
        assert class_criterion(name, OperandType.TENSOR_INT32).atol == 1
        assert class_criterion(name, OperandType.TENSOR_INT32).rtol == 0


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (OperationType.CONV_2D, CriterionClass.CONVOLUTION),
        (OperationType.GATHER, CriterionClass.STRICT),
        (OperationType.ADD, CriterionClass.MEDIUM),
        (OperationType.DIV, CriterionClass.RELAXED),
        (OperationType.LSTM, CriterionClass.RELAXED),
    ],
)
def test_a_graph_of_one_operation_has_its_class(
    operation: OperationType, name: CriterionClass
) -> None:
    graph = generate(Size.SINGLE, generated_operations().index(operation))
    assert [each.type for each in graph.operations] == [operation]
    assert criterion_class(graph) is name


def dequantized(scale: float, *, computed: bool) -> RandomGraph:
    """A product of bytes, or bytes that are given, as real numbers."""
    return converted(OperationType.DEQUANTIZE, OperandType.TENSOR_FLOAT32, scale, computed=computed)


def cast(type: OperandType, *, computed: bool) -> RandomGraph:
    """A product of bytes, or bytes that are given, as numbers of another type."""
    return converted(OperationType.CAST, type, 1 / 128, computed=computed)


def converted(
    operation: OperationType, type: OperandType, scale: float, *, computed: bool
) -> RandomGraph:
    """A product of bytes, or bytes that are given, told in another type."""
    bytes_ = GraphOperand(OperandType.TENSOR_QUANT8_ASYMM, Origin.COMPUTED, (4,), scale)
    given = msgspec.structs.replace(bytes_, origin=Origin.INPUT, value=np.zeros(4, np.uint8))
    operands = (given, bytes_, GraphOperand(type, Origin.COMPUTED, (4,)))
    product = Operation(OperationType.MUL, (0, 0), (1,))
    source = 1 if computed else 0
    return RandomGraph(operands, (product, Operation(operation, (source,), (2,))), (2,))


def test_bytes_that_may_differ_by_steps_may_do_so_dequantized() -> None:
    """By 12 steps in a small graph, one of which may be worth much."""
    expected = np.array([98.79, 0, -65.86, 32.93], np.float32)
    step = np.array([32.93, 0, 0, 0], np.float32)
    computed, given = (dequantized(32.93, computed=each) for each in (True, False))
    assert first_fault(computed, [expected - step], [expected]) == ""
    assert "differ" in first_fault(computed, [expected - 200 * step], [expected])
    assert "differ" in first_fault(given, [expected - step], [expected])


@pytest.mark.parametrize("type", [OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32])
def test_bytes_that_may_differ_by_steps_may_do_so_cast(type: OperandType) -> None:
    """CAST tells the steps themselves, whatever one is worth."""
    dtype = hal.dtype_of(type)
    expected = np.array([70, 0, 110, 255], dtype)
    step = np.array([-1, 1, 0, 0], dtype)
    computed, given = (cast(type, computed=each) for each in (True, False))
    assert first_fault(computed, [expected + 12 * step], [expected]) == ""
    assert "differ" in first_fault(computed, [expected + 13 * step], [expected])
    assert "differ" in first_fault(given, [expected + 2 * step], [expected])


def test_classes_of_graphs_are_no_classes_of_operations() -> None:
    graphs = {CriterionClass.SMALL_GRAPH, CriterionClass.LARGE_GRAPH}
    assert graphs.isdisjoint(operation.facts.criteria for operation in OPERATIONS.values())


@pytest.mark.parametrize(
    "operation", [type for type, each in OPERATIONS.items() if each.facts.non_negative]
)
def test_results_are_as_the_facts_say(operation: OperationType) -> None:
    operations = generated_operations()
    seeds = itertools.count(operations.index(operation), len(operations))
    for seed in itertools.islice(seeds, 10):
        graph = generate(Size.SINGLE, seed)
        for index, values in zip(graph.outputs, execute(graph), strict=True):
            assert not (values < graph.operands[index].zero_point).any()
