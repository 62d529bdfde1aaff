"""What engines state of their performance: figures for the types that they take, and no others."""

from __future__ import annotations

import contextlib
import itertools
import math

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers import built_in, is_installed
from nnasync.errors import ModelError
from nnasync.hal import ChannelQuant, Model, OperandType, OperationType
from nnasync.kernels import Tensor

T = OperandType
FLOATS = Tensor(type=T.TENSOR_FLOAT32, shape=(2, 2))
ENGINES = ("litert-cpu", "openvino-cpu", "onnxruntime-cpu")
LOGICAL_AND = OperationType.LOGICAL_AND
PLAIN = (T.TENSOR_FLOAT32, T.TENSOR_FLOAT16, T.TENSOR_INT32, T.TENSOR_BOOL8)
QUANTIZED = (
    T.TENSOR_QUANT8_ASYMM,
    T.TENSOR_QUANT8_ASYMM_SIGNED,
    T.TENSOR_QUANT8_SYMM,
    T.TENSOR_QUANT16_SYMM,
    T.TENSOR_QUANT16_ASYMM,
)


def first_inputs() -> dict[OperandType, list[Model]]:
    """Models of one operation each, by the type of its first input."""
    models: dict[OperandType, list[Model]] = {}
    kinds = (OperationType.CAST, OperationType.DEQUANTIZE, OperationType.ADD, LOGICAL_AND)
    for kind, type in itertools.product(kinds, (*PLAIN, *QUANTIZED)):
        m = nn.ModelBuilder(kind.name)
        x = m.input("x", (2, 2), type=type, scale=0.5 if type in QUANTIZED else 0.0)
        others = {OperationType.ADD: (x, np.int32(0)), LOGICAL_AND: (x,)}.get(kind, ())
        with contextlib.suppress(ModelError):  # Not every operation has every type.
            m.output("y", m.operation(kind, x, *others, output=x if others else FLOATS))
            models.setdefault(type, []).append(m.build())
    m = nn.ModelBuilder("channels")
    scales = ChannelQuant((0.5, 0.25), 0)
    x = m.constant(np.ones((2, 2), np.int8), channel_quant=scales)
    m.output("y", m.operation(OperationType.DEQUANTIZE, x, output=FLOATS))
    models[T.TENSOR_QUANT8_SYMM_PER_CHANNEL] = [m.build()]
    return models


@pytest.fixture(scope="module")
def models() -> dict[OperandType, list[Model]]:
    """As `first_inputs` has them."""
    return first_inputs()


@pytest.mark.parametrize("name", ENGINES)
def test_figures_are_stated_for_what_an_engine_takes(
    name: str, models: dict[OperandType, list[Model]]
) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    engine = built_in(name)
    table = engine.capabilities.operand_performance
    of_files = {T.TENSOR_QUANT16_SYMM, T.TENSOR_QUANT16_ASYMM} if "onnx" in name else set()
    taken = {
        type
        for type, several in models.items()
        if any(all(engine.supported_operations(model)) for model in several)
    }
    assert {T.TENSOR_FLOAT32, T.TENSOR_INT32, T.TENSOR_BOOL8, *QUANTIZED[:2]} <= taken
    assert {entry.type for entry in table} == taken | of_files
    for type in set(OperandType) - taken - of_files:
        assert hal.type_performance(engine.capabilities, type).exec_time == math.inf


@pytest.mark.parametrize("name", ENGINES)
def test_what_engines_do_not_run_has_no_figure(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    figures = built_in(name).capabilities
    assert figures.if_performance == figures.while_performance == hal.PerformanceInfo()
    relaxed = hal.type_performance(figures, T.FLOAT32, relaxed=True)
    assert relaxed == hal.PerformanceInfo()
