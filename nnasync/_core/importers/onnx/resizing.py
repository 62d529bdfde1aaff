"""Resize: by the HAL's operations where they take the same places, else axis by axis.

A resized axis is a product with a matrix of as many rows as the result has entries, and what ONNX
says of coordinates, curves and borders is in its numbers. Where each row has a single 1, entries
are only taken by their places.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from nnasync._core.importers.onnx.forms import Convert, axis_of, is_float
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.moving import gathered, transposed
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedView
from nnasync._core.model import Value
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType, Shape

_CHANNELS_FIRST = True
_MOST_PIXELS = 2**20
_LARGEST_MATRIX = 2**22
_MOST_ROWS = 2**14
_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_HALF, _CORNERS = "half_pixel", "align_corners"


class _Axis(msgspec.Struct, frozen=True, eq=False):
    """How one axis is resized; `part` is the part of it that is taken, from 0 to 1."""

    before: int
    after: int
    scale: float
    form: str
    part: tuple[float, float] = (0.0, 1.0)

    def places(self) -> Array:
        """Returns the positions of the result's entries over those of the input."""
        places = np.arange(self.after, dtype=np.float64)
        half = (places + 0.5) / self.scale - 0.5
        last = self.before - 1
        if self.form == _HALF or (self.form == "pytorch_half_pixel" and self.after > 1):
            return half
        if self.form == "pytorch_half_pixel":
            return places * 0
        if self.form == "half_pixel_symmetric":
            return self.before / 2 * (1 - self.after / (self.scale * self.before)) + half
        if self.form == "asymmetric":
            return places / self.scale
        if self.form == _CORNERS:
            length = self.scale * self.before
            return places * last / (length - 1) if length != 1 else places * 0
        if self.form == "tf_crop_and_resize":
            begin, end = (n * last for n in self.part)
            if self.after > 1:
                return begin + places * (end - begin) / (self.after - 1)
            return places * 0 + (begin + end) / 2
        raise ModelError(f"has coordinates {self.form}")


def _resize(scope: OnnxScope, step: Step) -> None:
    node = step.node
    shape = scope.shape(node.inputs[0])
    axes = _axes(scope, node, shape)
    sizes = [axis.after for axis in axes]
    if min(sizes) < 1 or max(sizes) > _MOST_PIXELS:
        raise ModelError(f"resizes {list(shape)} to {sizes}")
    window = _window(node, axes)
    if window is not None:
        type, inputs = window
        _emit(scope, step, type, inputs)
        return
    x = scope.input(node, 0)
    for place, axis in enumerate(axes):
        if axis.before != axis.after or axis.part != (0.0, 1.0):
            x = _resized(scope, node, x, place, axis)
    scope.define(step.output, x)


def _axes(scope: OnnxScope, node: OnnxNode, shape: Shape) -> list[_Axis]:
    """Returns how each axis is resized; those that are not named stay as they are."""
    rank = len(shape)
    given = node.attribute("axes", None)
    named = [axis_of(axis, rank) for axis in given] if given else list(range(rank))
    form = str(node.attribute("coordinate_transformation_mode", _HALF))
    parts = [0.0] * len(named) + [1.0] * len(named)
    if form == "tf_crop_and_resize":
        parts = [float(n) for n in scope.constant(node, 1, "region").reshape(-1)]
    if scope.has(node, 3):
        scales, sizes = _by_sizes(scope.integers(node, 3, "sizes"), node, shape, named)
    else:
        scales = [float(n) for n in scope.constant(node, 2, "scales").reshape(-1)]
        sizes = [math.floor(shape[a] * scale) for a, scale in zip(named, scales, strict=True)]
    axes = [_Axis(n, n, 1.0, _HALF) for n in shape]
    for number, axis in enumerate(named):
        part = (parts[number], parts[number + len(named)])
        axes[axis] = _Axis(shape[axis], sizes[number], scales[number], form, part)
    return axes


def _by_sizes(
    sizes: list[int], node: OnnxNode, shape: Shape, named: list[int]
) -> tuple[list[float], list[int]]:
    """Scales and sizes of what is resized to sizes, or to those that keep the aspect."""
    scales = [size / shape[axis] for axis, size in zip(named, sizes, strict=True)]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, sizes
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [scale] * len(named), [math.floor(shape[axis] * scale + 0.5) for axis in named]


# -- by an operation of the HAL


def _window(node: OnnxNode, axes: list[_Axis]) -> tuple[OperationType, list[Input]] | None:
    """An operation and its parameters that mean the same, if there is one."""
    if len(axes) != 4 or any(axis.before != axis.after for axis in axes[:2]):
        return None
    if node.attribute("antialias", 0) or any(axis.part != (0.0, 1.0) for axis in axes):
        return None
    mode, images = node.attribute("mode", "nearest"), axes[2:]
    flags = None
    if mode == "linear":
        type, flags = OperationType.RESIZE_BILINEAR, _linear_flags(images)
    elif mode == "nearest":
        type, flags = OperationType.RESIZE_NEAREST_NEIGHBOR, _nearest_flags(node, images)
    if flags is None:
        return None
    return type, [axes[3].after, axes[2].after, _CHANNELS_FIRST, *flags]


def _emit(scope: OnnxScope, step: Step, type: OperationType, window: list[Input]) -> None:
    view = scope.quantized(step.node.inputs[0])
    if view is not None and type == OperationType.RESIZE_NEAREST_NEIGHBOR:
        value = scope.builder.operation(type, view, *window, like=view)
        scope.define(step.output, QuantizedView(value))
        return
    scope.emit(step, type, scope.input(step.node, 0), *window)


def _linear_flags(images: list[_Axis]) -> list[bool] | None:
    """Flags align_corners and half_pixel_centers that mean the same."""
    form = images[0].form
    if form == "pytorch_half_pixel" and min(axis.after for axis in images) > 1:
        form = _HALF
    flags = {_CORNERS: [True, False], _HALF: [False, True], "asymmetric": [False, False]}
    exact = all(abs(a.before * a.scale - a.after) < 1e-4 * a.after for a in images)
    return flags.get(form) if exact else None


def _nearest_flags(node: OnnxNode, images: list[_Axis]) -> list[bool] | None:
    """The flags with which the HAL takes the very same pixels."""
    wanted = [_nearest_places(node, axis) for axis in images]
    for corners, half in ((False, False), (False, True), (True, False)):
        found = [_pixels(axis.before, axis.after, corners, half) for axis in images]
        if all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True)):
            return [corners, half]
    return None


def _nearest_places(node: OnnxNode, axis: _Axis) -> Array:
    rounding = _ROUNDING.get(node.attribute("nearest_mode", "round_prefer_floor"))
    if rounding is None:
        raise ModelError("rounds in an unknown way")
    return np.asarray(rounding(axis.places()).clip(0, axis.before - 1))


def _pixels(before: int, after: int, corners: bool, half: bool) -> Array:
    """The pixels that the HAL takes."""
    places = np.arange(after, dtype=np.float32)
    if corners:
        scale = np.float32(before - 1) / np.float32(max(after - 1, 1))
        found = np.floor(places * scale + np.float32(0.5))
    else:
        scale = np.float32(before) / np.float32(after)
        found = np.floor((places + np.float32(0.5 if half else 0)) * scale)
    clipped: Array = np.clip(found, 0, before - 1)
    return clipped


# -- axis by axis


def _resized(scope: OnnxScope, node: OnnxNode, x: Value, place: int, axis: _Axis) -> Value:
    """x with one axis resized."""
    if node.attribute("mode", "nearest") == "nearest" and axis.part == (0.0, 1.0):
        return gathered(scope, x, place, _nearest_places(node, axis).astype(np.int64))
    too_large = axis.before * axis.after > _LARGEST_MATRIX or axis.after > _MOST_ROWS
    if not is_float(x) or too_large:
        raise ModelError(f"resizes {OperandType(x.type).name} from {axis.before} to {axis.after}")
    order = list(range(len(x.shape)))
    order[place], order[-1] = order[-1], order[place]
    is_last = place == len(order) - 1
    y = x if is_last else transposed(scope, x, order)
    matrix, offsets = (
        scope.builder.constant(numbers, type=OperandType(x.type))
        for numbers in (_matrix(node, axis), np.zeros(axis.after))
    )
    rows = scope.reshape(y, (math.prod(y.shape[:-1]), axis.before))
    rows = Maths(scope).apply(OperationType.FULLY_CONNECTED, rows, matrix, offsets, 0)
    y = scope.reshape(rows, (*y.shape[:-1], axis.after))
    return y if is_last else transposed(scope, y, order)


def _matrix(node: OnnxNode, axis: _Axis) -> Array:
    """Returns the weight of each input entry for each entry of the result."""
    mode, places = str(node.attribute("mode", "nearest")), axis.places()
    matrix = np.zeros((axis.after, axis.before))
    nearest = _nearest_places(node, axis).astype(np.int64)
    outside = (places < 0) | (places > axis.before - 1)
    for row, place in enumerate(places):
        if axis.form == "tf_crop_and_resize" and outside[row]:
            if node.attribute("extrapolation_value", 0.0):
                raise ModelError("puts another number than 0 outside")
            continue
        if mode == "nearest":
            matrix[row, nearest[row]] = 1
            continue
        first = math.ceil(place) - 1
        taps, weights = _curve(mode, node, axis.scale, place - first)
        taps = taps + first
        if node.attribute("exclude_outside", 0):
            weights = np.where((taps < 0) | (taps >= axis.before), 0, weights)
            weights = weights / weights.sum()
        np.add.at(matrix[row], taps.clip(0, axis.before - 1), weights)
    return matrix


def _curve(mode: str, node: OnnxNode, scale: float, rest: float) -> tuple[Array, Array]:
    """Entries around a place, counted from the one before it, and their weights."""
    narrow = min(scale, 1.0) if node.attribute("antialias", 0) else 1.0
    reach = {"linear": 1, "cubic": 2}.get(mode)
    if reach is None or narrow <= 0 or reach / narrow > _MOST_PIXELS:
        raise ModelError(f"has mode {mode} and scale {scale}")
    start = math.floor(-reach / narrow) + 1
    taps = np.arange(start, 2 * reach - start if narrow < 1 else start + 2 * reach)
    distance = np.abs(taps - rest) * narrow
    if mode == "linear":
        weights = np.clip(1 - distance, 0, None)
    else:
        weights = _cubic(distance, float(node.attribute("cubic_coeff_a", -0.75)))
    return taps, weights / weights.sum()


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


CONVERTERS: dict[str, Convert] = {"Resize": _resize}
"""How each operator becomes operations."""
