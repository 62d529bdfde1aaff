"""Operators that move numbers, and those that reduce along axes."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, is_alike, is_float, move, moved
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperationType

__all__ = ["CONVERTERS"]


def _to_shape(scope: OnnxScope, step: Step, shape: list[int]) -> None:
    if not 1 <= len(shape) <= 4:
        raise ModelError(f"gives shape {shape}, which has no rank from 1 to 4")
    if tuple(shape) == scope.shape(step.node.inputs[0]):
        scope.alias(step.output, step.node.inputs[0])
        return
    move(scope, step, OperationType.RESHAPE, int32_array(shape))


def _reshape(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    wanted = scope.integers(step.node, 1, "shape")
    if not step.node.attribute("allowzero", 0):
        wanted = [known[place] if n == 0 else n for place, n in enumerate(wanted)]
    rest = math.prod(n for n in wanted if n >= 0)
    if rest == 0:
        raise ModelError("makes an empty tensor")
    _to_shape(scope, step, [math.prod(known) // rest if n < 0 else n for n in wanted])


def _flatten(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    axis = step.node.attribute("axis", 1)
    axis = axis + len(known) if axis < 0 else axis
    _to_shape(scope, step, [math.prod(known[:axis]), math.prod(known[axis:])])


def _axes(scope: OnnxScope, node: OnnxNode) -> list[int] | None:
    """Axes from an attribute or, in newer files, from input 1."""
    if scope.has(node, 1):
        return scope.integers(node, 1, "axes")
    given = node.attribute("axes", None)
    return None if given is None else list(given)


def _squeeze(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    axes = _axes(scope, step.node)
    if axes is None:
        axes = [axis for axis, n in enumerate(known) if n == 1]
    gone = {axis_of(axis, len(known)) for axis in axes}
    _to_shape(scope, step, [n for axis, n in enumerate(known) if axis not in gone] or [1])


def _unsqueeze(scope: OnnxScope, step: Step) -> None:
    known = list(scope.shape(step.node.inputs[0]))
    axes = _axes(scope, step.node) or []
    rank = len(known) + len(axes)
    for axis in sorted(axis_of(axis, rank) for axis in axes):
        known.insert(axis, 1)
    _to_shape(scope, step, known)


def _transpose(scope: OnnxScope, step: Step) -> None:
    rank = len(scope.shape(step.node.inputs[0]))
    order = step.node.attribute("perm", list(range(rank))[::-1])
    move(scope, step, OperationType.TRANSPOSE, int32_array(order))


def _concat(scope: OnnxScope, step: Step) -> None:
    names = [name for name in step.node.inputs if name]
    axis = axis_of(step.node.attribute("axis", 0), len(scope.shape(names[0])))
    if len(names) == 1:
        scope.alias(step.output, names[0])
        return
    target = scope.target(step)
    views = [scope.quantized(name) for name in names]
    if target is not None and all(v is not None and v.type == target.type for v in views):
        scope.emit_quantized(target, OperationType.CONCATENATION, *views, axis)
        return
    moved(scope, step, OperationType.CONCATENATION, names, [axis])


def _slice(scope: OnnxScope, step: Step) -> None:
    node = step.node
    known = scope.shape(node.inputs[0])
    starts, ends = scope.integers(node, 1, "starts"), scope.integers(node, 2, "ends")
    axes = scope.integers(node, 3, "axes") if scope.has(node, 3) else list(range(len(starts)))
    strides = scope.integers(node, 4, "steps") if scope.has(node, 4) else [1] * len(starts)
    chosen = [slice(0, n, 1) for n in known]
    for axis, start, end, stride in zip(axes, starts, ends, strides, strict=True):
        if stride < 1:
            raise ModelError(f"has a step of {stride}")
        place = axis_of(axis, len(known))
        chosen[place] = slice(*slice(start, end, stride).indices(known[place]))
    if any(part.stop <= part.start for part in chosen):
        raise ModelError("makes an empty tensor")
    _cut(scope, step, chosen)


def _cut(scope: OnnxScope, step: Step, chosen: list[slice]) -> None:
    begin = int32_array([part.start for part in chosen])
    if all(part.step == 1 for part in chosen):
        size = int32_array([part.stop - part.start for part in chosen])
        move(scope, step, OperationType.SLICE, begin, size)
        return
    end = int32_array([part.stop for part in chosen])
    strides = int32_array([part.step for part in chosen])
    move(scope, step, OperationType.STRIDED_SLICE, begin, end, strides, 0, 0, 0)


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
        begin, lengths = [0] * len(known), list(known)
        begin[axis], lengths[axis] = place, size
        place += size
        if name:
            part_of = Step(node, name)
            move(scope, part_of, OperationType.SLICE, int32_array(begin), int32_array(lengths))


def _pad(scope: OnnxScope, step: Step) -> None:
    node = step.node
    known = scope.shape(node.inputs[0])
    if node.attribute("mode", "constant") != "constant" or scope.has(node, 3):
        raise ModelError("pads in another way than with a constant")
    amounts = np.asarray(scope.integers(node, 1, "pads")).reshape(2, -1).T
    if len(amounts) != len(known) or (amounts < 0).any():
        raise ModelError(f"pads {amounts.tolist()} of a tensor of rank {len(known)}")
    number = float(scope.constant(node, 2, "value").reshape(-1)[0]) if scope.has(node, 2) else 0.0
    paddings = int32_array(amounts)
    if number == 0.0:
        move(scope, step, OperationType.PAD, paddings)
        return
    x = scope.input(node, 0)
    if not is_float(x):
        raise ModelError("pads integers with another number than 0")
    scope.emit(step, OperationType.PAD_V2, x, paddings, number)


def _gather(scope: OnnxScope, step: Step) -> None:
    node = step.node
    known = scope.shape(node.inputs[0])
    axis = axis_of(node.attribute("axis", 0), len(known))
    indices = scope.constant(node, 1, "indices")
    if not indices.ndim:
        raise ModelError("gathers with a single index")
    places = np.where(indices < 0, indices + known[axis], indices)
    moved(scope, step, OperationType.GATHER, [node.inputs[0]], [axis, int32_array(places)])


def _tile(scope: OnnxScope, step: Step) -> None:
    repeats = int32_array(scope.integers(step.node, 1, "repeats"))
    move(scope, step, OperationType.TILE, repeats)


def _block(type: OperationType) -> Convert:
    """Depth to space and back, of images with channels first."""

    def convert(scope: OnnxScope, step: Step) -> None:
        if step.node.attribute("mode", "DCR") != "DCR":
            raise ModelError("takes columns before rows")
        move(scope, step, type, int(step.node.attribute("blocksize", 1)), True)

    return convert


def _reduce(type: OperationType) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        rank = len(scope.shape(node.inputs[0]))
        axes = _axes(scope, node)
        if not axes:
            if node.attribute("noop_with_empty_axes", 0):
                raise ModelError("reduces along no axis")
            axes = list(range(rank))
        chosen = int32_array([axis_of(axis, rank) for axis in axes])
        keeps = bool(node.attribute("keepdims", 1))
        flag = int(keeps) if type == OperationType.MEAN else keeps
        target, view = scope.target(step), scope.quantized(node.inputs[0])
        if type == OperationType.MEAN and target is not None and is_alike(view, target):
            scope.emit_quantized(target, type, view, chosen, flag)
            return
        scope.emit(step, type, scope.input(node, 0), chosen, flag)

    return convert


def _extreme(type: OperationType) -> Convert:
    """The place of the largest or smallest number."""

    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        x = scope.input(node, 0)
        if node.attribute("select_last_index", 0):
            raise ModelError("selects the last of equal numbers")
        axis = axis_of(node.attribute("axis", 0), len(x.shape))
        place = scope.builder.operation(type, x, axis)
        if node.attribute("keepdims", 1):
            scope.emit(step, OperationType.EXPAND_DIMS, place, axis)
        else:
            scope.define(step.output, place)

    return convert


def _shape(scope: OnnxScope, step: Step) -> None:
    known = scope.shape(step.node.inputs[0])
    start, end = step.node.attribute("start", 0), step.node.attribute("end", len(known))
    scope.define(step.output, np.asarray(known[start:end], np.int64))


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
    "Gather": _gather,
    "Tile": _tile,
    "DepthToSpace": _block(OperationType.DEPTH_TO_SPACE),
    "SpaceToDepth": _block(OperationType.SPACE_TO_DEPTH),
    "ReduceMean": _reduce(OperationType.MEAN),
    "ReduceSum": _reduce(OperationType.REDUCE_SUM),
    "ReduceMax": _reduce(OperationType.REDUCE_MAX),
    "ReduceMin": _reduce(OperationType.REDUCE_MIN),
    "ReduceProd": _reduce(OperationType.REDUCE_PROD),
    "ArgMax": _extreme(OperationType.ARGMAX),
    "ArgMin": _extreme(OperationType.ARGMIN),
    "Shape": _shape,
}
"""How each operator becomes operations."""
