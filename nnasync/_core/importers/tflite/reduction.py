"""Operators that reduce along axes, order numbers, or normalize."""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.tflite.converter import (
    BOOLEANS,
    FLOATS,
    NUMBERS,
    PLAIN,
    Convert,
    Converter,
    Kinds,
    axis_of,
    define_rescaled,
    option,
    refuse_fused,
)
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import OperatorInfo
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperationType

_T = OperationType
_MOST_ENTRIES = 1 << 20
"""Longest axis that is turned round."""


def _with_axes(kinds: Kinds) -> Kinds:
    return tuple((*kind, "INT32") for kind in kinds)


def _mean(tensors: Tensors, operator: OperatorInfo) -> None:
    x, axes = tensors.input(operator, 0), tensors.input(operator, 1)
    keep_dims = int(bool(option(operator, "KeepDims")))
    y = tensors.builder.operation(_T.MEAN, x, axes, keep_dims, like=x)
    define_rescaled(tensors, operator, y)


def _reduction(type: OperationType) -> Convert:
    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        axes, keep_dims = tensors.input(operator, 1), bool(option(operator, "KeepDims"))
        tensors.emit(operator, type, [tensors.input(operator, 0), axes, keep_dims])

    return convert


def _index_of(type: OperationType) -> Convert:
    """Returns a converter to the index of the largest or smallest number along an axis."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        x, (axis,) = tensors.input(operator, 0), tensors.constant(operator, 1)
        tensors.emit(operator, type, [x, axis_of(axis, len(x.shape))])

    return convert


def _largest(tensors: Tensors, operator: OperatorInfo) -> None:
    """The k largest numbers along the last axis, and where they are.

    Of equal numbers TFLite takes the first and the HAL the last, so the axis is turned round.
    """
    x, (count,) = tensors.input(operator, 0), tensors.constant(operator, 1)
    size, build = x.shape[-1], tensors.builder.operation
    if not 0 < size <= _MOST_ENTRIES:
        raise ModelError(f"orders an axis of {size} entries")
    turned = int32_array(np.arange(size)[::-1])
    y = build(_T.GATHER, x, len(x.shape) - 1, turned, like=x)
    stated = [tensors.described(index) for index in operator.outputs]
    values, places = tensors.builder.operation_outputs(_T.TOPK_V2, y, count, outputs=stated)
    last = int32_array([size - 1])
    tensors.define_all(operator, [values, build(_T.SUB, last, places, 0)])


def _softmax(tensors: Tensors, operator: OperatorInfo) -> None:
    beta = float(option(operator, "Beta"))
    tensors.emit(operator, _T.SOFTMAX, [tensors.input(operator, 0), beta])


def _log_softmax(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.input(operator, 0)
    tensors.emit(operator, _T.LOG_SOFTMAX, [x, 1.0, len(x.shape) - 1])


def _unit_length(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.input(operator, 0)
    tensors.emit(operator, _T.L2_NORMALIZATION, [x, len(x.shape) - 1])


def _local_response(tensors: Tensors, operator: OperatorInfo) -> None:
    options = [float(option(operator, name)) for name in ("Bias", "Alpha", "Beta")]
    inputs = [tensors.input(operator, 0), option(operator, "Radius"), *options]
    tensors.emit(operator, _T.LOCAL_RESPONSE_NORMALIZATION, inputs)


def _reducer(type: OperationType, kinds: Kinds) -> tuple[Converter, ...]:
    return (Converter(_with_axes(kinds), _reduction(type)),)


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "MEAN": (Converter(_with_axes(PLAIN), _mean),),
    "SUM": _reducer(_T.REDUCE_SUM, FLOATS),
    "REDUCE_PROD": _reducer(_T.REDUCE_PROD, FLOATS),
    "REDUCE_MAX": _reducer(_T.REDUCE_MAX, PLAIN),
    "REDUCE_MIN": _reducer(_T.REDUCE_MIN, PLAIN),
    "REDUCE_ANY": _reducer(_T.REDUCE_ANY, BOOLEANS),
    "REDUCE_ALL": _reducer(_T.REDUCE_ALL, BOOLEANS),
    "ARG_MAX": (Converter(_with_axes(NUMBERS), _index_of(_T.ARGMAX), refuse_fused, ("INT32",)),),
    "ARG_MIN": (Converter(_with_axes(NUMBERS), _index_of(_T.ARGMIN), refuse_fused, ("INT32",)),),
    "TOPK_V2": tuple(
        Converter((kind,), _largest, refuse_fused, (kind[0], "INT32"))
        for kind in _with_axes(NUMBERS)
    ),
    "SOFTMAX": (Converter(PLAIN, _softmax),),
    "LOG_SOFTMAX": (Converter(FLOATS, _log_softmax),),
    "L2_NORMALIZATION": (Converter(PLAIN, _unit_length),),
    "LOCAL_RESPONSE_NORMALIZATION": (Converter(FLOATS, _local_response),),
}
