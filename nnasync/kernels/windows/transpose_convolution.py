"""TRANSPOSE_CONV_2D: every input pixel adds its filter, weighted, to a window of the output.

One matrix product per block of input rows makes what all pixels add to all taps of their windows;
then each tap is one addition, over all pixels whose windows have that tap inside of the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.facts import CriterionClass, Facts, each_input
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Step,
    Tensor,
)
from nnasync.kernels.steps import Call, blocks, copy, pieces
from nnasync.kernels.windows.convolution_form import Form, check_filter, requires, signatures
from nnasync.kernels.windows.linear import Linear, activation, pack
from nnasync.kernels.windows.rescale import Halves
from nnasync.kernels.windows.window import (
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    LAYOUT,
    STRIDES,
    Axis,
    Window,
    image_result,
    image_shape,
    in_layout,
    is_implicit,
    is_nchw,
    is_same,
    position,
)

_SHAPE = (Parameter("output_shape", OperandType.TENSOR_INT32, ranks=(1,)),)
_ACTIVATION = (Parameter("activation", OperandType.INT32),)


def _forms() -> list[Form]:
    return [
        (HalVersion.V1_2, (*padding, *STRIDES, *_ACTIVATION, *LAYOUT))
        for padding in (_SHAPE + IMPLICIT_PADDING, EXPLICIT_PADDING)
    ]


def _window(arguments: Arguments) -> Window:
    """The window over the output, whose positions are the input's pixels."""
    _, *sizes, _ = image_shape(arguments)
    filters = arguments.tensor(1).shape[1:3]
    first = position(arguments, "stride_width")
    strides = (arguments.integer(first + 1, 1), arguments.integer(first, 1))
    if is_implicit(arguments):
        pads = _implicit(arguments, strides, filters)
    else:
        first = position(arguments, "padding_left")
        left, top = arguments.integer(first, 0), arguments.integer(first + 2, 0)
        right, bottom = arguments.integer(first + 1), arguments.integer(first + 3)
        pads = [(top, bottom), (left, right)]
    height, width = (
        Axis(
            input=(size - 1) * stride + filter - head - tail,
            filter=filter,
            stride=stride,
            dilation=1,
            head=head,
            tail=tail,
        )
        for size, stride, filter, (head, tail) in zip(sizes, strides, filters, pads, strict=True)
    )
    if height.input < 1 or width.input < 1:
        raise arguments.fail(f"the output would be {height.input} x {width.input}")
    return Window(height=height, width=width)


def _implicit(
    arguments: Arguments, strides: tuple[int, int], filters: Shape
) -> list[tuple[int, int]]:
    """Padding (before, after) of height and width; what is after may be negative."""
    sizes = arguments.integers(3)
    if len(sizes) != 4:
        raise arguments.error(3, f"has {len(sizes)} elements, expected 4")
    if not is_same(arguments):
        return [(0, 0), (0, 0)]
    pads = []
    for size, stride, filter in zip(
        sizes[2:] if is_nchw(arguments) else sizes[1:3], strides, filters, strict=True
    ):
        total = (-(-size // stride) - 1) * stride + filter - size
        head = max(total, 0) // 2
        pads.append((head, total - head))
    return pads


def _infer(arguments: Arguments) -> list[Tensor]:
    outputs = arguments.tensor(1, 4).shape[0]
    check_filter(arguments, image_shape(arguments)[3], outputs)
    window = _window(arguments)
    return [image_result(arguments, window.height.input, window.width.input, outputs)]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    filter = arguments.value(1)
    fused = activation(arguments, position(arguments, "activation"))
    weights = filter.reshape(filter.shape[0], -1).T
    linear = pack(arguments, weights, outputs[0], fused, halves=Halves.AWAY, centered=True)
    kernel = _kernel(linear, image_shape(arguments), _window(arguments), arguments.tensor(0))
    return in_layout(arguments, outputs, kernel)


def _kernel(linear: Linear, shape: Shape, window: Window, source: Tensor) -> Kernel:
    taps = window.height.filter * window.width.filter
    batches, rows, columns, terms = shape
    channels = linear.weights.shape[1]
    by_pixel = linear.weights.reshape(taps, terms, channels).transpose(1, 0, 2)
    weights = np.ascontiguousarray(by_pixel).reshape(terms, taps * channels)
    parts = list(blocks(rows, columns * max(terms, taps * channels)))
    largest = parts[0].stop
    size = (window.height.input, window.width.input, channels)
    specs = [ArraySpec((largest, columns, taps * channels), linear.dtype), *linear.scratch(size)]
    if linear.quantized:
        specs.append(ArraySpec((largest, columns, terms), linear.dtype))
    zero = np.asarray(source.zero_point, linear.dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images, output = inputs[0].reshape(shape), outputs[0].reshape(batches, *size)

        def calls() -> Iterator[Call]:
            for image, target in zip(images, output, strict=True):
                sums, rest = linear.sums(target, scratch[1:])
                yield copy(sums, np.zeros((), linear.dtype))
                for part in parts:
                    pixels = image[part]
                    products = scratch[0][: len(pixels)]
                    if linear.quantized:
                        centered = scratch[-1][: len(pixels)]
                        yield copy(centered, pixels)
                        yield np.subtract, (centered, zero, centered)
                        pixels = centered
                    result = products.reshape(-1, taps * channels)
                    yield pixels.reshape(-1, terms).dot, (weights, result)
                    yield from _scatter(products, sums, window, part.start)
                yield from linear.finish(sums, target, rest)

        return pieces(batches * len(parts) * -(-taps // 10), calls)

    return Kernel(bind, specs)


def _scatter(products: Array, sums: Array, window: Window, first: int) -> Iterator[Call]:
    """Calls that add the products of rows from `first` on to what they contribute to."""
    height, width = window.height, window.width
    rows, columns = products.shape[:2]
    parts = products.reshape(rows, columns, height.filter, width.filter, -1)
    for y in range(height.filter):
        source_rows, target_rows = _inside(height, y, first, rows)
        for x in range(width.filter):
            source_columns, target_columns = _inside(width, x, 0, columns)
            target = sums[target_rows, target_columns]
            if target.size:
                yield np.add, (target, parts[source_rows, source_columns, y, x], target)


def _inside(axis: Axis, tap: int, first: int, count: int) -> tuple[slice, slice]:
    """Returns which of `count` positions from `first` on have a tap inside the axis, and where."""
    offset = first * axis.stride - axis.head + tap
    start = max(-(offset // axis.stride), 0)
    stop = max(min(-((offset - axis.input) // axis.stride), count), start)
    begin = offset + start * axis.stride
    end = begin + max((stop - start - 1) * axis.stride + 1, 0)
    return slice(start, stop), slice(begin, end if stop > start else begin, axis.stride)


TRANSPOSE_CONV_2D = Operation(
    OperationType.TRANSPOSE_CONV_2D,
    signatures(_forms()),
    _infer,
    _prepare,
    empty=True,
    requires=requires(channel_dim=0),
    facts=Facts(CriterionClass.CONVOLUTION, multiply_adds=each_input),
)
