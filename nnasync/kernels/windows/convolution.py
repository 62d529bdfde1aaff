"""CONV_2D and DEPTHWISE_CONV_2D.

A convolution is one matrix product per block of output pixels: the pixels' windows are laid out as
rows (for 1x1 windows they are rows already). A depthwise convolution sums products over the taps of
the window in one einsum per block, whose innermost loop runs along whole rows of the image.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnasync.hal import Array, OperationType, Shape, is_quantized
from nnasync.kernels.facts import CriterionClass, Facts, each_depth, each_output
from nnasync.kernels.operation import Arguments, ArraySpec, Kernel, Operation, Step, Tensor
from nnasync.kernels.packing import packed
from nnasync.kernels.steps import BLOCK_ELEMENTS, Call, blocks, copy, pieces, sequence
from nnasync.kernels.windows.convolution_form import check_filter, forms, requires, signatures
from nnasync.kernels.windows.linear import Linear, activation, pack
from nnasync.kernels.windows.rescale import Halves
from nnasync.kernels.windows.window import (
    PaddedRows,
    Window,
    filter_window,
    image_result,
    image_shape,
    in_layout,
    lay_out,
    position,
)

_ROW_ELEMENTS = 8192
"""Longest innermost loop of a depthwise convolution: 32 KiB, what a first-level cache holds."""

_MANY_CHANNELS = 256
"""From here on a single pixel is enough for an innermost loop."""

_multiarray = importlib.import_module("numpy._core._multiarray_umath")
_einsum: Callable[..., Any] = getattr(_multiarray, "c_einsum", np.einsum)


def _result(arguments: Arguments, channels: int) -> list[Tensor]:
    window = filter_window(arguments)
    return [image_result(arguments, window.height.output, window.width.output, channels)]


def _activation(arguments: Arguments) -> int:
    return activation(arguments, position(arguments, "activation"))


def _infer_convolution(arguments: Arguments) -> list[Tensor]:
    outputs = arguments.tensor(1, 4).shape[0]
    check_filter(arguments, image_shape(arguments)[3], outputs)
    return _result(arguments, outputs)


def _prepare_convolution(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    filter = arguments.value(1)
    weights = filter.reshape(filter.shape[0], -1).T
    if not is_quantized(arguments.tensor(0).type):
        rows = weights
        weights = packed(lambda: np.ascontiguousarray(rows), rows.shape)
    linear = pack(arguments, weights, outputs[0], _activation(arguments))
    shape, window = image_shape(arguments), filter_window(arguments)
    kernel = _convolution_kernel(linear, shape, window, arguments.tensor(0))
    return in_layout(arguments, outputs, kernel)


def _convolution_kernel(linear: Linear, shape: Shape, window: Window, source: Tensor) -> Kernel:
    if window.is_pointwise:
        return _pointwise_kernel(linear, shape, source)
    return _window_kernel(linear, shape, window)


def _pointwise_kernel(linear: Linear, shape: Shape, source: Tensor) -> Kernel:
    """A convolution of 1x1 windows: the pixels are the rows of a matrix."""
    terms, channels = linear.weights.shape
    pixels = shape[0] * shape[1] * shape[2]
    parts = list(blocks(pixels, max(terms, channels)))
    largest = parts[0].stop
    convert = source.dtype != linear.dtype
    specs = linear.scratch((largest, channels))
    if convert:
        specs.append(ArraySpec((largest, terms), linear.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        image = inputs[0].reshape(pixels, terms)
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
        images = inputs[0].reshape(shape)
        output = outputs[0].reshape(batches, -1, width, channels)
        rows = PaddedRows(scratch[0], window, linear.border)

        def calls() -> Iterator[Call]:
            yield from rows.sides()
            for batch, part in itertools.product(range(batches), parts):
                columns = scratch[1][: part.stop - part.start]
                target = output[batch, part]
                sums, rest = linear.sums(target, scratch[2:])
                yield from rows.rows(images[batch], part)
                yield from lay_out(scratch[0], window, columns)
                matrix = columns.reshape(-1, terms)
                yield matrix.dot, (linear.weights, sums.reshape(-1, channels))
                yield from linear.finish(sums, target, rest)

        return pieces(batches * len(parts), calls)

    return Kernel(bind, specs)


def _infer_depthwise(arguments: Arguments) -> list[Tensor]:
    filter = arguments.tensor(1, 4)
    multiplier = arguments.integer(position(arguments, "depth_multiplier"), 1)
    channels = image_shape(arguments)[3] * multiplier
    check_filter(arguments, channels, channels)
    if filter.shape[0] != 1:
        raise arguments.error(1, f"has shape {filter.shape}, expected 1 as its first dimension")
    return _result(arguments, channels)


def _prepare_depthwise(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    filter = arguments.value(1)
    weights = filter.reshape(-1, filter.shape[3])
    fused = _activation(arguments)
    linear = pack(arguments, weights, outputs[0], fused, channel_dim=3, halves=Halves.AWAY)
    shape, window = image_shape(arguments), filter_window(arguments)
    if shape[3] == 1:
        kernel = _convolution_kernel(linear, shape, window, arguments.tensor(0))
    else:
        kernel = depthwise_kernel(linear, shape, window)
    return in_layout(arguments, outputs, kernel)


def depthwise_kernel(linear: Linear, shape: Shape, window: Window) -> Kernel:
    """A convolution of each channel by itself, or of several outputs of the same channel.

    `linear` has one row of weights per tap of the window; `shape` is the image's, NHWC.
    """
    channels = linear.weights.shape[1]
    batches, width = shape[0], window.width.output
    parts = list(blocks(window.height.output, width * channels, BLOCK_ELEMENTS // 2))
    largest = parts[0].stop
    taps = _Taps(linear.weights, window)
    padded = PaddedRows.shape(window, largest, channels, phases=taps.phases)
    size = (largest, width, channels)
    extra = taps.scratch(size)
    specs = [ArraySpec(padded, linear.dtype), *extra, *linear.scratch(size)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = inputs[0].reshape(shape)
        output = outputs[0].reshape(batches, -1, width, channels)
        rows = PaddedRows(scratch[0], window, linear.border)

        def calls() -> Iterator[Call]:
            yield from rows.sides()
            for batch, part in itertools.product(range(batches), parts):
                target = output[batch, part]
                sums, rest = linear.sums(target, scratch[1 + len(extra) :])
                yield from rows.rows(images[batch], part)
                yield from taps.calls(scratch[0], sums, scratch[1 : 1 + len(extra)])
                yield from linear.finish(sums, target, rest)

        return pieces(batches * len(parts), calls)

    return Kernel(bind, specs)


class _Taps:
    """The sums of a depthwise convolution over the taps of its window.

    Pixels of a row are summed together where they lie side by side: with a stride of 1, and with
    a larger one where the image has its columns sorted by phases (see `PaddedRows`), so that tap x
    sees phase x % stride from column x // stride on. Each of `_boxes` is a block of taps whose
    addresses are a sum of multiples of row, column and phase: those of the whole columns of phases,
    and those of the last column if the filter does not fill it.
    """

    __slots__ = ("_boxes", "_joined", "_parts", "_window", "phases")

    def __init__(self, weights: Array, window: Window) -> None:
        height, width = window.height, window.width
        channels = weights.shape[1]
        alone = width.output == 1 or channels >= _MANY_CHANNELS
        alone = alone or width.stride > width.filter or width.dilation > 1
        self.phases = 1 if alone else width.stride
        self._window = window
        self._joined = self.phases == width.stride
        limit = max(channels, min(_ROW_ELEMENTS, 10 * _ROW_ELEMENTS // len(weights)))
        self._parts = list(blocks(width.output, channels, limit))
        if not self._joined:
            self._parts = [slice(0, width.output)]
        taps = weights.reshape(height.filter, width.filter, channels)
        taps = np.tile(taps, self._parts[0].stop if self._joined else 1)
        whole = width.filter // self.phases
        last = whole * self.phases
        shape = (height.filter, whole, self.phases, -1)
        self._boxes = [(0, np.ascontiguousarray(taps[:, :last]).reshape(shape))]
        if last < width.filter:
            self._boxes.append((whole, np.ascontiguousarray(taps[:, None, last:])))

    def scratch(self, shape: Shape) -> list[ArraySpec]:
        """Scratch for sums of a shape."""
        return [ArraySpec(shape, self._boxes[0][1].dtype)] * (len(self._boxes) - 1)

    def calls(self, buffer: Array, sums: Array, scratch: Sequence[Array]) -> list[Call]:
        """Calls that sum what the rows of a padded buffer hold for [rows, columns, channels]."""
        channels = sums.shape[2]
        calls: list[Call] = []
        for part in self._parts:
            pixels = part.stop - part.start
            pieces = (1, pixels * channels) if self._joined else (pixels, channels)
            for column, weights in self._boxes:
                into = scratch[0][: len(sums)] if column else sums
                target = into[:, part].reshape(len(sums), *pieces)
                view = self._view(buffer[:, :, part.start + column :], target, weights)
                trimmed = weights[..., : pieces[1]]
                call = partial(_einsum, "rwyxpk,yxpk->rwk", view, trimmed, out=target)
                calls.append((call, ()))
        calls += [(np.add, (sums, array[: len(sums)], sums)) for array in scratch]
        return calls

    def _view(self, buffer: Array, target: Array, weights: Array) -> Array:
        """Returns a view of a box by taps: [rows, pieces, down, across, phases, elements]."""
        row, phase, column, item = buffer.strides
        height, width = self._window.height, self._window.width
        rows, pieces, elements = target.shape
        shape = (rows, pieces, *weights.shape[:3], elements)
        step = width.dilation if self.phases == 1 else 1
        strides = (height.stride * row, width.stride * column, height.dilation * row)
        return as_strided(buffer, shape, (*strides, step * column, phase, item))


CONV_2D = Operation(
    OperationType.CONV_2D,
    signatures(forms()),
    _infer_convolution,
    _prepare_convolution,
    empty=True,
    requires=requires(channel_dim=0),
    facts=Facts(CriterionClass.CONVOLUTION, multiply_adds=each_output),
)
DEPTHWISE_CONV_2D = Operation(
    OperationType.DEPTHWISE_CONV_2D,
    signatures(forms("depth_multiplier")),
    _infer_depthwise,
    _prepare_depthwise,
    empty=True,
    requires=requires(channel_dim=3),
    facts=Facts(CriterionClass.CONVOLUTION, by_channel=True, multiply_adds=each_depth),
)
