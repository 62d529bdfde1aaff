"""Small models on OpenVINO and on the reference, with the same random inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino.plan import OpenVinoPlan
from nnasync._core.model.graph import Value
from nnasync._core.workers import StopFlag
from nnasync.engine import Lowering, Plan
from nnasync.hal import Array, ExecutionPreference, OperandType, OperationType

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
F32, F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
U8, I8 = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
QUANTIZATION = {U8: (0.05, 121), I8: (0.05, -7)}
PRECISE = Lowering("f32")


def given(m: nn.ModelBuilder, type: OperandType, *shape: int, name: str = "x") -> Value:
    """An input of a type with a usual scale."""
    scale, zero_point = QUANTIZATION.get(type, (0.0, 0))
    return m.input(name, shape, type=type, scale=scale, zero_point=zero_point)


def model_of(build: Callable[[nn.ModelBuilder], Value | Sequence[Value]]) -> nn.Model:
    """A model whose outputs a function builds."""
    m = nn.ModelBuilder()
    built = build(m)
    for number, value in enumerate([built] if isinstance(built, Value) else built):
        m.output(f"y{number}", value)
    return m.build()


def random_inputs(model: nn.Model, seed: int = 0) -> list[Array]:
    """Values for all inputs of a model."""
    rng = np.random.default_rng(seed)
    values = []
    for index in model.main.input_indexes:
        operand = model.main.operands[index]
        dtype = hal.dtype_of(operand.type)
        if dtype.kind == "f":
            values.append(rng.normal(size=operand.dimensions).astype(dtype))
        elif dtype.kind == "b":
            values.append(rng.integers(0, 2, operand.dimensions).astype(dtype))
        else:
            low, high = (-9, 10) if dtype == np.int32 else (np.iinfo(dtype).min, 128)
            values.append(rng.integers(low, high, operand.dimensions).astype(dtype))
    return values


def blank_outputs(model: nn.Model) -> list[Array]:
    """Memory for all outputs, filled with what no run leaves."""
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    return [np.full(each.dimensions, 77, hal.dtype_of(each.type)) for each in operands]


def results(plan: Plan, model: nn.Model, inputs: Sequence[Array]) -> list[Array]:
    """What a plan computes."""
    outputs = blank_outputs(model)
    assert plan.bind(inputs, outputs).run(StopFlag())
    return outputs


def check(
    model: nn.Model, *, lowering: Lowering = PRECISE, steps: int = 1, rtol: float = 1e-5
) -> None:
    """Every operation is taken, and the results are the reference's: bytes but for some steps."""
    engine = OpenVinoEngine()
    assert all(engine.supported_operations(model))
    inputs = random_inputs(model)
    got = results(engine.compile(model, FAST, lowering), model, inputs)
    wanted = results(ReferenceEngine().compile(model, FAST), model, inputs)
    for one, other in zip(got, wanted, strict=True):
        if one.dtype.kind == "f":
            slack = rtol if one.dtype == np.float32 else max(rtol, 5e-3)
            np.testing.assert_allclose(one, other, rtol=slack, atol=slack)
        else:
            tolerated = steps if one.dtype.itemsize == 1 and one.dtype.kind != "b" else 0
            difference = np.abs(one.astype(np.int64) - other.astype(np.int64))
            assert difference.max() <= tolerated


def product(m: nn.ModelBuilder) -> Value:
    """A product with constant weights."""
    x = given(m, F32, 2, 3)
    weights = m.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    zeros = m.constant(np.zeros(4, np.float32))
    return m.operation(OperationType.FULLY_CONNECTED, x, weights, zeros, 0)


def compiled_product() -> OpenVinoPlan:
    """A small network that is compiled for two cores, on one thread."""
    engine = OpenVinoEngine()
    engine.cores = 2
    return engine.compile(model_of(product), FAST, PRECISE)
