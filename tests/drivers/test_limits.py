"""What the reference device refuses because an execution would take too much."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.cpu.execution_limits import MAX_NESTING, MAX_OPERATIONS, check_nesting
from nnasync._core.model import Value
from nnasync._core.validation import validate_model
from nnasync.engine import OutputBuffer, StopFlag
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import Model, OperandType, OperationType, Subgraph
from nnasync.kernels import Tensor
from tests.validation.models import BOOL8, operand, reference, subgraph

FAST = hal.ExecutionPreference.FAST_SINGLE_ANSWER
FLOAT = np.dtype(np.float32)
VALUES = 1000


def tower(height: int, width: int = 1) -> Model:
    """`height` levels of branches, each with `width` of the next level one after the other."""
    value = operand(OperandType.TENSOR_FLOAT32, 2)
    relu = (OperationType.RELU, "x", "y")
    lowest = subgraph({"f": operand(BOOL8, 1), "x": value, "y": value}, [relu], "f x", "y")
    levels = [lowest]
    for below in range(height):
        names = ["x", *(f"t{index}" for index in range(1, width)), "y"]
        operands = {"f": operand(BOOL8, 1), "part": reference(below)}
        operations: list[tuple[int, str, str]] = [
            (OperationType.IF, f"f part part f {source}", target)
            for source, target in itertools.pairwise(names)
        ]
        operands |= dict.fromkeys(names, value)
        levels.append(subgraph(operands, operations, "f x", "y"))
    return Model(levels[-1], tuple(levels[:-1]))


def result(engine: ReferenceEngine, model: Model, *inputs: hal.Array) -> hal.Array:
    """The first output of a model."""
    plan = engine.compile(model, FAST)
    output = OutputBuffer(np.zeros(1 << 20, np.uint8), FLOAT, ())
    assert plan.bind(inputs, [output]).run(StopFlag())
    array = output.array(output.shape)
    assert array is not None
    return array


def test_a_tower_of_the_greatest_height_runs() -> None:
    model = tower(MAX_NESTING)
    validate_model(model)
    engine = ReferenceEngine()
    assert engine.supported_operations(model) == [True]
    x = np.array([-1, 2], np.float32)
    assert result(engine, model, np.array([True]), x).tolist() == [0, 2]


@pytest.mark.parametrize("height", [MAX_NESTING + 1, 5000])
def test_a_higher_one_is_refused(height: int) -> None:
    model = tower(height)
    validate_model(model)
    engine = ReferenceEngine()
    assert engine.supported_operations(model) == [False]
    with pytest.raises(ModelError, match=f"nest {height} deep, of at most {MAX_NESTING}"):
        engine.compile(model, FAST)


def test_subgraphs_that_multiply_are_refused() -> None:
    check_nesting(tower(8, width=2))
    model = tower(MAX_NESTING - 1, width=3)
    validate_model(model)
    engine = ReferenceEngine()
    assert engine.supported_operations(model) == [False] * 3
    with pytest.raises(ModelError, match=rf"1.28e\+\d+ operations|of at most {MAX_OPERATIONS}"):
        engine.compile(model, FAST)


def test_a_plan_that_takes_more_memory_than_the_limit() -> None:
    m = nn.ModelBuilder()
    m.output("y", m.relu(m.input("x", (VALUES,))))
    model = m.build()
    x = np.ones(VALUES, np.float32)
    assert result(ReferenceEngine(memory_limit_bytes=3 * x.nbytes + 128), model, x).sum() == VALUES
    with pytest.raises(ModelError, match="of memory, of at most 7000"):
        ReferenceEngine(memory_limit_bytes=7000).compile(model, FAST)


def test_an_operation_that_takes_more_memory_than_the_limit_is_not_supported() -> None:
    m = nn.ModelBuilder()
    x = m.relu(m.input("x", (VALUES,)))
    m.output("y", m.operation(OperationType.TILE, x, np.array([4], np.int32)))
    model = m.build()
    ask = [(2, [False] * 2), (4, [True, False]), (16, [True] * 2)]
    for times, supported in ask:
        engine = ReferenceEngine(memory_limit_bytes=times * VALUES)
        assert engine.supported_operations(model) == supported


def keeping(count: int) -> Model:
    """Copies of an input of unknown size that all live to the end."""
    m = nn.ModelBuilder()
    x, size = m.input("x", (0,)), m.input("size", (1,), type=OperandType.TENSOR_INT32)
    like = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0,))
    copies = [m.operation(OperationType.TILE, x, size, output=like) for _ in range(count)]
    total = copies[0]
    for copy in copies[1:]:
        total = m.operation(OperationType.ADD, total, copy, 0, output=like)
    m.output("y", total)
    return m.build()


def test_what_a_run_keeps_counts_together() -> None:
    x, size = np.ones(VALUES, np.float32), np.array([2], np.int32)
    engine = ReferenceEngine(memory_limit_bytes=10 * 2 * x.nbytes)
    assert result(engine, keeping(8), x, size).tolist() == [8] * 2 * VALUES
    with pytest.raises(GeneralFailure, match="TILE.* bytes of memory"):
        result(engine, keeping(12), x, size)


def test_what_a_loop_carries_counts_too() -> None:
    def body(g: nn.ModelBuilder, x: Value, size: Value) -> list[Value]:
        like = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0,))
        return [g.operation(OperationType.TILE, x, size, output=like)]

    def forever(g: nn.ModelBuilder, x: Value, size: Value) -> Value:
        return g.operation(OperationType.EQUAL, size, size)

    m = nn.ModelBuilder()
    x, size = m.input("x", (0,)), m.input("size", (1,), type=OperandType.TENSOR_INT32)
    m.output("y", m.while_loop(forever, body, x, constants=[size]))
    engine = ReferenceEngine(memory_limit_bytes=1 << 20)
    with pytest.raises(GeneralFailure, match="bytes of memory, of at most 1048576"):
        result(engine, m.build(), np.ones(1, np.float32), np.array([2], np.int32))


def test_an_output_of_another_shape_than_the_request_states_is_refused() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (0,))
    m.output("y", m.operation(OperationType.RELU, x, output=x))
    plan = ReferenceEngine().compile(m.build(), FAST)
    x_value = np.ones(3, np.float32)
    with pytest.raises(InvalidArgument, match=r"output 0 is \[3\], expected \[4\]"):
        plan.bind([x_value], [np.zeros(4, np.float32)])
    with pytest.raises(InvalidArgument, match=r"output 0 is \[3\], expected \[2\]"):
        plan.bind([x_value], [OutputBuffer(np.zeros(64, np.uint8), FLOAT, (2,))])


def test_no_subgraph_at_all_nests_nowhere() -> None:
    check_nesting(Model(Subgraph((), (), (), ())))
