"""QUANTIZE and DEQUANTIZE where the HAL has them."""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.tflite.converter import PLAIN, Converter, dequantized, refuse_nothing
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import OperatorInfo
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType


def _quantize(tensors: Tensors, operator: OperatorInfo) -> None:
    """To 8 bits from floats, or from 8 bits of another scale."""
    x = tensors.input(operator, 0)
    if x.type != OperandType.TENSOR_FLOAT32:
        x = dequantized(tensors, x)
    tensors.emit(operator, OperationType.QUANTIZE, [x])


def _dequantize(tensors: Tensors, operator: OperatorInfo) -> None:
    """To floats; a float16 constant becomes a float32 constant."""
    index = operator.inputs[0]
    if index < 0 or tensors.graph.tensors[index].type != "FLOAT16":
        tensors.emit(operator, OperationType.DEQUANTIZE, [tensors.input(operator, 0)])
        return
    numbers = tensors.numbers(index)
    if numbers is None:
        raise ModelError("a float16 tensor must be a constant")
    name = tensors.graph.tensors[tensors.result(operator)].name
    tensors.define(operator, tensors.builder.constant(numbers.astype(np.float32), name=name))


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "QUANTIZE": (Converter(PLAIN, _quantize, outputs=("UINT8", "INT8")),),
    "DEQUANTIZE": (
        Converter((("UINT8",), ("INT8",), ("FLOAT16",)), _dequantize, refuse_nothing, ("FLOAT32",)),
    ),
}
