"""Operators that only move numbers: shapes, parts, joins, orders."""

from __future__ import annotations

from collections.abc import Callable

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
    option,
    refuse_fused,
    target_of,
)
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import Value
from nnasync._core.model.broadcasting import broadcast, moved, reshape_to
from nnasync._core.model.graph import Input, int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Shape

_T = OperationType
_ANY: Kinds = (*NUMBERS, *BOOLEANS)
_MOVED: Kinds = (*PLAIN, *BOOLEANS)
_MOST_ENTRIES = 1 << 20
"""Most indices that are made for an operator which becomes GATHER."""


def apply(tensors: Tensors, type: OperationType, x: Value, *further: Input) -> Value:
    """An operation whose result is quantized like x."""
    return tensors.builder.operation(type, x, *further, like=x)


def finish(
    tensors: Tensors, operator: OperatorInfo, move: Callable[[Value], Value], place: int = 0
) -> None:
    """Make what `move` makes of the input at `place` the operator's output."""
    result = moved(tensors, tensors.input(operator, place), move)
    stated = tensors.described(tensors.result(operator))
    if (stated.scale, stated.zero_point) != (result.scale, result.zero_point):
        raise ModelError("changes the scale")
    if stated.shape and 0 not in result.shape and stated.shape != result.shape:
        raise ModelError(f"gives shape {list(result.shape)}, stated is {list(stated.shape)}")
    tensors.define(operator, result)


def _with_tensors(type: OperationType) -> Convert:
    """A tensor and integer tensors, as the HAL has them: pad, slice, tile."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        further = [tensors.input(operator, place) for place in range(1, len(operator.inputs))]
        finish(tensors, operator, lambda x: apply(tensors, type, x, *further))

    return convert


def _reshape(tensors: Tensors, operator: OperatorInfo) -> None:
    """The target shape is a constant, an option, computed, or only that of the result."""
    known = tensors.numbers(operator.inputs[1]) if tensors.is_given(operator, 1) else None
    if known is None and tensors.is_given(operator, 1):
        inputs = [tensors.input(operator, 0), tensors.input(operator, 1)]
        tensors.emit(operator, _T.RESHAPE, inputs)
        return
    declared = tensors.graph.tensors[tensors.result(operator)].shape
    constant = () if known is None else _with_one_unknown(known)
    target = constant or tuple(option(operator, "NewShape")) or declared
    finish(tensors, operator, lambda x: reshape_to(tensors, x, target_of(target, x)))


def _with_one_unknown(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Shape:
    """A shape with -1 for the dimension that is open, if there is one."""
    filled = np.ma.filled(np.ma.asarray(numbers).reshape(-1), -1)
    shape = tuple(int(n) for n in filled)
    if sum(n < 0 for n in shape) > 1:
        raise ModelError("gives a shape with several open dimensions")
    return shape


def _squeeze(tensors: Tensors, operator: OperatorInfo) -> None:
    axes = tuple(option(operator, "SqueezeDims"))

    def move(x: Value) -> Value:
        if not axes and 0 in x.shape:
            raise ModelError("drops dimensions of a shape that is not known")
        chosen = [axis_of(axis, len(x.shape)) for axis in axes]
        chosen = chosen or [axis for axis, size in enumerate(x.shape) if size == 1]
        if len(chosen) == len(x.shape):
            chosen.pop()
        return apply(tensors, _T.SQUEEZE, x, int32_array(chosen)) if chosen else x

    finish(tensors, operator, move)


def _expand(tensors: Tensors, operator: OperatorInfo) -> None:
    (axis,) = tensors.constant(operator, 1)
    if not tensors.graph.tensors[operator.inputs[0]].shape:
        finish(tensors, operator, lambda x: x)
        return
    finish(tensors, operator, lambda x: apply(tensors, _T.EXPAND_DIMS, x, axis))


def _concatenation(tensors: Tensors, operator: OperatorInfo) -> None:
    values = [tensors.input(operator, position) for position in range(len(operator.inputs))]
    axis = axis_of(operator.options["Axis"], len(values[0].shape))
    tensors.emit(operator, _T.CONCATENATION, [*values, axis])


def _refuse_activation(graph: Graph, operator: OperatorInfo) -> str | None:
    if operator.options["FusedActivationFunction"]:
        return f"with fused activation {operator.options['FusedActivationFunction']}"
    return None


def _pack(tensors: Tensors, operator: OperatorInfo) -> None:
    """Tensors of one shape along a new dimension."""
    values = [tensors.input(operator, position) for position in range(len(operator.inputs))]
    is_single = not tensors.graph.tensors[operator.inputs[0]].shape
    rank = 0 if is_single else len(values[0].shape)
    axis = axis_of(option(operator, "Axis"), rank + 1)
    if not is_single:
        values = [apply(tensors, _T.EXPAND_DIMS, value, axis) for value in values]
    tensors.emit(operator, _T.CONCATENATION, [*values, axis])


def _unpack(tensors: Tensors, operator: OperatorInfo) -> None:
    x, count = tensors.input(operator, 0), len(operator.outputs)
    axis = axis_of(option(operator, "Axis"), len(x.shape))
    parts = _split_evenly(tensors, x, axis, count)
    if len(x.shape) > 1:
        parts = [apply(tensors, _T.SQUEEZE, part, int32_array([axis])) for part in parts]
    tensors.define_all(operator, parts)


def _split_evenly(tensors: Tensors, x: Value, axis: int, count: int) -> list[Value]:
    if x.shape[axis] % max(count, 1) or not x.shape[axis]:
        raise ModelError(f"splits {x.shape[axis]} entries into {count} parts")
    shape = list(x.shape)
    shape[axis] //= count
    part = type(x.tensor)(type=x.type, shape=tuple(shape), scale=x.scale, zero_point=x.zero_point)
    values = tensors.builder.operation_outputs(_T.SPLIT, x, axis, count, outputs=[part] * count)
    return list(values)


def _split(tensors: Tensors, operator: OperatorInfo) -> None:
    (axis,), x = tensors.constant(operator, 0), tensors.input(operator, 1)
    axis = axis_of(axis, len(x.shape))
    tensors.define_all(operator, _split_evenly(tensors, x, axis, len(operator.outputs)))


def _split_unevenly(tensors: Tensors, operator: OperatorInfo) -> None:
    x, sizes = tensors.input(operator, 0), tensors.constant(operator, 1)
    axis = axis_of(tensors.constant(operator, 2)[0], len(x.shape))
    if sizes.count(-1) == 1:
        sizes[sizes.index(-1)] = x.shape[axis] - sum(sizes) - 1
    parts, begin = [], 0
    for size in sizes:
        begins, counts = [0] * len(x.shape), [-1] * len(x.shape)
        begins[axis], counts[axis] = begin, size
        parts.append(apply(tensors, _T.SLICE, x, int32_array(begins), int32_array(counts)))
        begin += size
    tensors.define_all(operator, parts)


def _pad(tensors: Tensors, operator: OperatorInfo) -> None:
    """With a value of its own; a quantized one is a number of the tensor's."""
    x, value = tensors.input(operator, 0), tensors.numbers(operator.inputs[2])
    if value is None:
        raise ModelError("input 2 must be a constant")
    number = value.reshape(-1)[0]
    scalar = float(number) if x.type == OperandType.TENSOR_FLOAT32 else int(number)
    tensors.emit(operator, _T.PAD_V2, [x, tensors.input(operator, 1), scalar])


def _mirror(tensors: Tensors, operator: OperatorInfo) -> None:
    """Borders that repeat the inside the other way round, with the edge itself or without."""
    pads = np.reshape(tensors.constant(operator, 1), (-1, 2))
    keeps_edge = bool(option(operator, "Mode"))

    def indices(axis: int, size: int) -> list[int]:
        before, after = (int(n) for n in pads[axis])
        limit = size - (not keeps_edge)
        if not (0 <= before <= limit and 0 <= after <= limit):
            raise ModelError(f"repeats {max(before, after)} of {size} entries")
        first = range(before, 0, -1) if not keeps_edge else range(before - 1, -1, -1)
        last = range(size - 1 - (not keeps_edge), size - 1 - (not keeps_edge) - after, -1)
        return [*first, *range(size), *last]

    axes = [axis for axis, pair in enumerate(pads) if pair.any()]
    _gather_along(tensors, operator, axes, indices)


def _reverse(tensors: Tensors, operator: OperatorInfo) -> None:
    rank = len(tensors.input(operator, 0).shape)
    axes = [axis_of(axis, rank) for axis in tensors.constant(operator, 1)]
    _gather_along(tensors, operator, axes, lambda axis, size: list(range(size))[::-1])


def _gather_along(
    tensors: Tensors,
    operator: OperatorInfo,
    axes: list[int],
    indices: Callable[[int, int], list[int]],
) -> None:
    """Entries by these indices of an axis and its size, for each of some axes."""

    def move(x: Value) -> Value:
        for axis in axes:
            if axis >= len(x.shape) or not 0 < x.shape[axis] <= _MOST_ENTRIES:
                raise ModelError(f"moves along axis {axis} of shape {list(x.shape)}")
            chosen = int32_array(indices(axis, x.shape[axis]))
            x = apply(tensors, _T.GATHER, x, axis, chosen)
        return x

    finish(tensors, operator, move)


def _gather(tensors: Tensors, operator: OperatorInfo) -> None:
    if option(operator, "BatchDims"):
        raise ModelError("gathers in batches")
    indices = tensors.input(operator, 1)
    is_single = not tensors.graph.tensors[operator.inputs[1]].shape

    def move(x: Value) -> Value:
        axis = axis_of(option(operator, "Axis"), len(x.shape))
        result = apply(tensors, _T.GATHER, x, axis, indices)
        if is_single and len(result.shape) > 1:
            return apply(tensors, _T.SQUEEZE, result, int32_array([axis]))
        return result

    finish(tensors, operator, move)


def _broadcast(tensors: Tensors, operator: OperatorInfo) -> None:
    shape = tuple(tensors.constant(operator, 1))
    finish(tensors, operator, lambda x: broadcast(tensors, x, shape))


def _one_hot(tensors: Tensors, operator: OperatorInfo) -> None:
    """One of two numbers for each class: whether an index is that class."""
    (depth,), indices = tensors.constant(operator, 1), tensors.input(operator, 0)
    if not 0 < depth <= _MOST_ENTRIES:
        raise ModelError(f"has depth {depth}")
    is_single = not tensors.graph.tensors[operator.inputs[0]].shape
    rank = 0 if is_single else len(indices.shape)
    axis = axis_of(option(operator, "Axis"), rank + 1)
    if not is_single:
        indices = apply(tensors, _T.EXPAND_DIMS, indices, axis)
    classes = np.arange(depth, dtype=np.int32).reshape([-1, *[1] * (rank - axis)])
    condition = tensors.builder.operation(_T.EQUAL, indices, classes)
    on, off = (
        broadcast(tensors, tensors.input(operator, place), condition.shape) for place in (2, 3)
    )
    tensors.emit(operator, _T.SELECT, [condition, on, off])


def _blocks(type: OperationType) -> Convert:
    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        size = option(operator, "BlockSize")
        finish(tensors, operator, lambda x: apply(tensors, type, x, size))

    return convert


def _to_batches(tensors: Tensors, operator: OperatorInfo) -> None:
    """A tensor of rank 3 gets a width of 1."""
    block, pads = tensors.constant(operator, 1), tensors.constant(operator, 2)

    def move(x: Value) -> Value:
        sizes, around = list(block), np.reshape(pads, (-1, 2)).tolist()
        image = x
        if len(x.shape) == 3:
            image, sizes, around = _with_width(tensors, x), [*sizes, 1], [*around, [0, 0]]
        amounts = int32_array(around)
        y = apply(tensors, _T.SPACE_TO_BATCH_ND, image, int32_array(sizes), amounts)
        return _without_width(tensors, y) if image is not x else y

    finish(tensors, operator, move)


def _from_batches(tensors: Tensors, operator: OperatorInfo) -> None:
    block = tensors.constant(operator, 1)
    crops = np.reshape(tensors.constant(operator, 2), (-1, 2))

    def move(x: Value) -> Value:
        image = _with_width(tensors, x) if len(x.shape) == 3 else x
        sizes = [*block, 1] if image is not x else list(block)
        y = apply(tensors, _T.BATCH_TO_SPACE_ND, image, int32_array(sizes))
        y = _without_width(tensors, y) if image is not x else y
        return _cropped(tensors, y, crops) if crops.any() else y

    finish(tensors, operator, move)


def _cropped(
    tensors: Tensors, x: Value, crops: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
) -> Value:
    begins, counts = [0] * len(x.shape), list(x.shape)
    if 0 in counts:
        raise ModelError("crops a shape that is not known")
    for axis, (before, after) in enumerate(crops, 1):
        begins[axis] = int(before)
        counts[axis] -= int(before + after)
    return apply(tensors, _T.SLICE, x, int32_array(begins), int32_array(counts))


def _with_width(tensors: Tensors, x: Value) -> Value:
    return apply(tensors, _T.EXPAND_DIMS, x, 2)


def _without_width(tensors: Tensors, x: Value) -> Value:
    return apply(tensors, _T.SQUEEZE, x, int32_array([2]))


def _lookup(tensors: Tensors, operator: OperatorInfo) -> None:
    indices, table = tensors.input(operator, 0), tensors.weights(operator, 1)
    tensors.emit(operator, _T.EMBEDDING_LOOKUP, [indices, table])


def _lookup_keys(tensors: Tensors, operator: OperatorInfo) -> None:
    inputs = [tensors.input(operator, place) for place in range(3)]
    found = [tensors.described(index) for index in operator.outputs]
    values = tensors.builder.operation_outputs(_T.HASHTABLE_LOOKUP, *inputs, outputs=found)
    tensors.define_all(operator, values)


def _one(kinds: Kinds, convert: Convert, outputs: tuple[str, ...] = ()) -> tuple[Converter, ...]:
    return (Converter(kinds, convert, outputs=outputs),)


def _indexed(kinds: Kinds) -> Kinds:
    """The kinds of an operator with a tensor and integer tensors."""
    return tuple((*kind, "INT32") for kind in kinds)


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "RESHAPE": _one(_indexed(_ANY), _reshape),
    "SQUEEZE": _one(_MOVED, _squeeze),
    "EXPAND_DIMS": _one(_indexed(_ANY), _expand),
    "TRANSPOSE": _one(_indexed(_MOVED), _with_tensors(_T.TRANSPOSE)),
    "CONCATENATION": (Converter(PLAIN, _concatenation, _refuse_activation),),
    "PACK": _one(PLAIN, _pack),
    "UNPACK": _one(PLAIN, _unpack),
    "SPLIT": tuple(Converter((("INT32", *kind),), _split, outputs=kind) for kind in NUMBERS),
    "SPLIT_V": _one(_indexed(NUMBERS), _split_unevenly),
    "SLICE": _one(_indexed(_ANY), _with_tensors(_T.SLICE)),
    "PAD": _one(_indexed(_MOVED), _with_tensors(_T.PAD)),
    "PADV2": _one(tuple((*kind, "INT32", *kind) for kind in PLAIN), _pad),
    "MIRROR_PAD": _one(_indexed(_ANY), _mirror),
    "REVERSE_V2": _one(_indexed(_ANY), _reverse),
    "TILE": _one(_indexed(_ANY), _with_tensors(_T.TILE)),
    "BROADCAST_TO": _one(_indexed(_ANY), _broadcast),
    "GATHER": _one(_indexed(_ANY), _gather),
    "EMBEDDING_LOOKUP": (
        Converter(
            (("INT32", "FLOAT32"), ("INT32", "INT8"), ("INT32", "UINT8")),
            _lookup,
            outputs=("FLOAT32",),
        ),
    ),
    "HASHTABLE_LOOKUP": (
        Converter(
            (("INT32", "INT32", "FLOAT32"),),
            _lookup_keys,
            refuse_fused,
            ("FLOAT32", "UINT8"),
        ),
    ),
    "ONE_HOT": tuple(
        Converter((("INT32", "INT32", *kind),), _one_hot, outputs=kind)
        for kind in (*FLOATS, ("INT32",))
    ),
    "DEPTH_TO_SPACE": _one(PLAIN, _blocks(_T.DEPTH_TO_SPACE)),
    "SPACE_TO_DEPTH": _one(PLAIN, _blocks(_T.SPACE_TO_DEPTH)),
    "SPACE_TO_BATCH_ND": _one(_indexed(PLAIN), _to_batches),
    "BATCH_TO_SPACE_ND": _one(_indexed(PLAIN), _from_batches),
}
