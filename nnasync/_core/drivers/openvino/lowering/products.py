"""Convolutions and FULLY_CONNECTED: sums of products, a bias, and what follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import (
    Node,
    Planar,
    Result,
    Scope,
    is_float,
    zero_point,
)
from nnasync._core.drivers.openvino.lowered import (
    BYTES,
    Build,
    OpenVinoUnsupported,
    Rule,
    Rules,
    one,
)
from nnasync._core.drivers.openvino.lowering.elementwise import bounds_of
from nnasync._core.drivers.openvino.lowering.requantization import rescale
from nnasync._core.drivers.openvino.saturation import adds_in_16_bits, fits_16_bits
from nnasync.hal import Array, OperandType, OperationType, is_quantized
from nnasync.kernels import Arguments, Tensor
from nnasync.kernels.windows.linear import activation
from nnasync.kernels.windows.window import (
    Window,
    filter_window,
    image_shape,
    is_implicit,
    is_nchw,
    is_same,
    position,
)

_I32 = (OperandType.TENSOR_INT32,)
Product = Callable[[Scope, Node, Node], Node]
"""Makes sums of products from the image, NCHW, and the weights."""


class _Weights:
    """Weights in the order that an operation of OpenVINO wants, constant or not."""

    __slots__ = ("_is_by_depth", "_order", "_shape", "_split")

    def __init__(
        self,
        order: Sequence[int],
        shape: Sequence[int] = (),
        split: Sequence[int] = (),
        *,
        is_by_depth: bool = False,
    ) -> None:
        """The filter is reshaped to `split`, transposed to `order`, reshaped to `shape`."""
        self._is_by_depth = is_by_depth
        self._split = tuple(split)
        self._order = tuple(order)
        self._shape = tuple(shape)

    def node(self, scope: Scope, tensor: Tensor) -> Node:
        """The weights as whole numbers less their zero point, or as floats."""
        if tensor.value is None:
            node = scope.value(1)
            node = scope.reshape(node, self._split) if self._split else node
            node = scope.transpose(node, self._order)
            return scope.reshape(node, self._shape) if self._shape else node
        if is_float(tensor.type):
            return scope.constant(self._arranged(tensor.value).astype(np.float32))
        whole = self._arranged(tensor.value).astype(np.int16) - np.int16(zero_point(tensor))
        scope.is_product_of_reals = not are_signed_bytes(tensor)
        if not scope.uses_bytes or scope.is_product_of_reals:
            return scope.constant(whole.astype(np.float32))
        if not self._needs_no_wide_sums(tensor) and adds_in_16_bits():
            scope.is_product_of_reals = True
            return scope.constant(whole.astype(np.float32))
        wide = scope.op.convert(scope.constant(whole.astype(np.int8)), "f32")
        return scope.op.multiply(wide, scope.number(1))

    def _needs_no_wide_sums(self, tensor: Tensor) -> bool:
        """Returns whether weights can be bytes without VNNI, where some matrices fail."""
        is_matrix = len(self._order) == 2
        return self._is_by_depth or (not is_matrix and fit_16_bits(tensor))

    def _arranged(self, value: Array) -> Array:
        value = value.reshape(self._split) if self._split else value
        value = value.transpose(self._order)
        return value.reshape(self._shape) if self._shape else value


def are_signed_bytes(weights: Tensor) -> bool:
    """Returns whether constant weights less their zero point are signed bytes."""
    if weights.value is None or is_float(weights.type):
        return False
    zero = zero_point(weights)
    return int(weights.value.min()) - zero >= -128 and int(weights.value.max()) - zero <= 127


def fit_16_bits(weights: Tensor) -> bool:
    """Returns whether constant weights that are signed bytes need no sums of 32 bits."""
    if weights.value is None:
        return False
    return fits_16_bits(weights.value.astype(np.int16) - np.int16(zero_point(weights)))


def is_by_depth(type: int, image: Tensor, filter: Tensor) -> bool:
    """Returns whether each channel has its own filter, so that no two products are added."""
    return type == OperationType.DEPTHWISE_CONV_2D and filter.shape[-1:] == image.shape[-1:]


def _check_types(arguments: Arguments) -> None:
    source, filter, bias = (arguments.tensor(index) for index in range(3))
    if source.type in BYTES and filter.type not in (
        *BYTES,
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
    ):
        raise OpenVinoUnsupported("filters of this type are not lowered")
    if 0 in (*source.shape, *filter.shape, *bias.shape):
        raise OpenVinoUnsupported("images without elements are not lowered")


def _finish(
    scope: Scope,
    node: Node,
    output: Tensor,
    fused: int,
    shape: Sequence[int],
    *,
    halves_up: bool,
) -> Node:
    """Add the bias, which has this shape, and store the sums.

    A constant bias of quantized sums is left to the quantization: OpenVINO would make a bfloat16 of
    it in a graph of that precision.
    """
    source, filter, bias = (scope.tensor(index) for index in range(3))
    bounds = bounds_of(fused, output)
    constant = None if bias.value is None else bias.value.reshape(shape)
    if constant is None:
        added = scope.op.convert(scope.value(2), "f32") if bias.type in _I32 else scope.value(2)
        node = scope.op.add(node, scope.reshape(added, shape))
    elif constant.any() and is_float(output.type):
        node = scope.op.add(node, scope.constant(constant.astype(np.float32)))
    if not is_quantized(output.type):
        return scope.store(node, output, bounds)
    quant = filter.channel_quant
    scales = np.asarray(quant.scales).reshape(shape) if quant else np.float64(filter.scale)
    multiplier = scales * source.scale / output.scale
    left = np.zeros(()) if constant is None else constant
    return rescale(scope, node, output, multiplier, bounds, bias=left, halves_up=halves_up)


def _image(
    arguments: Arguments,
    output: Tensor,
    weights: _Weights,
    product: Product,
    *,
    halves_up: bool = False,
    separate: bool = False,
) -> Build:
    """A product over images, in either layout; a separate one comes in another shape."""
    if is_quantized(output.type) and arguments.tensor(2).value is None:
        raise OpenVinoUnsupported(
            "OpenVINO adds a variable bias to the wrong channels of narrow images"
        )
    fused = activation(arguments, position(arguments, "activation"))
    nchw = is_nchw(arguments)

    def build(scope: Scope) -> Result:
        source = scope.value(0) if nchw else scope.planar(0)
        sums = product(scope, source, weights.node(scope, scope.tensor(1)))
        result = _finish(scope, sums, output, fused, (1, -1, 1, 1), halves_up=halves_up)
        if separate:
            shape = output.shape if nchw else tuple(output.shape[axis] for axis in (0, 3, 1, 2))
            result = scope.reshape(result, shape)
        return result if nchw else Planar(result)

    return one(build)


def _strides(window: Window) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, padding before and after, dilations: each of height and width."""
    axes = (window.height, window.width)
    return (
        [axis.stride for axis in axes],
        [axis.head for axis in axes],
        [axis.tail for axis in axes],
        [axis.dilation for axis in axes],
    )


def _check_pixels(arguments: Arguments, output: Tensor) -> None:
    """Raise Unsupported for quantized groups of channels of which a single pixel comes out."""
    pixels = output.shape[2:] if is_nchw(arguments) else output.shape[1:3]
    if is_quantized(output.type) and pixels == (1, 1):
        raise OpenVinoUnsupported("OpenVINO scales groups of single pixels wrong")


def _convolution(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    _check_types(arguments)
    geometry = _strides(filter_window(arguments))

    def product(scope: Scope, image: Node, weights: Node) -> Node:
        return scope.op.convolution(image, weights, *geometry)

    weights = _Weights((0, 3, 1, 2))
    return _image(arguments, outputs[0], weights, product, halves_up=True)


def _depthwise(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    _check_types(arguments)
    geometry = _strides(filter_window(arguments))
    _, height, width, channels = arguments.tensor(1).shape
    _check_pixels(arguments, outputs[0])
    inputs = image_shape(arguments)[3]
    shape = (inputs, channels // inputs, 1, height, width)

    def product(scope: Scope, image: Node, weights: Node) -> Node:
        return scope.op.group_convolution(image, weights, *geometry)

    weights = _Weights((3, 0, 1, 2), shape, is_by_depth=channels == inputs)
    return _image(arguments, outputs[0], weights, product)


def _grouped(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    _check_types(arguments)
    geometry = _strides(filter_window(arguments))
    _check_pixels(arguments, outputs[0])
    groups = arguments.integer(position(arguments, "groups"), 1)
    channels, height, width, inputs = arguments.tensor(1).shape
    shape = (groups, channels // groups, inputs, height, width)

    def product(scope: Scope, image: Node, weights: Node) -> Node:
        return scope.op.group_convolution(image, weights, *geometry)

    return _image(arguments, outputs[0], _Weights((0, 3, 1, 2), shape), product)


def _transposed(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    _check_types(arguments)
    filter = arguments.tensor(1).shape
    first = position(arguments, "stride_width")
    strides = [arguments.integer(first + 1, 1), arguments.integer(first, 1)]
    heads, tails = _cut(arguments, strides, outputs[0])
    extra = [max(-tail, 0) for tail in tails]
    if any(size >= stride for size, stride in zip(extra, strides, strict=True)):
        raise OpenVinoUnsupported("padding below 0 by a stride or more is not lowered")
    if any(head >= size for head, size in zip(heads, filter[1:3], strict=True)):
        raise OpenVinoUnsupported("padding by a filter or more is not lowered")
    after = [max(tail, 0) for tail in tails]

    def product(scope: Scope, image: Node, weights: Node) -> Node:
        sums = scope.op.convolution_backprop_data(
            image,
            weights,
            strides,
            pads_begin=heads,
            pads_end=after,
            dilations=[1, 1],
            output_padding=extra,
        )
        # OpenVINO would apply an activation to the sums before it adds the bias.
        shape = tuple(sums.shape)
        return scope.reshape(sums, (*shape[:2], shape[2] * shape[3], 1))

    return _image(arguments, outputs[0], _Weights((3, 0, 1, 2)), product, separate=True)


def _cut(
    arguments: Arguments, strides: Sequence[int], output: Tensor
) -> tuple[list[int], list[int]]:
    """Returns what a transposed convolution cuts off before and after, of height and width."""
    _, *sizes, _ = image_shape(arguments)
    results = output.shape[2:] if is_nchw(arguments) else output.shape[1:3]
    totals = [
        (size - 1) * stride + filter - result
        for size, stride, filter, result in zip(
            sizes, strides, arguments.tensor(1).shape[1:3], results, strict=True
        )
    ]
    if not is_implicit(arguments):
        first = position(arguments, "padding_left")
        heads = [arguments.integer(first + 2), arguments.integer(first)]
    else:
        heads = [max(total, 0) // 2 if is_same(arguments) else 0 for total in totals]
    return heads, [total - head for total, head in zip(totals, heads, strict=True)]


def _dense(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    _check_types(arguments)
    output, fused = outputs[0], activation(arguments, 3)
    terms = arguments.tensor(1).shape[1]
    weights = _Weights((0, 1))

    def build(scope: Scope) -> Result:
        source = scope.value(0)
        if scope.tensor(0).shape != (output.shape[0], terms):
            source = scope.reshape(source, (output.shape[0], terms))
        sums = scope.op.matmul(source, weights.node(scope, scope.tensor(1)), False, True)
        return _finish(scope, sums, output, fused, (1, -1), halves_up=True)

    return one(build)


RULES: Rules = {
    OperationType.CONV_2D: Rule(_convolution),
    OperationType.DEPTHWISE_CONV_2D: Rule(_depthwise),
    OperationType.GROUPED_CONV_2D: Rule(_grouped),
    OperationType.TRANSPOSE_CONV_2D: Rule(_transposed),
    OperationType.FULLY_CONNECTED: Rule(_dense),
}
