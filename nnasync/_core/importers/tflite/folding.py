"""Operators that are computed while the file is read: arithmetic of shapes, and of constants.

Converters of other frameworks write shapes as small networks: SHAPE, STRIDED_SLICE, PACK, RESHAPE.
All of them are computed here with numpy. A dimension that is open is a masked entry, which stays
masked through arithmetic, so that `[batch, 7 * 7]` is known but for its first number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnasync._core.importers.tflite.converter import axis_of, option
from nnasync._core.importers.tflite.strided_slice import part_of
from nnasync._core.importers.tflite.tensor_values import DTYPES, Tensors
from nnasync._core.importers.tflite.tflite_file import OperatorInfo
from nnasync.errors import ModelError
from nnasync.hal import Array

_MOST_ENTRIES = 1 << 22
"""Most numbers that are computed here; more is left to the network."""

_INTEGERS = ("INT32", "INT64", "BOOL")
_FLOATS = ("FLOAT32", "FLOAT16")

Fold = Callable[[OperatorInfo, list[Array]], Any]
"""The output of an operator from its inputs; ValueError, TypeError or IndexError if it is wrong."""


def fold(tensors: Tensors, operator: OperatorInfo) -> bool:
    """Computes an operator's outputs if it can; returns whether. Raises ModelError if it must."""
    if operator.name == "SHAPE":
        return _shape(tensors, operator)
    compute = FOLDS.get(operator.name)
    if compute is None or not _is_plain(tensors, operator):
        return False
    inputs = [tensors.numbers(index) for index in operator.inputs]
    given = [numbers for numbers in inputs if numbers is not None]
    if len(given) < len(inputs) or not given or sum(each.size for each in given) > _MOST_ENTRIES:
        return False
    try:
        with np.errstate(all="ignore"):
            results = compute(operator, given)
    except (IndexError, MemoryError, OverflowError, TypeError, ValueError, ZeroDivisionError) as e:
        raise ModelError(f"cannot be computed: {e}") from e
    outputs = results if isinstance(results, list) else [results]
    if len(outputs) != len(operator.outputs):
        raise ModelError(f"has {len(operator.outputs)} outputs, expected {len(outputs)}")
    for index, output in zip(operator.outputs, outputs, strict=True):
        dtype = DTYPES[tensors.graph.tensors[index].type]
        tensors.numbers_of[index] = np.ma.asarray(output).astype(dtype)
        if not np.ma.is_masked(tensors.numbers_of[index]):
            tensors.numbers_of[index] = np.asarray(output).astype(dtype)
    return True


def may_fold(tensors_type: str, operator: OperatorInfo) -> bool:
    """Returns whether an operator with outputs of a type may turn out to be computed here."""
    return operator.name == "SHAPE" or (operator.name in FOLDS and tensors_type in _INTEGERS)


def _is_plain(tensors: Tensors, operator: OperatorInfo) -> bool:
    """Returns whether an operator is on unquantized numbers, or dequantizes a constant."""
    types = [tensors.graph.tensors[index].type for index in operator.inputs if index >= 0]
    results = [tensors.graph.tensors[index].type for index in operator.outputs]
    if len(types) < len(operator.inputs):
        return False
    if operator.name == "DEQUANTIZE":
        return types == ["FLOAT16"]
    return all(type in (*_INTEGERS, *_FLOATS) for type in (*types, *results))


def _shape(tensors: Tensors, operator: OperatorInfo) -> bool:
    index = operator.inputs[0] if operator.inputs else -1
    info = tensors.graph.tensors[index]
    if not info.shape and not info.open_shape and index not in tensors.numbers_of:
        shape = tensors.required(index).shape
        if shape in ((), (1,)):
            raise ModelError("asks for a shape of which the rank is not known")
    elif index in tensors.numbers_of:
        shape = tensors.numbers_of[index].shape
    else:
        shape = tensors.required(index).shape
    numbers = np.ma.masked_equal(np.asarray(shape, np.int64), 0)
    dtype = DTYPES[tensors.graph.tensors[tensors.result(operator)].type]
    is_open = np.ma.is_masked(numbers)
    tensors.numbers_of[tensors.result(operator)] = (
        numbers.astype(dtype) if is_open else np.asarray(shape, dtype)
    )
    return True


def _integers(array: Array) -> list[int]:
    if np.ma.is_masked(array):
        raise ValueError("depends on an open dimension")
    return [int(n) for n in np.asarray(array).reshape(-1)]


def _sized(shape: list[int]) -> list[int]:
    if any(n < 0 for n in shape) or math.prod(shape) > _MOST_ENTRIES:
        raise ValueError(f"shape {shape} is negative or too large")
    return shape


def _unary(function: Callable[[Array], Any]) -> Fold:
    return lambda operator, inputs: function(inputs[0])


def _binary(function: Callable[[Array, Array], Any]) -> Fold:
    def compute(operator: OperatorInfo, inputs: list[Array]) -> Any:
        if operator.options.get("FusedActivationFunction", 0):
            raise ValueError("has a fused activation")
        _sized(list(np.broadcast_shapes(inputs[0].shape, inputs[1].shape)))
        return function(inputs[0], inputs[1])

    return compute


def _divided(a: Array, b: Array) -> Any:
    if a.dtype.kind == "f":
        return a / b
    return np.sign(a) * np.sign(b) * (abs(a) // abs(b))


def _reduced(function: Callable[..., Any]) -> Fold:
    def compute(operator: OperatorInfo, inputs: list[Array]) -> Any:
        axes = tuple({axis_of(axis, inputs[0].ndim) for axis in _integers(inputs[1])})
        return function(inputs[0], axis=axes, keepdims=bool(option(operator, "KeepDims")))

    return compute


def _reshape(operator: OperatorInfo, inputs: list[Array]) -> Any:
    shape = _integers(inputs[1]) if len(inputs) > 1 else option(operator, "NewShape")
    return inputs[0].reshape(tuple(shape))


def _squeeze(operator: OperatorInfo, inputs: list[Array]) -> Any:
    axes = tuple(option(operator, "SqueezeDims"))
    return inputs[0].squeeze(axes or None)


def _pack(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return np.ma.stack(inputs, axis=option(operator, "Axis"))


def _unpack(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return list(np.ma.asarray(np.moveaxis(inputs[0], option(operator, "Axis"), 0)))


def _concatenation(operator: OperatorInfo, inputs: list[Array]) -> Any:
    join: Any = np.ma.concatenate
    return join(inputs, axis=option(operator, "Axis"))


def _strided_slice(operator: OperatorInfo, inputs: list[Array]) -> Any:
    specification = [_integers(each) for each in inputs[1:4]]
    part = part_of(operator, specification, inputs[0].ndim)
    taken = inputs[0][tuple(slice(*each) for each in part.slices)]
    for axis in reversed(part.dropped):
        taken = np.ma.asarray(taken).take(0, axis=axis)
    for position in part.added:
        taken = np.expand_dims(taken, position)
    return taken


def _slice(operator: OperatorInfo, inputs: list[Array]) -> Any:
    begins, counts = _integers(inputs[1]), _integers(inputs[2])
    return inputs[0][
        tuple(
            slice(begin, None if count < 0 else begin + count)
            for begin, count in zip(begins, counts, strict=True)
        )
    ]


def _gather(operator: OperatorInfo, inputs: list[Array]) -> Any:
    if option(operator, "BatchDims"):
        raise ValueError("gathers in batches")
    _sized([inputs[1].size, inputs[0].size])
    return np.ma.asarray(inputs[0]).take(inputs[1], axis=option(operator, "Axis"))


def _range(operator: OperatorInfo, inputs: list[Array]) -> Any:
    start, limit, delta = (each.reshape(-1)[0] for each in inputs)
    _sized([max(0, math.ceil((float(limit) - float(start)) / float(delta)))])
    return np.arange(start, limit, delta, dtype=inputs[0].dtype)


def _fill(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return np.full(_sized(_integers(inputs[0])), inputs[1].reshape(-1)[0], inputs[1].dtype)


def _broadcast(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return np.broadcast_to(inputs[0], _sized(_integers(inputs[1])))


def _broadcast_arguments(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return np.broadcast_shapes(*(tuple(_sized(_integers(each))) for each in inputs[:2]))


def _tile(operator: OperatorInfo, inputs: list[Array]) -> Any:
    times = _integers(inputs[1])
    _sized([a * b for a, b in zip(inputs[0].shape, times, strict=True)])
    return np.tile(inputs[0], times)


def _select(operator: OperatorInfo, inputs: list[Array]) -> Any:
    condition = inputs[0]
    if operator.name == "SELECT" and 0 < condition.ndim < inputs[1].ndim:
        condition = condition.reshape([-1, *[1] * (inputs[1].ndim - 1)])
    where: Any = np.ma.where
    return where(condition, inputs[1], inputs[2])


def _transpose(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return inputs[0].transpose(_integers(inputs[1]))


def _expand(operator: OperatorInfo, inputs: list[Array]) -> Any:
    return np.expand_dims(inputs[0], _integers(inputs[1])[0])


FOLDS: Mapping[str, Fold] = {
    "ABS": _unary(np.abs),
    "ADD": _binary(np.add),
    "BROADCAST_ARGS": _broadcast_arguments,
    "BROADCAST_TO": _broadcast,
    "CAST": _unary(lambda x: x),
    "CONCATENATION": _concatenation,
    "DEQUANTIZE": _unary(lambda x: x),
    "DIV": _binary(_divided),
    "EQUAL": _binary(np.equal),
    "EXPAND_DIMS": _expand,
    "FILL": _fill,
    "FLOOR_DIV": _binary(np.floor_divide),
    "FLOOR_MOD": _binary(np.mod),
    "GATHER": _gather,
    "GREATER": _binary(np.greater),
    "GREATER_EQUAL": _binary(np.greater_equal),
    "LESS": _binary(np.less),
    "LESS_EQUAL": _binary(np.less_equal),
    "LOGICAL_AND": _binary(np.logical_and),
    "LOGICAL_NOT": _unary(np.logical_not),
    "LOGICAL_OR": _binary(np.logical_or),
    "MAXIMUM": _binary(np.maximum),
    "MINIMUM": _binary(np.minimum),
    "MUL": _binary(np.multiply),
    "NEG": _unary(np.negative),
    "NOT_EQUAL": _binary(np.not_equal),
    "PACK": _pack,
    "RANGE": _range,
    "RANK": _unary(lambda x: np.asarray(x.ndim)),
    "REDUCE_ALL": _reduced(np.all),
    "REDUCE_ANY": _reduced(np.any),
    "REDUCE_MAX": _reduced(np.max),
    "REDUCE_MIN": _reduced(np.min),
    "REDUCE_PROD": _reduced(np.prod),
    "RESHAPE": _reshape,
    "SELECT": _select,
    "SELECT_V2": _select,
    "SLICE": _slice,
    "SQUEEZE": _squeeze,
    "STRIDED_SLICE": _strided_slice,
    "SUB": _binary(np.subtract),
    "SUM": _reduced(np.sum),
    "TILE": _tile,
    "TRANSPOSE": _transpose,
    "UNPACK": _unpack,
    "ZEROS_LIKE": _unary(np.zeros_like),
}
"""What is computed here, on constants and on what was computed before."""
