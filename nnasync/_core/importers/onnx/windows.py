"""Operators that slide windows over images with channels first: convolutions, pools, resizing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, is_alike, is_float, outputs_of
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedView
from nnasync._core.importers.onnx.weights import WeightedLayer, quantized_layer
from nnasync._core.model import Value
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType, PaddingScheme, Shape

__all__ = ["CONVERTERS"]

_CHANNELS_FIRST = True
_MOST_PIXELS = 2**20
_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
_HALF, _CORNERS = "half_pixel", "align_corners"


def _spatial(node: OnnxNode, name: str) -> tuple[int, int]:
    """Two numbers of an attribute, (rows, columns); 1 each by default."""
    given = node.attribute(name, [1, 1])
    if len(given) != 2:
        raise ModelError(f"has {name} of {len(given)} dimensions, 2 are translated")
    return int(given[0]), int(given[1])


def _pads(node: OnnxNode, known: Shape, size: tuple[int, int]) -> list[Input]:
    """Padding (left, right, top, bottom)."""
    mode = node.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0, 0, 0, 0]
    if mode == "NOTSET":
        top, left, bottom, right = node.attribute("pads", [0, 0, 0, 0])
        return [int(left), int(right), int(top), int(bottom)]
    strides, dilations = _spatial(node, "strides"), _spatial(node, "dilations")
    ends: list[tuple[int, int]] = []
    for place in (1, 0):
        reach = (size[place] - 1) * dilations[place] + 1
        steps = -(-known[2 + place] // strides[place])
        total = max((steps - 1) * strides[place] + reach - known[2 + place], 0)
        less, more = total // 2, total - total // 2
        ends.append((less, more) if mode == "SAME_UPPER" else (more, less))
    return [*ends[0], *ends[1]]


def _convolution(scope: OnnxScope, step: Step) -> None:
    node = step.node
    shape = scope.shape(node.inputs[0])
    weights = scope.constant(node, 1, "weights")
    if len(shape) != 4 or weights.ndim != 4:
        raise ModelError(f"has an input of rank {len(shape)}, 4 is translated")
    groups = int(node.attribute("group", 1))
    type, order = _kind(groups, shape[1], weights.shape)
    layer = quantized_layer(scope, step, order, 3 if type == OperationType.DEPTHWISE_CONV_2D else 0)
    target = scope.target(step)
    if layer is None or target is None:
        target, layer = None, _float_layer(scope, step, weights, order)
    inputs: list[Input] = [layer.x, layer.weights, layer.bias]
    inputs += _pads(node, shape, (weights.shape[2], weights.shape[3]))
    inputs += _across_first(_spatial(node, "strides"))
    if type == OperationType.DEPTHWISE_CONV_2D:
        inputs.append(weights.shape[0] // shape[1])
    if type == OperationType.GROUPED_CONV_2D:
        inputs.append(groups)
    inputs += [step.activation, _CHANNELS_FIRST]
    dilations = _spatial(node, "dilations")
    if dilations != (1, 1):
        if type == OperationType.GROUPED_CONV_2D:
            raise ModelError("has groups and dilations")
        inputs += _across_first(dilations)
    if target is not None:
        scope.emit_quantized(target, type, *inputs)
    else:
        scope.emit(step, type, *inputs)


def _kind(groups: int, channels: int, weights: Shape) -> tuple[OperationType, tuple[int, ...]]:
    """The operation, and where the axes of its weights come from."""
    if groups == 1:
        return OperationType.CONV_2D, (0, 2, 3, 1)
    if groups == channels and weights[1] == 1:
        return OperationType.DEPTHWISE_CONV_2D, (1, 2, 3, 0)
    return OperationType.GROUPED_CONV_2D, (0, 2, 3, 1)


def _float_layer(
    scope: OnnxScope, step: Step, weights: Array, order: tuple[int, ...]
) -> WeightedLayer:
    node = step.node
    x = scope.input(node, 0)
    if not is_float(x):
        raise ModelError("convolves integers")
    bias = np.zeros(weights.shape[0], weights.dtype)
    if scope.has(node, 2):
        bias = scope.constant(node, 2, "bias")
    if step.factors is not None and step.offsets is not None:
        weights = (weights * step.factors.reshape(-1, 1, 1, 1)).astype(weights.dtype)
        bias = (bias * step.factors + step.offsets).astype(bias.dtype)
    moved = np.ascontiguousarray(weights.transpose(order))
    return WeightedLayer(x, scope.builder.constant(moved), scope.builder.constant(bias))


def _across_first(numbers: tuple[int, int]) -> list[Input]:
    return [numbers[1], numbers[0]]


def _transposed(scope: OnnxScope, step: Step) -> None:
    node = step.node
    shape, weights = scope.shape(node.inputs[0]), scope.constant(node, 1, "weights")
    if len(shape) != 4 or weights.ndim != 4:
        raise ModelError("has an input of another rank than 4")
    if node.attribute("group", 1) != 1 or _spatial(node, "dilations") != (1, 1):
        raise ModelError("has groups or dilations")
    extra = node.attribute("output_padding", [0, 0])
    if any(extra) or node.attribute("output_shape", None) or _mode(node) != "NOTSET":
        raise ModelError("states the shape of its output")
    window = _pads(node, shape, (weights.shape[2], weights.shape[3]))
    window += [*_across_first(_spatial(node, "strides")), step.activation, _CHANNELS_FIRST]
    order, type = (1, 2, 3, 0), OperationType.TRANSPOSE_CONV_2D
    layer, target = quantized_layer(scope, step, order, 0), scope.target(step)
    if layer is not None and target is not None:
        scope.emit_quantized(target, type, layer.x, layer.weights, layer.bias, *window)
        return
    x, filters = scope.input(node, 0), np.ascontiguousarray(weights.transpose(order))
    if not is_float(x):
        raise ModelError("convolves integers")
    bias = np.zeros(filters.shape[0], weights.dtype)
    if scope.has(node, 2):
        bias = scope.constant(node, 2, "bias")
    scope.emit(step, type, x, filters, bias, *window)


def _mode(node: OnnxNode) -> str:
    return str(node.attribute("auto_pad", "NOTSET"))


def _pool(type: OperationType) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        outputs_of(node, 1)
        shape = scope.shape(node.inputs[0])
        if len(shape) != 4:
            raise ModelError(f"has an input of rank {len(shape)}, 4 is translated")
        if _spatial(node, "dilations") != (1, 1) or node.attribute("ceil_mode", 0):
            raise ModelError("has dilations, or rounds its size up")
        size = _spatial(node, "kernel_shape")
        pads = _pads(node, shape, size)
        counts = node.attribute("count_include_pad", 0) and any(pads)
        if counts and type == OperationType.AVERAGE_POOL_2D:
            raise ModelError("counts the padding")
        strides = _across_first(_spatial(node, "strides"))
        window = [*pads, *strides, *_across_first(size), step.activation, _CHANNELS_FIRST]
        _emit_pool(scope, step, type, window)

    return convert


def _global_pool(scope: OnnxScope, step: Step) -> None:
    shape = scope.shape(step.node.inputs[0])
    if len(shape) != 4:
        raise ModelError(f"has an input of rank {len(shape)}, 4 is translated")
    valid = int(PaddingScheme.VALID)
    window: list[Input] = [valid, 1, 1, shape[3], shape[2], 0, _CHANNELS_FIRST]
    kind = OperationType.AVERAGE_POOL_2D
    if step.node.type == "GlobalMaxPool":
        kind = OperationType.MAX_POOL_2D
    _emit_pool(scope, step, kind, window)


def _emit_pool(scope: OnnxScope, step: Step, type: OperationType, window: list[Input]) -> None:
    """A pool of integers where its result is quantized alike, which a maximum always can be."""
    target, view = scope.target(step), scope.quantized(step.node.inputs[0])
    if target is not None and view is not None and is_alike(view, target):
        scope.emit_quantized(target, type, view, *window)
    elif view is not None and type == OperationType.MAX_POOL_2D:
        value = scope.builder.operation(type, view, *window, like=view)
        scope.define(step.output, QuantizedView(value))
    else:
        scope.emit(step, type, scope.input(step.node, 0), *window)


def _resize(scope: OnnxScope, step: Step) -> None:
    node = step.node
    shape = scope.shape(node.inputs[0])
    if len(shape) != 4 or node.attribute("axes", None) or node.attribute("antialias", 0):
        raise ModelError("resizes in a way that is not translated")
    if scope.has(node, 3):
        sizes = scope.integers(node, 3, "sizes")
        scales = [after / before for after, before in zip(sizes, shape, strict=True)]
    else:
        scales = [float(n) for n in scope.constant(node, 2, "scales").reshape(-1)]
        sizes = [math.floor(n * scale) for n, scale in zip(shape, scales, strict=True)]
    if tuple(sizes[:2]) != shape[:2] or min(sizes) < 1 or max(sizes[2:]) > _MOST_PIXELS:
        raise ModelError(f"resizes {list(shape)} to {sizes}")
    mode = node.attribute("mode", "nearest")
    form = node.attribute("coordinate_transformation_mode", _HALF)
    if form == "pytorch_half_pixel" and min(sizes[2:]) > 1:
        form = _HALF
    if mode == "linear":
        type, flags = OperationType.RESIZE_BILINEAR, _linear(form, shape, sizes, scales)
    elif mode == "nearest":
        type = OperationType.RESIZE_NEAREST_NEIGHBOR
        flags = _nearest(node, form, shape, sizes, scales)
    else:
        raise ModelError(f"has mode {mode}")
    _emit_resize(scope, step, type, [sizes[3], sizes[2], _CHANNELS_FIRST, *flags])


def _emit_resize(scope: OnnxScope, step: Step, type: OperationType, window: list[Input]) -> None:
    view: Value | None = scope.quantized(step.node.inputs[0])
    if view is not None and type == OperationType.RESIZE_NEAREST_NEIGHBOR:
        value = scope.builder.operation(type, view, *window, like=view)
        scope.define(step.output, QuantizedView(value))
        return
    scope.emit(step, type, scope.input(step.node, 0), *window)


def _linear(form: str, shape: Shape, sizes: list[int], scales: list[float]) -> list[bool]:
    """Flags align_corners and half_pixel_centers that mean the same."""
    if form == _CORNERS:
        return [True, False]
    exact = all(
        abs(n * scale - size) < 1e-4 * size
        for n, scale, size in zip(shape, scales, sizes, strict=True)
    )
    if form not in (_HALF, "asymmetric") or not exact:
        raise ModelError(f"has scales {scales} and coordinates {form}")
    return [False, form == _HALF]


def _nearest(
    node: OnnxNode, form: str, shape: Shape, sizes: list[int], scales: list[float]
) -> list[bool]:
    """The flags with which the HAL takes the very same pixels."""
    rounding = _ROUNDING.get(node.attribute("nearest_mode", "round_prefer_floor"))
    if rounding is None:
        raise ModelError("rounds in an unknown way")
    wanted = [
        rounding(_places(form, shape[axis], sizes[axis], scales[axis])).clip(0, shape[axis] - 1)
        for axis in (2, 3)
    ]
    for corners, half in ((False, False), (False, True), (True, False)):
        found = [_pixels(shape[axis], sizes[axis], corners, half) for axis in (2, 3)]
        if all(np.array_equal(a, b) for a, b in zip(wanted, found, strict=True)):
            return [corners, half]
    raise ModelError("takes other pixels than the HAL can")


def _places(form: str, before: int, after: int, scale: float) -> Array:
    """Where the pixels of the output lie over those of the input."""
    places = np.arange(after, dtype=np.float64)
    if form == _HALF:
        return (places + 0.5) / scale - 0.5
    if form == "asymmetric":
        return places / scale
    if form == _CORNERS:
        return places * (before - 1) / max(after - 1, 1)
    raise ModelError(f"has coordinates {form}")


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


CONVERTERS: dict[str, Convert] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool(OperationType.MAX_POOL_2D),
    "AveragePool": _pool(OperationType.AVERAGE_POOL_2D),
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "Resize": _resize,
}
"""How each operator becomes operations."""
