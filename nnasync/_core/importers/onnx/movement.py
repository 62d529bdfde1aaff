"""Operators that only move numbers: shapes, parts, joins, orders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from nnasync._core.importers.onnx.axes import broadcast_shape, merged, merged_order
from nnasync._core.importers.onnx.forms import (
    Convert,
    axes_of,
    axis_of,
    check_count,
    is_float,
    move,
    moved,
)
from nnasync._core.importers.onnx.moving import cut, gathered, is_movable, joined_along, transposed
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope, QuantizedView
from nnasync._core.model.broadcasting import broadcast
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Shape

_MOST_ENTRIES = 1 << 20
"""Most entries of an axis that are named one by one."""
_PADDING: Mapping[str, Literal["edge", "reflect", "wrap"]] = {
    "edge": "edge",
    "reflect": "reflect",
    "wrap": "wrap",
}
IntArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def _to_shape(scope: OnnxScope, step: Step, shape: Sequence[int]) -> None:
    """The input in another shape, which its operand gets where somebody needs it."""
    name, wanted = step.node.inputs[0], tuple(shape)
    if math.prod(wanted) != math.prod(scope.shape(name)):
        raise ModelError(f"makes shape {list(wanted)} of {list(scope.shape(name))}")
    view = scope.quantized(name)
    known = scope.array(name)
    if view is not None and wanted != scope.shape(name) and len(wanted) <= MOST_AXES:
        value = scope.reshape(view, wanted or (1,))
        scope.define(step.output, QuantizedView(value), wanted)
    elif known is not None:
        scope.define(step.output, known.reshape(wanted))
    else:
        scope.alias(step.output, name, wanted)


def _reshape(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    wanted = scope.integers(step.node, 1, "shape")
    if not step.node.attribute("allowzero", 0):
        wanted = [known[place] if n == 0 else n for place, n in enumerate(wanted)]
    if 0 in wanted:
        raise ModelError("makes an empty tensor")
    rest = math.prod(n for n in wanted if n >= 0)
    _to_shape(scope, step, [math.prod(known) // rest if n < 0 else n for n in wanted])


def _flatten(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    axis = step.node.attribute("axis", 1)
    axis = axis + len(known) if axis < 0 else axis
    _to_shape(scope, step, [math.prod(known[:axis]), math.prod(known[axis:])])


def _squeeze(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    axes = axes_of(scope, step.node)
    if axes is None:
        axes = [axis for axis, n in enumerate(known) if n == 1]
    gone = {axis_of(axis, len(known)) for axis in axes}
    _to_shape(scope, step, [n for axis, n in enumerate(known) if axis not in gone])


def _unsqueeze(scope: OnnxScope, step: Step) -> None:
    known = list(scope.shape(step.node.inputs[0]))
    axes = axes_of(scope, step.node) or []
    rank = len(known) + len(axes)
    for axis in sorted(axis_of(axis, rank) for axis in axes):
        known.insert(axis, 1)
    _to_shape(scope, step, known)


def _transpose(scope: OnnxScope, step: Step) -> None:
    name = step.node.inputs[0]
    shape = scope.shape(name)
    order = list(step.node.attribute("perm", range(len(shape))[::-1]))
    if sorted(order) != list(range(len(shape))):
        raise ModelError(f"transposes {len(shape)} axes by {order}")
    result = tuple(shape[axis] for axis in order)
    if len(shape) < 2:
        scope.alias(step.output, name)
    elif len(shape) <= MOST_AXES and is_movable(scope, name):
        move(scope, step, OperationType.TRANSPOSE, int32_array(order))
    else:
        sizes, places = merged_order(shape, order)
        value = scope.reshaped(name, sizes)
        if places != sorted(places):
            value = transposed(scope, value, places)
        scope.define(step.output, value, result)


def _concat(scope: OnnxScope, step: Step) -> None:
    names = [name for name in step.node.inputs if name]
    shapes = [scope.shape(name) for name in names]
    axis = axis_of(step.node.attribute("axis", 0), len(shapes[0]))
    if len(names) == 1:
        scope.alias(step.output, names[0])
        return
    target = scope.target(step)
    views = [scope.quantized(name) for name in names]
    if target is not None and all(v is not None and v.type == target.type for v in views):
        scope.emit_quantized(target, OperationType.CONCATENATION, *views, axis)
        return
    if len(shapes[0]) <= MOST_AXES and is_movable(scope, *names):
        moved(scope, step, OperationType.CONCATENATION, names, [axis])
        return
    values = [
        scope.reshaped(name, _around(shape, axis))
        for name, shape in zip(names, shapes, strict=True)
    ]
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    joined = joined_along(scope, values, 1)
    scope.define(step.output, joined, tuple(result))


def _around(shape: Shape, axis: int) -> Shape:
    """Three axes: those before one, itself, those behind it."""
    return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def _slice(scope: OnnxScope, step: Step) -> None:
    node = step.node
    known = scope.shape(node.inputs[0])
    starts, ends = scope.integers(node, 1, "starts"), scope.integers(node, 2, "ends")
    axes = scope.integers(node, 3, "axes") if scope.has(node, 3) else list(range(len(starts)))
    strides = scope.integers(node, 4, "steps") if scope.has(node, 4) else [1] * len(starts)
    chosen = [range(n) for n in known]
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        place = axis_of(axis, len(known))
        chosen[place] = range(known[place])[slice(start, _end(end, stride, known[place]), stride)]
    if not all(chosen):
        raise ModelError("makes an empty tensor")
    _cut(scope, step, chosen)


def _end(end: int, stride: int, size: int) -> int | None:
    """Returns the end of a slice; None where it is before the first entry."""
    return None if stride < 0 and end < -size else end


def _cut(scope: OnnxScope, step: Step, chosen: Sequence[range]) -> None:
    """Entries of each axis."""
    name = step.node.inputs[0]
    shape = scope.shape(name)
    if all(len(part) == n and part.step == 1 for part, n in zip(chosen, shape, strict=True)):
        scope.alias(step.output, name)
        return
    if len(shape) > MOST_AXES:
        whole = [len(part) == n and part.step == 1 for part, n in zip(chosen, shape, strict=True)]
        groups = merged(shape, [None if full else axis for axis, full in enumerate(whole)])
        value = scope.reshaped(name, [math.prod(shape[axis] for axis in group) for group in groups])
        parts = [_part(shape, chosen, group) for group in groups]
        value = cut(scope, value, parts)
        scope.define(step.output, value, tuple(len(part) for part in chosen))
        return
    view = scope.quantized(name)
    value = cut(scope, scope.value(name) if view is None else view, chosen)
    scope.define(step.output, value if view is None else QuantizedView(value))


def _part(shape: Shape, chosen: Sequence[range], group: list[int]) -> range:
    """The entries of axes that became one: of those that matter there is one at most."""
    for axis in group:
        if len(chosen[axis]) != shape[axis] or chosen[axis].step != 1:
            return chosen[axis]
    return range(math.prod(shape[axis] for axis in group))


def _split(scope: OnnxScope, step: Step) -> None:
    """One slice for each part."""
    node = step.node
    known = scope.shape(node.inputs[0])
    axis = axis_of(node.attribute("axis", 0), len(known))
    given = node.attribute("split", None)
    sizes = scope.integers(node, 1, "sizes") if scope.has(node, 1) else given
    if sizes is None:
        count = len(node.outputs)
        part = -(-known[axis] // count)
        sizes = [part] * (count - 1) + [known[axis] - part * (count - 1)]
    place = 0
    for name, size in zip(node.outputs, sizes, strict=True):
        chosen = [range(n) for n in known]
        chosen[axis] = range(place, place + size)
        place += size
        if place > known[axis] or size < 1:
            raise ModelError(f"splits {known[axis]} entries into {sizes}")
        if name:
            _cut(scope, Step(node, name), chosen)


def _pad(scope: OnnxScope, step: Step) -> None:
    node = step.node
    known = scope.shape(node.inputs[0])
    amounts = _amounts(scope, node, len(known))
    if (amounts < 0).any():
        raise ModelError(f"pads by {amounts.tolist()}")
    mode = node.attribute("mode", "constant")
    if mode != "constant":
        _pad_with_own(scope, step, mode, amounts)
        return
    paddings = int32_array(amounts)
    number = scope.constant(node, 2, "value").reshape(-1)[0] if scope.has(node, 2) else 0
    if not number and is_movable(scope, node.inputs[0]):
        move(scope, step, OperationType.PAD, paddings)
        return
    x = scope.input(node, 0)
    if not is_float(x):
        raise ModelError("pads integers")
    scalar = np.float16(number) if x.type == OperandType.TENSOR_FLOAT16 else float(number)
    scope.emit(step, OperationType.PAD_V2, x, paddings, scalar)


def _amounts(scope: OnnxScope, node: OnnxNode, rank: int) -> IntArray:
    """Returns how many entries are added before and behind each axis."""
    given = np.asarray(scope.integers(node, 1, "pads")).reshape(2, -1).T
    if not scope.has(node, 3):
        if len(given) != rank:
            raise ModelError(f"pads {len(given)} axes of a tensor of rank {rank}")
        return given
    amounts = np.zeros((rank, 2), np.int64)
    for axis, pair in zip(scope.integers(node, 3, "axes"), given, strict=True):
        amounts[axis_of(axis, rank)] = pair
    return amounts


def _pad_with_own(scope: OnnxScope, step: Step, mode: str, amounts: IntArray) -> None:
    """Pads with numbers of the tensor itself: each axis is read anew."""
    form = _PADDING.get(mode)
    value, shape = scope.input(step.node, 0), scope.shape(step.node.inputs[0])
    for axis, (before, behind) in enumerate(amounts.tolist()):
        if not before and not behind:
            continue
        if form is None or before + behind > _MOST_ENTRIES or shape[axis] > _MOST_ENTRIES:
            raise ModelError(f"pads {mode} by {before} and {behind}")
        places = np.pad(np.arange(shape[axis]), (before, behind), mode=form)
        value = gathered(scope, value, axis, places)
    scope.define(step.output, value)


def _tile(scope: OnnxScope, step: Step) -> None:
    repeats = scope.integers(step.node, 1, "repeats")
    name = step.node.inputs[0]
    if is_movable(scope, name):
        move(scope, step, OperationType.TILE, int32_array(repeats))
        return
    x = scope.input(step.node, 0)
    wanted = tuple(n * times for n, times in zip(x.shape, repeats, strict=True))
    if any(n != 1 and times != 1 for n, times in zip(x.shape, repeats, strict=True)):
        raise ModelError(f"repeats {OperandType(x.type).name}")
    scope.define(step.output, broadcast(scope, x, wanted))


def _expand(scope: OnnxScope, step: Step) -> None:
    name = step.node.inputs[0]
    shape = scope.shape(name)
    wanted = broadcast_shape([shape, tuple(scope.integers(step.node, 1, "shape"))])
    if 0 in wanted:
        raise ModelError("makes an empty tensor")
    if math.prod(wanted) == math.prod(shape):
        _to_shape(scope, step, wanted)
        return
    padded = (1,) * (len(wanted) - len(shape)) + shape
    groups = merged(wanted, [n == 1 for n in padded])
    before, after = (
        tuple(math.prod(sizes[axis] for axis in group) for group in groups)
        for sizes in (padded, wanted)
    )
    value = broadcast(scope, scope.reshaped(name, before), after)
    scope.define(step.output, value, wanted)


def _to_depth(scope: OnnxScope, step: Step) -> None:
    size = int(step.node.attribute("blocksize", 1))
    move(scope, step, OperationType.SPACE_TO_DEPTH, size, True)


def _to_space(scope: OnnxScope, step: Step) -> None:
    """Blocks of channels become places; channels are ordered first where blocks lie inside."""
    node = step.node
    size = int(node.attribute("blocksize", 1))
    if node.attribute("mode", "DCR") == "DCR":
        move(scope, step, OperationType.DEPTH_TO_SPACE, size, True)
        return
    x = scope.input(node, 0)
    check_count(x.shape[1])
    order = np.arange(x.shape[1]).reshape(-1, size * size).T.reshape(-1)
    y = gathered(scope, x, 1, order)
    scope.emit(step, OperationType.DEPTH_TO_SPACE, y, size, True)


def _shape(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    start, end = step.node.attribute("start", 0), step.node.attribute("end", len(known))
    scope.define(step.output, np.asarray(known[start:end], np.int64))


def _size(scope: OnnxScope, step: Step) -> None:
    scope.define(step.output, np.asarray(math.prod(scope.shape(step.node.inputs[0])), np.int64))


CONVERTERS: dict[str, Convert] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Tile": _tile,
    "Expand": _expand,
    "DepthToSpace": _to_space,
    "SpaceToDepth": _to_depth,
    "Shape": _shape,
    "Size": _size,
}
"""How each operator becomes operations."""
