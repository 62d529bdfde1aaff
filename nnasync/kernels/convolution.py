"""CONV_2D and DEPTHWISE_CONV_2D.

A convolution is one matrix product per block of output pixels: the pixels' windows are laid out as
rows (for 1x1 windows they are rows already). A depthwise convolution is a multiplication and an
addition per tap of the window, over whole rows of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.linear import Linear, activation, pack
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.rescale import Halves
from nnasync.kernels.steps import BLOCK_ELEMENTS, Call, blocks, copy, repeats, sequence
from nnasync.kernels.window import (
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    STRIDES,
    PaddedRows,
    Window,
    as_nhwc,
    from_nchw,
    is_implicit,
    read_axes,
)

__all__ = ["OPERATIONS", "CONV_2D", "DEPTHWISE_CONV_2D", "TYPES", "layout_forms"]

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_QPC, _I32 = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, OperandType.TENSOR_INT32

TYPES: tuple[tuple[OperandType, OperandType, OperandType, HalVersion], ...] = (
    (_F32, _F32, _F32, HalVersion.V1_0),
    (_Q8, _Q8, _I32, HalVersion.V1_0),
    (_F16, _F16, _F16, HalVersion.V1_2),
    (_Q8, _QPC, _I32, HalVersion.V1_2),
    (_Q8S, _Q8S, _I32, HalVersion.V1_3),
    (_Q8S, _QPC, _I32, HalVersion.V1_3),
)
"""Types of input (and output), filter and bias, and their HAL version."""

_LAYOUT = (Parameter("is_nchw", OperandType.BOOL),)
_DILATIONS = (
    Parameter("dilation_width", OperandType.INT32),
    Parameter("dilation_height", OperandType.INT32),
)


def layout_forms(
    scalars: tuple[Parameter, ...], *, dilations: bool
) -> list[tuple[HalVersion, tuple[Parameter, ...]]]:
    """Scalars without and with layout flag and dilations, with the versions of these forms."""
    forms = [(HalVersion.V1_0, scalars), (HalVersion.V1_2, scalars + _LAYOUT)]
    if dilations:
        forms.append((HalVersion.V1_2, scalars + _LAYOUT + _DILATIONS))
    return forms


def _signatures(middle: tuple[Parameter, ...]) -> list[Signature]:
    """Both padding forms of a convolution; `middle` stands between strides and activation."""
    end = (*middle, Parameter("activation", OperandType.INT32))
    signatures = []
    for data, filter, bias, since in TYPES:
        tensors = (Parameter("input", data), Parameter("filter", filter), Parameter("bias", bias))
        for padding in (IMPLICIT_PADDING, EXPLICIT_PADDING):
            for version, scalars in layout_forms((*padding, *STRIDES, *end), dilations=True):
                outputs = (Parameter("output", data),)
                signatures.append(Signature(max(since, version), tensors + scalars, outputs))
    return signatures


def _position(arguments: Arguments, name: str) -> int:
    """Index of a named argument, or one past the last when this form does not have it."""
    names = [parameter.name for parameter in arguments.signature.inputs]
    return names.index(name) if name in names else len(names)


def _is_nchw(arguments: Arguments) -> bool:
    return arguments.flag(_position(arguments, "is_nchw"))


def _nhwc(arguments: Arguments) -> Shape:
    """Shape of the input image as batches, height, width, channels."""
    shape = arguments.tensor(0, 4).shape
    return as_nhwc(shape) if _is_nchw(arguments) else shape


def _window(arguments: Arguments) -> Window:
    _, height, width, _ = _nhwc(arguments)
    filter = arguments.tensor(1, 4).shape
    return read_axes(
        arguments,
        3,
        (height, width),
        (filter[1], filter[2]),
        strides=4 if is_implicit(arguments, 3) else 7,
        dilations=_position(arguments, "dilation_width"),
    )


def _output(arguments: Arguments, channels: int) -> list[Tensor]:
    window = _window(arguments)
    batches, height, width = _nhwc(arguments)[0], window.height.output, window.width.output
    nhwc = (batches, height, width, channels)
    shape = (batches, channels, height, width) if _is_nchw(arguments) else nhwc
    return [Tensor(type=arguments.tensor(0).type, shape=shape)]


def _with_layout(arguments: Arguments, outputs: Sequence[Tensor], kernel: Kernel) -> Kernel:
    if not _is_nchw(arguments):
        return kernel
    return from_nchw(kernel, arguments.tensor(0), outputs[0])


def _image(inputs: Sequence[Any], shape: Shape) -> Array:
    image: Array = inputs[0]
    return image.reshape(shape)


def _infer_convolution(arguments: Arguments) -> list[Tensor]:
    filter = arguments.tensor(1, 4)
    channels = _nhwc(arguments)[3]
    if filter.shape[3] != channels:
        raise arguments.error(1, f"has {filter.shape[3]} input channels, expected {channels}")
    return _output(arguments, filter.shape[0])


def _prepare_convolution(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    filter = arguments.value(1)
    fused = activation(arguments, _position(arguments, "activation"))
    linear = pack(arguments, filter.reshape(filter.shape[0], -1).T, outputs[0], fused)
    kernel = _convolution_kernel(linear, _nhwc(arguments), _window(arguments), arguments.tensor(0))
    return _with_layout(arguments, outputs, kernel)


def _convolution_kernel(linear: Linear, shape: Shape, window: Window, source: Tensor) -> Kernel:
    if window.is_pointwise:
        return _pointwise_kernel(linear, shape, source)
    return _window_kernel(linear, shape, window)


def _pointwise_kernel(linear: Linear, shape: Shape, source: Tensor) -> Kernel:
    """A convolution of 1x1 windows: the pixels are the rows of a matrix."""
    terms, channels = linear.weights.shape
    pixels = shape[0] * shape[1] * shape[2]
    parts = list(blocks(pixels, max(terms, channels)))
    largest = parts[0].stop if parts else 0
    convert = source.dtype != linear.dtype
    specs = linear.scratch((largest, channels))
    if convert:
        specs.append(ArraySpec((largest, terms), linear.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        image = _image(inputs, (pixels, terms))
        output = outputs[0].reshape(pixels, channels)
        calls: list[Call] = []
        for part in parts:
            rows, target = image[part], output[part]
            if convert:
                converted = scratch[-1][: len(rows)]
                calls.append(copy(converted, rows))
                rows = converted
            sums, rest = linear.sums(target, scratch)
            calls.append((rows.dot, (linear.weights, sums)))
            calls += linear.finish(sums, target, rest)
        return sequence(calls)

    return Kernel(bind, specs)


def _window_kernel(linear: Linear, shape: Shape, window: Window) -> Kernel:
    """A convolution of larger windows: they are copied side by side to become rows."""
    terms, channels = linear.weights.shape
    batches, width = shape[0], window.width.output
    parts = list(blocks(window.height.output, width * max(terms, channels)))
    largest = parts[0].stop
    padded = PaddedRows.shape(window, largest, shape[3], phases=1)
    specs = [
        ArraySpec(padded, linear.dtype),
        ArraySpec((largest, width, terms), linear.dtype),
    ]
    specs += linear.scratch((largest, width, channels))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = _image(inputs, shape)
        output = outputs[0].reshape(batches, -1, width, channels)
        rows = PaddedRows(scratch[0], window, linear.border)
        windows = _windows(scratch[0], window, largest)
        calls = rows.sides()
        for batch in range(batches):
            for part in parts:
                count = part.stop - part.start
                columns = scratch[1][:count]
                target = output[batch, part]
                sums, rest = linear.sums(target, scratch[2:])
                calls += rows.rows(images[batch], part)
                calls.append(copy(columns.reshape(windows[:count].shape), windows[:count]))
                matrix = columns.reshape(-1, terms)
                calls.append((matrix.dot, (linear.weights, sums.reshape(-1, channels))))
                calls += linear.finish(sums, target, rest)
        return sequence(calls)

    return Kernel(bind, specs)


def _windows(buffer: Array, window: Window, rows: int) -> Array:
    """A view of all windows of a padded buffer: [rows, columns, filter height, width, channels]."""
    row, _, column, channel = buffer.strides
    height, width = window.height, window.width
    shape = (rows, width.output, height.filter, width.filter, buffer.shape[3])
    strides = (
        height.stride * row,
        width.stride * column,
        height.dilation * row,
        width.dilation * column,
        channel,
    )
    return as_strided(buffer, shape, strides)


def _infer_depthwise(arguments: Arguments) -> list[Tensor]:
    filter = arguments.tensor(1, 4)
    channels = _nhwc(arguments)[3]
    position = _position(arguments, "depth_multiplier")
    multiplier = arguments.integer(position, 1)
    if filter.shape[0] != 1 or filter.shape[3] != channels * multiplier:
        expected = f"(1, height, width, {channels * multiplier})"
        raise arguments.error(1, f"has shape {filter.shape}, expected {expected}")
    return _output(arguments, filter.shape[3])


def _prepare_depthwise(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    filter = arguments.value(1)
    fused = activation(arguments, _position(arguments, "activation"))
    weights = filter.reshape(-1, filter.shape[3])
    linear = pack(arguments, weights, outputs[0], fused, channel_dim=3, halves=Halves.AWAY)
    shape, window = _nhwc(arguments), _window(arguments)
    if shape[3] == 1:
        kernel = _convolution_kernel(linear, shape, window, arguments.tensor(0))
    else:
        kernel = _depthwise_kernel(linear, shape, window)
    return _with_layout(arguments, outputs, kernel)


def _depthwise_kernel(linear: Linear, shape: Shape, window: Window) -> Kernel:
    channels = linear.weights.shape[1]
    batches, width = shape[0], window.width.output
    parts = list(blocks(window.height.output, width * channels, BLOCK_ELEMENTS // 8))
    largest = parts[0].stop
    padded = PaddedRows.shape(window, largest, channels, phases=window.width.stride)
    specs = [ArraySpec(padded, linear.dtype), ArraySpec((largest, width, channels), linear.dtype)]
    specs += linear.scratch((largest, width, channels))
    joined = repeats(width, channels)
    weights = np.tile(linear.weights, joined)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = _image(inputs, shape)
        output = outputs[0].reshape(batches, -1, width, channels)
        rows = PaddedRows(scratch[0], window, linear.border)
        taps = _taps(scratch[0], window, largest, joined)
        calls = rows.sides()
        for batch in range(batches):
            for part in parts:
                count = part.stop - part.start
                target = output[batch, part]
                sums, rest = linear.sums(target, scratch[2:])
                calls += rows.rows(images[batch], part)
                calls += _accumulate(
                    [tap[:count] for tap in taps], weights, sums, scratch[1][:count]
                )
                calls += linear.finish(sums, target, rest)
        return sequence(calls)

    return Kernel(bind, specs)


def _taps(buffer: Array, window: Window, rows: int, joined: int) -> list[Array]:
    """What each tap sees: [rows, columns / joined, joined * channels] views of a padded buffer."""
    row, _, column, channel = buffer.strides
    height, width = window.height, window.width
    shape = (rows, width.output // joined, joined * buffer.shape[3])
    strides = (height.stride * row, joined * column, channel)
    taps = []
    for y in range(height.filter):
        for x in range(width.filter):
            start, phase = divmod(x * width.dilation, width.stride)
            corner = buffer[y * height.dilation :, phase, start:]
            taps.append(as_strided(corner, shape, strides))
    return taps


def _accumulate(taps: list[Array], weights: Array, sums: Array, product: Array) -> list[Call]:
    """Calls that sum tap * weight over the taps."""
    shape = taps[0].shape
    sums, product = sums.reshape(shape), product.reshape(shape)
    calls: list[Call] = [(np.multiply, (taps[0], weights[0], sums))]
    for tap, weight in zip(taps[1:], weights[1:], strict=True):
        calls.append((np.multiply, (tap, weight, product)))
        calls.append((np.add, (sums, product, sums)))
    return calls


CONV_2D = Operation(
    OperationType.CONV_2D, _signatures(()), _infer_convolution, _prepare_convolution
)
DEPTHWISE_CONV_2D = Operation(
    OperationType.DEPTHWISE_CONV_2D,
    _signatures((Parameter("depth_multiplier", OperandType.INT32),)),
    _infer_depthwise,
    _prepare_depthwise,
)

OPERATIONS: tuple[Operation, ...] = (
    CONV_2D,
    DEPTHWISE_CONV_2D,
)
