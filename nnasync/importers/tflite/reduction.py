"""Operators that reduce along axes, order numbers, or normalise."""

from __future__ import annotations

from nnasync.hal import OperationType
from nnasync.importers.tflite.converter import (
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
from nnasync.importers.tflite.reader import OperatorInfo
from nnasync.importers.tflite.tensors import Tensors

__all__ = ["CONVERTERS"]

_T = OperationType


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
    """Where the largest or smallest number is, along an axis."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        x, (axis,) = tensors.input(operator, 0), tensors.constant(operator, 1)
        tensors.emit(operator, type, [x, axis_of(axis, len(x.shape))])

    return convert


def _largest(tensors: Tensors, operator: OperatorInfo) -> None:
    """The k largest numbers along the last axis, and where they are."""
    x, (count,) = tensors.input(operator, 0), tensors.constant(operator, 1)
    stated = [tensors.described(index) for index in operator.outputs]
    values = tensors.builder.operation_outputs(_T.TOPK_V2, x, count, outputs=stated)
    tensors.define_all(operator, values)


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
    return (Converter(_with_axes(kinds), _reduction(type), options="ReducerOptions"),)


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "MEAN": (Converter(_with_axes(PLAIN), _mean, options="ReducerOptions"),),
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
    "SOFTMAX": (Converter(PLAIN, _softmax, options="SoftmaxOptions"),),
    "LOG_SOFTMAX": (Converter(FLOATS, _log_softmax),),
    "L2_NORMALIZATION": (Converter(PLAIN, _unit_length, options="L2NormOptions"),),
    "LOCAL_RESPONSE_NORMALIZATION": (
        Converter(FLOATS, _local_response, options="LocalResponseNormalizationOptions"),
    ),
}
