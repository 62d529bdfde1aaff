"""Operators that the HAL lacks and networks of any format have: org.nnasync.common."""

from __future__ import annotations

from nnasync._core.importers.tflite.converter import (
    FLOATS,
    Converter,
    axis_of,
    dequantized,
    option,
    refuse_nothing,
)
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync.extensions import COMMON, CommonOperation
from nnasync.hal import OperationType


def _type(tensors: Tensors, type: CommonOperation) -> int:
    return tensors.builder.extension_type(COMMON.name, type)


def _batch_matmul(tensors: Tensors, operator: OperatorInfo) -> None:
    """Weights of 8 bits with data of floats become floats."""
    a, b = tensors.input(operator, 0), tensors.weights(operator, 1)
    turned = [bool(option(operator, name)) for name in ("AdjX", "AdjY")]
    tensors.emit(operator, _type(tensors, CommonOperation.BATCH_MATMUL), [a, b, *turned])


def _gelu(tensors: Tensors, operator: OperatorInfo) -> None:
    x, approximate = tensors.input(operator, 0), bool(option(operator, "Approximate"))
    tensors.emit(operator, _type(tensors, CommonOperation.GELU), [x, approximate])


def _gelu_of_bytes(tensors: Tensors, operator: OperatorInfo) -> None:
    """Through floats, as LiteRT fills the table in which it looks results up."""
    x = dequantized(tensors, tensors.input(operator, 0))
    approximate = bool(option(operator, "Approximate"))
    y = tensors.builder.operation(_type(tensors, CommonOperation.GELU), x, approximate)
    tensors.emit(operator, OperationType.QUANTIZE, [y])


def _cumulative_sum(tensors: Tensors, operator: OperatorInfo) -> None:
    x, (axis,) = tensors.input(operator, 0), tensors.constant(operator, 1)
    flags = [bool(option(operator, name)) for name in ("Exclusive", "Reverse")]
    type = _type(tensors, CommonOperation.CUMSUM)
    tensors.emit(operator, type, [x, axis_of(axis, len(x.shape)), *flags])


def _round(tensors: Tensors, operator: OperatorInfo) -> None:
    tensors.emit(operator, _type(tensors, CommonOperation.ROUND), [tensors.input(operator, 0)])


def _refuse_wide(graph: Graph, operator: OperatorInfo) -> str | None:
    """Sums of INT64 need not fit in the HAL's integers."""
    return "of INT64" if graph.tensors[operator.inputs[0]].type == "INT64" else None


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "BATCH_MATMUL": (
        Converter(
            (*FLOATS, ("FLOAT32", "INT8"), ("INT8",)),
            _batch_matmul,
            refuse_nothing,
        ),
    ),
    "CUMSUM": (
        Converter(
            (("FLOAT32", "INT32"), ("INT32",)),
            _cumulative_sum,
            _refuse_wide,
        ),
    ),
    "ROUND": (Converter(FLOATS, _round, refuse_nothing),),
    "GELU": (
        Converter(FLOATS, _gelu, refuse_nothing),
        Converter((("UINT8",), ("INT8",)), _gelu_of_bytes, refuse_nothing),
    ),
}
"""What operations of `extensions.COMMON` take."""
