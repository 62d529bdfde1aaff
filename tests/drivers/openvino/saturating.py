"""Layers whose products of bytes are beyond 16 bits, run by themselves with fewer instructions.

As a program it says what OpenVINO makes of them with the instructions that the environment allows:
a line of JSON with whether the engine's products saturate, and for each layer how far its lowerings
are from the reference, in steps.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.drivers.openvino.saturation import adds_in_16_bits
from nnasync._core.model.graph import Value
from nnasync.engine import Lowering
from nnasync.hal import Array, OperandType, OperationType
from tests.drivers.openvino.rig import FAST, I8, U8, model_of, results

WAYS = ("f32", "int8")
LAYERS = {
    "1x1": (1, U8, 127),
    "3x3": (3, U8, 127),
    "3x3 of signed bytes": (3, I8, 127),
    "by depth": (0, U8, 127),
    "fully connected": (-1, U8, 127),
    "3x3 of small weights": (3, U8, 64),
}


def layer(name: str) -> nn.Model:
    """A layer of 64 channels, whose weights use all of a range, behind one that changes nothing.

    OpenVINO computes with bytes behind a quantization only.
    """
    side, type, largest = LAYERS[name]
    rng = np.random.default_rng(3)
    filter = {-1: (64, 64), 0: (1, 3, 3, 64)}.get(side, (64, side, side, 64))
    numbers = rng.integers(-largest, largest + 1, filter)
    same = 64 * (np.eye(64, dtype=np.int64) if side < 0 else np.ones((1, 1, 1, 64), np.int64))

    def build(m: nn.ModelBuilder) -> Value:
        zero_point = 0 if type == U8 else -128
        shape = (1, 64) if side < 0 else (1, 9, 9, 64)
        x = m.input("x", shape, type=type, scale=0.02, zero_point=zero_point)
        y = _product(m, x, same, scale=0.02, zero_point=zero_point)
        return _product(m, y, numbers, scale=0.02 * _UNIT * 2000, zero_point=zero_point + 128)

    return model_of(build)


_UNIT = 1 / 64


def _product(m: nn.ModelBuilder, x: Value, numbers: Array, **quantization: Any) -> Value:
    """A convolution, by depth where the filter is one, or FULLY_CONNECTED."""
    unsigned = x.tensor.type == U8
    middle = 128 if unsigned else 0
    whole = (numbers + middle).astype(np.uint8 if unsigned else np.int8)
    weights = m.constant(whole, type=U8 if unsigned else I8, scale=_UNIT, zero_point=middle)
    zeros = np.zeros(64, np.int32)
    bias = m.constant(zeros, type=OperandType.TENSOR_INT32, scale=x.tensor.scale * _UNIT)
    given: tuple[int, ...]
    type, given = OperationType.CONV_2D, (1, 1, 1, 0)
    if numbers.ndim == 2:
        type, given = OperationType.FULLY_CONNECTED, (0,)
    elif numbers.shape[0] == 1:
        type, given = OperationType.DEPTHWISE_CONV_2D, (1, 1, 1, 1, 0)
    return m.operation(type, x, weights, bias, *given, **quantization)


def distance(name: str, way: str) -> int:
    """How far a lowering is from the reference on loud inputs, in steps."""
    model = layer(name)
    operand = model.main.operands[model.main.input_indexes[0]]
    limits = np.iinfo(np.uint8 if operand.type == U8 else np.int8)
    rng = np.random.default_rng(4)
    loud = rng.integers(limits.max - 60, limits.max + 1, operand.dimensions)
    inputs = [loud.astype(limits.dtype)]
    (found,) = results(OpenVinoEngine().compile(model, FAST, Lowering(way)), model, inputs)
    (wanted,) = results(ReferenceEngine().compile(model, FAST), model, inputs)
    return int(np.abs(found.astype(int) - wanted.astype(int)).max())


def main() -> None:
    """Print what was found."""
    far = {f"{name}, {way}": distance(name, way) for name in LAYERS for way in WAYS}
    json.dump({"saturates": adds_in_16_bits(), "far": far}, sys.stdout)


if __name__ == "__main__":
    main()
