"""Models that branch or find their shapes while they run, on the reference engine."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.cpu.plan import FlexibleCall, ReferenceCall
from nnasync.engine import OutputBuffer, StopFlag
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
    ModelError,
    OutputInsufficientSize,
)
from nnasync.hal import Array, Model, OperandType, OperationType
from nnasync.kernels import Tensor

FAST = hal.ExecutionPreference.FAST_SINGLE_ANSWER
FLOAT = np.dtype(np.float32)


def vector(*values: float) -> Array:
    """One-dimensional float32."""
    return np.array(values, np.float32)


def less(limit: float) -> Any:
    def condition(g: nn.ModelBuilder, x: Any, *rest: Any) -> Any:
        return g.operation(OperationType.LESS, x, vector(limit))

    return condition


def doubling(limit: float) -> Model:
    """Doubles x until it is at least the limit."""
    m = nn.ModelBuilder("doubling")
    x = m.input("x", (1,))
    m.output("y", m.while_loop(less(limit), lambda g, v: g.add(v, v), x))
    return m.build()


def choice() -> Model:
    """x + 1 or x * 3, one element at a time."""
    m = nn.ModelBuilder("choice")
    flag = m.input("flag", (1,), type=OperandType.TENSOR_BOOL8)
    x = m.input("x", (2,))
    m.output(
        "y",
        m.cond(flag, lambda g, v: g.add(v, vector(1)), lambda g, v: g.mul(v, vector(3)), x),
    )
    return m.build()


def run(model: Model, *inputs: Any, stop: StopFlag | None = None) -> list[Array]:
    """The outputs of one run; all of them go to memory that is large enough."""
    plan = ReferenceEngine().compile(model, FAST)
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    outputs = [
        OutputBuffer(np.zeros(4096, np.uint8), hal.dtype_of(each.type), each.dimensions)
        for each in operands
    ]
    arrays = [None if each is None else np.ascontiguousarray(each) for each in inputs]
    assert plan.bind(arrays, outputs).run(stop or StopFlag())
    found = [output.array(output.shape) for output in outputs]
    return [array for array in found if array is not None]


def loose(model: Model) -> Model:
    """The model without the dimensions of inputs, temporaries and outputs."""
    operands = tuple(
        operand
        if hal.is_constant(operand) or hal.is_scalar(operand.type)
        else msgspec.structs.replace(operand, dimensions=(0,) * len(operand.dimensions))
        for operand in model.main.operands
    )
    return msgspec.structs.replace(
        model, main=msgspec.structs.replace(model.main, operands=operands)
    )


def test_a_loop_runs_until_its_condition_is_false() -> None:
    model = doubling(100)
    assert run(model, vector(3))[0].tolist() == [192]
    assert run(model, vector(100))[0].tolist() == [100]


def test_a_branch_is_taken() -> None:
    model, x = choice(), vector(1, 2)
    assert run(model, np.array([True]), x)[0].tolist() == [2, 3]
    assert run(model, np.array([False]), x)[0].tolist() == [3, 6]


def test_any_byte_but_zero_is_true() -> None:
    flag = np.array([2], np.uint8).view(np.bool_)
    assert run(choice(), flag, vector(1, 2))[0].tolist() == [2, 3]


def test_control_flow_nests_and_takes_constants_along() -> None:
    m = nn.ModelBuilder()
    x, step = m.input("x", (1,)), m.input("step", (1,))

    def body(g: Any, value: Any, by: Any) -> Any:
        small = g.operation(OperationType.LESS, value, vector(10))
        return g.cond(small, lambda h, v, s: h.add(v, s), lambda h, v, s: h.mul(v, s), value, by)

    m.output("y", m.while_loop(less(50), body, x, constants=[step]))
    assert run(m.build(), vector(1), vector(3))[0].tolist() == [90]


def test_several_values_of_a_loop() -> None:
    m = nn.ModelBuilder()
    a, b = m.input("a", (1,)), m.input("b", (1,))
    one, other = m.while_loop(less(100), lambda g, x, y: (g.add(x, y), x), a, b)
    m.output("a", one)
    m.output("b", other)
    found = run(m.build(), vector(1), vector(1))
    assert [array.tolist() for array in found] == [[144], [89]]


def test_stopped_anywhere_in_a_loop_it_goes_on() -> None:
    class StopEach(StopFlag):
        looks = 0

        @property
        def raised(self) -> int:
            self.looks += 1
            return self.looks % 2

        @raised.setter
        def raised(self, value: int) -> None:
            pass

    plan = ReferenceEngine().compile(doubling(1000), FAST)
    y = np.zeros(1, np.float32)
    call = plan.bind([vector(1)], [y])
    stops = 0
    stop = StopEach()
    while not call.run(stop):
        stops += 1
    assert y.tolist() == [1024]
    assert stops > 10


def test_rewound_it_starts_again_and_gives_its_memory_back() -> None:
    plan = ReferenceEngine().compile(doubling(1000), FAST)
    x, y = vector(1), np.zeros(1, np.float32)
    call = plan.bind([x], [y])
    assert isinstance(call, FlexibleCall)

    class StopAfter(StopFlag):
        looks = 5

        @property
        def raised(self) -> int:
            self.looks -= 1
            return int(self.looks < 0)

        @raised.setter
        def raised(self, value: int) -> None:
            pass

    assert not call.run(StopAfter())
    call.rewind()
    x[...] = 3
    assert call.run(StopFlag())
    assert y.tolist() == [1536]


def test_a_loop_that_does_not_end_misses_its_timeout() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (1,))
    m.output("y", m.while_loop(less(1), lambda g, v: g.mul(v, v), x))
    stop = StopFlag(loop_timeout_ns=1_000_000)
    with pytest.raises(MissedDeadlineTransient, match=r"WHILE.*more than 0\.001 s"):
        run(m.build(), vector(0), stop=stop)


def test_shapes_of_the_request_settle_all_others() -> None:
    m = nn.ModelBuilder()
    x, y = m.input("x", (0, 3)), m.input("y", (0, 3))
    m.output("sum", m.operation(OperationType.ADD, x, y, 0, output=x))
    plan = ReferenceEngine().compile(m.build(), FAST)
    for rows in (1, 4):
        total = OutputBuffer(np.zeros(100, np.uint8), FLOAT, (0, 3))
        ones = np.ones((rows, 3), np.float32)
        call = plan.bind([ones, ones], [total])
        assert isinstance(call, ReferenceCall)
        assert call.run(StopFlag())
        assert total.shape == (rows, 3)
        result = total.array(total.shape)
        assert result is not None
        assert (result == 2).all()


def test_a_shape_that_is_a_value_of_the_run() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (6,))
    shape = m.input("shape", (2,), type=OperandType.TENSOR_INT32)
    like = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0, 0))
    m.output("y", m.operation(OperationType.RESHAPE, x, shape, output=like))
    model = m.build()
    x_value = np.arange(6, dtype=np.float32)
    assert run(model, x_value, np.array([2, 3], np.int32))[0].shape == (2, 3)
    assert run(model, x_value, np.array([3, -1], np.int32))[0].shape == (3, 2)
    with pytest.raises(GeneralFailure, match="operation 0.*RESHAPE"):
        run(model, x_value, np.array([4, 2], np.int32))


def test_what_does_not_fit_together_fails_when_it_runs() -> None:
    m = nn.ModelBuilder()
    x, y = m.input("x", (0,)), m.input("y", (0,))
    m.output("sum", m.operation(OperationType.ADD, x, y, 0, output=x))
    model = m.build()
    with pytest.raises(GeneralFailure, match=r"operation 0 \(ADD\)"):
        run(model, np.ones(2, np.float32), np.ones(3, np.float32))


def test_a_buffer_that_is_too_small_says_what_is_needed() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (0,))
    m.output("y", m.operation(OperationType.ADD, x, x, 0, output=x))
    plan = ReferenceEngine().compile(m.build(), FAST)
    small = OutputBuffer(np.zeros(11, np.uint8), FLOAT, (0,))
    with pytest.raises(OutputInsufficientSize) as raised:
        plan.bind([np.ones(3, np.float32)], [small]).run(StopFlag())
    assert raised.value.output_shapes == (hal.OutputShape((3,), is_sufficient=False),)


def test_an_empty_tensor_needs_no_work() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (0, 2))
    m.output("y", m.operation(OperationType.ADD, x, x, 0, output=x))
    (found,) = run(m.build(), np.zeros((0, 2), np.float32))
    assert found.shape == (0, 2)


def test_an_omitted_input_that_is_needed() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (2,))
    m.output("y", m.add(x, x))
    with pytest.raises(GeneralFailure, match="must not be omitted"):
        run(m.build(), None)


def test_inputs_that_contradict_the_model_are_refused_at_once() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (0, 3))
    m.output("y", m.operation(OperationType.ADD, x, x, 0, output=x))
    plan = ReferenceEngine().compile(m.build(), FAST)
    with pytest.raises(InvalidArgument, match="input 0 is float32"):
        plan.bind([np.ones((2, 4), np.float32)], [OutputBuffer(np.zeros(99, np.uint8), FLOAT, ())])


def test_branches_that_disagree_are_refused_by_the_builder() -> None:
    m = nn.ModelBuilder()
    x = m.input("x", (1,))
    flag = m.input("flag", (1,), type=OperandType.TENSOR_BOOL8)
    with pytest.raises(ModelError, match="one branch gives 1 outputs, the other 2"):
        m.cond(flag, lambda g, v: g.add(v, v), lambda g, v: (g.add(v, v), g.mul(v, v)), x)
    with pytest.raises(ModelError, match="the body gives 2 values, the loop has 1"):
        m.while_loop(less(1), lambda g, v: (g.add(v, v), g.mul(v, v)), x)


def test_an_operation_inside_a_branch_that_has_no_kernel() -> None:
    model = choice()
    branch = model.referenced[0]
    unknown = msgspec.structs.replace(branch.operations[0], type=int(OperationType.OEM_OPERATION))
    changed = msgspec.structs.replace(branch, operations=(unknown,))
    broken = msgspec.structs.replace(model, referenced=(changed, model.referenced[1]))
    engine = ReferenceEngine()
    assert engine.supported_operations(model) == [True]
    assert engine.supported_operations(broken) == [False]


def test_a_model_without_dimensions_computes_what_it_does_with_them() -> None:
    rng = np.random.default_rng(0)
    m = nn.ModelBuilder()
    x = m.input("x", (1, 8, 8, 3))
    y = m.conv_2d(x, rng.normal(size=(4, 3, 3, 3)).astype(np.float32), np.zeros(4, np.float32))
    m.output("y", m.softmax(m.reshape(y, (1, 256))))
    model = m.build()
    image = rng.normal(size=(1, 8, 8, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(loose(model), image)[0], run(model, image)[0])
