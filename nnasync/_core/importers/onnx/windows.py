"""Operators that slide windows over images with channels first: convolutions and pools."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.importers.onnx.forms import Convert, check_count, is_alike, is_float, outputs_of
from nnasync._core.importers.onnx.moving import cut, joined_along
from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedView
from nnasync._core.importers.onnx.weights import WeightedLayer, quantized_layer
from nnasync._core.model import Value
from nnasync._core.model.graph import Input, int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType, PaddingScheme, Shape

_CHANNELS_FIRST = True


def _spatial(node: OnnxNode, name: str) -> tuple[int, int]:
    """Two numbers of an attribute, (rows, columns); 1 each by default, and for rows of a line."""
    given = list(node.attribute(name, [1, 1]))
    if len(given) == 1:
        given = [1, *given]
    if len(given) != 2:
        raise ModelError(f"has {name} of {len(given)} dimensions, 2 are translated")
    return int(given[0]), int(given[1])


def _image(scope: OnnxScope, node: OnnxNode) -> Shape:
    """The shape of the input as images; lines are images of one row."""
    shape = scope.shape(node.inputs[0])
    if len(shape) not in (3, 4):
        raise ModelError(f"has an input of rank {len(shape)}, 3 and 4 are translated")
    return shape if len(shape) == 4 else (*shape[:2], 1, shape[2])


def _finish(scope: OnnxScope, step: Step, y: Value) -> None:
    """Make images the result; lines again where the input was lines."""
    is_line = len(scope.shape(step.node.inputs[0])) == 3
    scope.define(step.output, y, (*y.shape[:2], y.shape[3]) if is_line else y.shape)


def _pads(node: OnnxNode, known: Shape, size: tuple[int, int]) -> list[int]:
    """Padding (left, right, top, bottom)."""
    mode = node.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0, 0, 0, 0]
    if mode == "NOTSET":
        given = [int(n) for n in node.attribute("pads", [0, 0, 0, 0])]
        top, left, bottom, right = given if len(given) == 4 else (0, given[0], 0, given[1])
        return [left, right, top, bottom]
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
    shape = _image(scope, node)
    weights = scope.constant(node, 1, "weights")
    if weights.ndim != len(scope.shape(node.inputs[0])):
        raise ModelError(f"has weights of rank {weights.ndim}")
    is_line = weights.ndim == 3
    weights = weights[:, :, np.newaxis] if is_line else weights
    groups = int(node.attribute("group", 1))
    type, order = _kind(groups, shape[1], weights.shape)
    axis = 3 if type == OperationType.DEPTHWISE_CONV_2D else 0
    layer = None if is_line else quantized_layer(scope, step, order, axis)
    target = scope.target(step)
    if layer is None or target is None:
        x = scope.reshaped(node.inputs[0], shape)
        target, layer = None, _float_layer(scope, step, x, weights, order)
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
        _finish(scope, step, scope.builder.operation(type, *inputs))


def _kind(groups: int, channels: int, weights: Shape) -> tuple[OperationType, tuple[int, ...]]:
    """The operation, and where the axes of its weights come from."""
    if groups == 1:
        return OperationType.CONV_2D, (0, 2, 3, 1)
    if groups == channels and weights[1] == 1:
        return OperationType.DEPTHWISE_CONV_2D, (1, 2, 3, 0)
    return OperationType.GROUPED_CONV_2D, (0, 2, 3, 1)


def _float_layer(
    scope: OnnxScope, step: Step, x: Value, weights: Array, order: tuple[int, ...]
) -> WeightedLayer:
    node = step.node
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


def _across_first(numbers: tuple[int, int]) -> list[int]:
    return [numbers[1], numbers[0]]


def _transposed(scope: OnnxScope, step: Step) -> None:
    """A transposed convolution; what a file adds to the output is padding taken away, or added."""
    node = step.node
    shape, weights = _image(scope, node), scope.constant(node, 1, "weights")
    if len(scope.shape(node.inputs[0])) == 4 and _transposed_of_integers(
        scope, step, shape, weights
    ):
        return
    weights = weights[:, :, np.newaxis] if weights.ndim == 3 else weights
    x = scope.reshaped(node.inputs[0], shape)
    if weights.ndim != 4 or not is_float(x):
        raise ModelError(f"has weights of rank {weights.ndim}, or integers")
    if _spatial(node, "dilations") != (1, 1):
        raise ModelError("has dilations")
    check_count(weights.shape[1] * node.attribute("group", 1))
    bias = np.zeros(weights.shape[1] * node.attribute("group", 1), weights.dtype)
    if scope.has(node, 2):
        bias = scope.constant(node, 2, "bias")
    pads, missing = _transposed_pads(node, shape, (weights.shape[2], weights.shape[3]))
    strides = _across_first(_spatial(node, "strides"))
    groups = int(node.attribute("group", 1))
    parts = _parts(scope, x, groups)
    results = []
    for part, filters, offsets in zip(
        parts, np.split(weights, groups), np.split(bias, groups), strict=True
    ):
        matrix = np.ascontiguousarray(filters.transpose(1, 2, 3, 0))
        inputs: list[Input] = [part, matrix, np.ascontiguousarray(offsets), *pads, *strides]
        activation = 0 if missing else step.activation
        type = OperationType.TRANSPOSE_CONV_2D
        results.append(scope.builder.operation(type, *inputs, activation, _CHANNELS_FIRST))
    y = results[0] if groups == 1 else joined_along(scope, results, 1)
    if missing:
        raise ModelError("pads its output by more than it takes away")
    _finish(scope, step, y)


def _transposed_of_integers(scope: OnnxScope, step: Step, shape: Shape, weights: Array) -> bool:
    """Add a quantized operation, if the layer can be one."""
    node = step.node
    target = scope.target(step)
    if target is None or node.attribute("group", 1) != 1 or _spatial(node, "dilations") != (1, 1):
        return False
    pads, missing = _transposed_pads(node, shape, (weights.shape[2], weights.shape[3]))
    layer = None if missing else quantized_layer(scope, step, (1, 2, 3, 0), 0)
    if layer is None:
        return False
    window = [*pads, *_across_first(_spatial(node, "strides")), step.activation, _CHANNELS_FIRST]
    type = OperationType.TRANSPOSE_CONV_2D
    scope.emit_quantized(target, type, layer.x, layer.weights, layer.bias, *window)
    return True


def _parts(scope: OnnxScope, x: Value, groups: int) -> list[Value]:
    """The channels in groups."""
    size = x.shape[1] // groups
    whole = [range(n) for n in x.shape]
    return [
        cut(scope, x, [whole[0], range(n * size, (n + 1) * size), *whole[2:]])
        for n in range(groups)
    ]


def _transposed_pads(node: OnnxNode, shape: Shape, size: tuple[int, int]) -> tuple[list[int], bool]:
    """Padding (left, right, top, bottom), and whether there would have to be less than none."""
    strides = _spatial(node, "strides")
    extra = [*node.attribute("output_padding", [0, 0])]
    extra = [0, *extra] if len(extra) == 1 else extra
    stated = node.attribute("output_shape", None)
    mode = _mode(node)
    found: list[tuple[int, int]] = []
    for place in (1, 0):
        full = (shape[2 + place] - 1) * strides[place] + size[place] + extra[place]
        if stated is None and mode in ("NOTSET", "VALID"):
            left, right, top, bottom = _pads(node, shape, size)
            begin, end = (left, right) if place else (top, bottom)
        else:
            sizes = [n * stride for n, stride in zip(shape[2:], strides, strict=True)]
            if stated is not None:
                sizes = [1, *stated][-2:]
            total = max(full - sizes[place], 0)
            less, more = total // 2, total - total // 2
            begin, end = (less, more) if mode == "SAME_UPPER" else (more, less)
        found.append((begin, end - extra[place]))
    return [*found[0], *found[1]], any(n < 0 for pair in found for n in pair)


def _mode(node: OnnxNode) -> str:
    return str(node.attribute("auto_pad", "NOTSET"))


def _pool(type: OperationType) -> Convert:
    def convert(scope: OnnxScope, step: Step) -> None:
        node = step.node
        outputs_of(node, 1)
        shape = _image(scope, node)
        if _spatial(node, "dilations") != (1, 1):
            raise ModelError("has dilations")
        size, strides = _spatial(node, "kernel_shape"), _spatial(node, "strides")
        pads = _pads(node, shape, size)
        counted = bool(node.attribute("count_include_pad", 0))
        if node.attribute("ceil_mode", 0):
            pads, counted = _rounded_up(pads, shape, size, strides), counted and any(pads)
        is_mean = type == OperationType.AVERAGE_POOL_2D
        window: list[Input] = [*pads, *_across_first(strides), *_across_first(size)]
        if is_mean and counted and any(pads):
            _pool_with_border(scope, step, shape, pads, window)
            return
        _emit_pool(scope, step, type, [*window, step.activation, _CHANNELS_FIRST])

    return convert


def _rounded_up(
    pads: list[int], shape: Shape, size: tuple[int, int], strides: tuple[int, int]
) -> list[int]:
    """Padding with so much more at the end that the last window is there which begins inside."""
    found = list(pads)
    for place, (begin, end) in ((1, (0, 1)), (0, (2, 3))):
        length = shape[2 + place]
        rest = length + pads[begin] + pads[end] - size[place]
        steps = -(-rest // strides[place])
        if steps * strides[place] >= length + pads[begin]:
            steps -= 1
        found[end] += steps * strides[place] - rest if steps * strides[place] > rest else 0
    return found


def _pool_with_border(
    scope: OnnxScope, step: Step, shape: Shape, pads: list[int], window: list[Input]
) -> None:
    """A mean that counts the padding: of an image with a border of zeros."""
    if step.node.attribute("ceil_mode", 0):
        raise ModelError("counts the padding, and rounds its size up")
    left, right, top, bottom = pads
    x = scope.reshaped(step.node.inputs[0], shape)
    border = int32_array([[0, 0], [0, 0], [top, bottom], [left, right]])
    padded = scope.builder.operation(OperationType.PAD, x, border)
    inputs = [0, 0, 0, 0, *window[4:], step.activation, _CHANNELS_FIRST]
    _finish(scope, step, scope.builder.operation(OperationType.AVERAGE_POOL_2D, padded, *inputs))


def _global_pool(scope: OnnxScope, step: Step) -> None:
    shape = scope.shape(step.node.inputs[0])
    is_mean = step.node.type == "GlobalAveragePool"
    if len(shape) != 4:
        lines = scope.reshaped(step.node.inputs[0], (*shape[:2], math.prod(shape[2:])))
        kind = OperationType.MEAN if is_mean else OperationType.REDUCE_MAX
        y = scope.builder.operation(kind, lines, int32_array([2]), 1 if is_mean else True)
        scope.define(step.output, y, (*shape[:2], *[1] * (len(shape) - 2)))
        return
    valid = int(PaddingScheme.VALID)
    window: list[Input] = [valid, 1, 1, shape[3], shape[2], 0, _CHANNELS_FIRST]
    kind = OperationType.AVERAGE_POOL_2D if is_mean else OperationType.MAX_POOL_2D
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
        x = scope.reshaped(step.node.inputs[0], _image(scope, step.node))
        _finish(scope, step, scope.builder.operation(type, x, *window))


CONVERTERS: dict[str, Convert] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "MaxPool": _pool(OperationType.MAX_POOL_2D),
    "AveragePool": _pool(OperationType.AVERAGE_POOL_2D),
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
}
"""How each operator becomes operations."""
