"""Models run on LiteRT and on the reference device, and their results compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.accuracy import Criterion, compare, golden_criterion
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.litert.litert_programs import has_products
from nnasync._core.model import Value
from nnasync.engine import Lowering, StopFlag
from nnasync.hal import Array, ExecutionPreference, Model, OperandType

__all__ = [
    "BUILTIN",
    "PRODUCTS",
    "REAL",
    "SIGNED",
    "SUSTAINED",
    "UNSIGNED",
    "XNNPACK",
    "agree",
    "empty",
    "need_litert",
    "plan",
    "sample",
    "tensor",
]

REAL, UNSIGNED, SIGNED = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
)
SUSTAINED = ExecutionPreference.SUSTAINED_SPEED
XNNPACK, BUILTIN = Lowering("xnnpack"), Lowering("builtin", is_exact=True)
PRODUCTS = Lowering("xnnpack-products")


def need_litert() -> None:
    """Skip a module where the engine is not installed."""
    pytest.importorskip(
        "ai_edge_litert", reason="needs ai-edge-litert: pip install 'nnasync[litert]'"
    )


def tensor(builder: nn.ModelBuilder, name: str, shape: hal.Shape, type: OperandType) -> Value:
    """An input; quantized ones have scale 0.1 and the middle as zero point."""
    if type in (UNSIGNED, SIGNED):
        zero_point = 128 if type == UNSIGNED else 0
        return builder.input(name, shape, type=type, scale=0.1, zero_point=zero_point)
    return builder.input(name, shape, type=type)


def sample(operand: hal.Operand, seed: int = 0) -> Array:
    """Values for an input, the same each time."""
    random = np.random.default_rng(seed)
    dtype = hal.dtype_of(operand.type)
    if dtype.kind == "f":
        return random.uniform(0.1, 2, operand.dimensions).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, operand.dimensions).astype(dtype)
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max + 1) if dtype.itemsize == 1 else (-100, 100)
    return random.integers(low, high, operand.dimensions, dtype)


def empty(operand: hal.Operand) -> Array:
    return np.zeros(operand.dimensions, hal.dtype_of(operand.type))


def plan(model: Model, lowering: Lowering = XNNPACK) -> Any:
    engine = LiteRTEngine()
    assert all(engine.supported_operations(model))
    return engine.compile(model, SUSTAINED, lowering)


def agree(
    model: Model,
    inputs: Sequence[Array] | None = None,
    criterion: Criterion | None = None,
    lowerings: Sequence[Lowering] = (XNNPACK, BUILTIN),
) -> list[Array]:
    """Run a model in each way; its results must be those of the reference. Returns these."""
    main = model.main
    ins = [main.operands[index] for index in main.input_indexes]
    outs = [main.operands[index] for index in main.output_indexes]
    given = inputs or [sample(operand, seed) for seed, operand in enumerate(ins)]
    expected = [empty(operand) for operand in outs]
    assert ReferenceEngine().compile(model, SUSTAINED).bind(given, expected).run(StopFlag())
    ways = [*lowerings, PRODUCTS] if has_products(model) else lowerings
    for lowering in ways:
        found = [empty(operand) for operand in outs]
        assert plan(model, lowering).bind(given, found).run(StopFlag())
        for operand, got, wanted in zip(outs, found, expected, strict=True):
            half = any(each.type == OperandType.TENSOR_FLOAT16 for each in main.operands)
            limits = criterion or golden_criterion(operand.type, half=half)
            assert compare(got, wanted, operand.type, limits).fault == "", lowering.name
    return expected
