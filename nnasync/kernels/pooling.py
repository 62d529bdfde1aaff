"""AVERAGE_POOL_2D and MAX_POOL_2D; cells of the padding do not take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnasync.hal import Array, FusedActivationFunc, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.linear import activation
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    is_quantized,
    quantized_range,
)
from nnasync.kernels.rescale import store_quantized
from nnasync.kernels.steps import (
    Call,
    clip,
    copy,
    float_bounds,
    quantized_bounds,
    sequence,
)
from nnasync.kernels.window import (
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    STRIDES,
    Axis,
    PaddedRows,
    Window,
    as_nhwc,
    from_nchw,
    is_implicit,
    read_axes,
)

__all__ = ["OPERATIONS", "AVERAGE_POOL_2D", "MAX_POOL_2D"]

_TYPES: dict[OperandType, HalVersion] = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_0,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
}
_FILTER_AND_ACTIVATION = tuple(
    Parameter(name, OperandType.INT32) for name in ("filter_width", "filter_height", "activation")
)
_LAYOUT = Parameter("is_nchw", OperandType.BOOL)
_EXACT_FLOAT32_CELLS = 4096
_MAXIMUM_CELLS = 1 << 16
"""Of windows that move: each cell is a call, and a model must not make us busy without end."""


def _signatures() -> list[Signature]:
    signatures = []
    for type, since in _TYPES.items():
        for padding in (IMPLICIT_PADDING, EXPLICIT_PADDING):
            inputs = (Parameter("input", type), *padding, *STRIDES, *_FILTER_AND_ACTIVATION)
            outputs = (Parameter("output", type),)
            signatures.append(Signature(since, inputs, outputs))
            late = max(since, HalVersion.V1_2)
            signatures.append(Signature(late, (*inputs, _LAYOUT), outputs))
    return signatures


def _first_scalar(arguments: Arguments) -> int:
    """Index of the first stride."""
    return 2 if is_implicit(arguments, 1) else 5


def _is_nchw(arguments: Arguments) -> bool:
    return arguments.flag(_first_scalar(arguments) + 5)


def _nhwc(arguments: Arguments) -> Shape:
    shape = arguments.tensor(0, 4).shape
    return as_nhwc(shape) if _is_nchw(arguments) else shape


def _window(arguments: Arguments) -> Window:
    first = _first_scalar(arguments)
    filters = arguments.integer(first + 3, 1), arguments.integer(first + 2, 1)
    _, height, width, _ = _nhwc(arguments)
    return read_axes(arguments, 1, (height, width), filters, strides=first)


def _infer(arguments: Arguments) -> list[Tensor]:
    source, window = arguments.tensor(0), _window(arguments)
    cells = window.height.filter * window.width.filter
    if cells > _MAXIMUM_CELLS and not window.is_global:
        raise arguments.fail(f"the window has {cells} cells, expected at most {_MAXIMUM_CELLS}")
    batches, _, _, channels = _nhwc(arguments)
    height, width = window.height.output, window.width.output
    shape = (batches, height, width, channels)
    if _is_nchw(arguments):
        shape = (batches, channels, height, width)
    return [Tensor(type=source.type, shape=shape, scale=source.scale, zero_point=source.zero_point)]


def _bounds(fused: int, output: Tensor) -> tuple[float, float]:
    return quantized_bounds(fused, output) if is_quantized(output.type) else float_bounds(fused)


def _prepare(
    make: Callable[[Shape, Window, int, Tensor], Kernel],
) -> Callable[[Arguments, Sequence[Tensor]], Kernel]:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        fused = activation(arguments, _first_scalar(arguments) + 4)
        kernel = make(_nhwc(arguments), _window(arguments), fused, outputs[0])
        if _is_nchw(arguments):
            return from_nchw(kernel, arguments.tensor(0), outputs[0])
        return kernel

    return prepare


def _taps(buffer: Array, window: Window) -> list[Array]:
    """What each cell of the window sees in a padded buffer, as [rows, columns, channels]."""
    height, width = window.height, window.width
    row, _, column, channel = buffer.strides
    shape = (height.output, width.output, buffer.shape[3])
    strides = (height.stride * row, width.stride * column, channel)
    return [
        as_strided(buffer[y:, 0, x:], shape, strides)
        for y in range(height.filter)
        for x in range(width.filter)
    ]


def _fold(function: Callable[..., Any], taps: Sequence[Array], target: Array) -> list[Call]:
    """Calls that combine all taps into the target."""
    if len(taps) == 1:
        return [copy(target, taps[0])]
    calls: list[Call] = [(function, (taps[0], taps[1], target))]
    return calls + [(function, (target, tap, target)) for tap in taps[2:]]


def _maximum_kernel(shape: Shape, window: Window, fused: int, output: Tensor) -> Kernel:
    lower, upper = _bounds(fused, output)
    lowest = quantized_range(output.type)[0] if is_quantized(output.type) else -np.inf
    spec = ArraySpec(
        PaddedRows.shape(window, window.height.output, shape[3], phases=1), output.dtype
    )
    limits = np.asarray(lower, output.dtype), np.asarray(upper, output.dtype)

    def maximum(a: Array, b: Array, out: Array) -> None:
        np.maximum(a, b, out=out)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows = PaddedRows(scratch[0], window, lowest)
        taps = _taps(scratch[0], window)
        calls = rows.sides()
        for image, target in zip(inputs[0].reshape(shape), outputs[0], strict=True):
            calls += rows.rows(image, slice(0, window.height.output))
            calls += _fold(maximum, taps, target)
        if fused != FusedActivationFunc.NONE:
            calls.append((clip, (outputs[0], *limits, outputs[0])))
        return sequence(calls)

    return Kernel(bind, [spec])


def _cells(axis: Axis) -> Array:
    """How many cells of the window are not padding, for each position."""
    first = np.arange(axis.output) * axis.stride - axis.head
    return np.minimum(first + axis.filter, axis.input) - np.maximum(first, 0)


class _Averages:
    """From sums of valid cells to averages, rounded as the rule says for quantised types."""

    def __init__(self, window: Window, fused: int, output: Tensor) -> None:
        counts = np.multiply.outer(_cells(window.height), _cells(window.width))[..., None]
        self.quantized = is_quantized(output.type)
        exact = counts.max() <= _EXACT_FLOAT32_CELLS
        self.dtype = np.dtype(np.float32 if exact or not self.quantized else np.float64)
        self.counts = counts.astype(self.dtype)
        self.signed = output.dtype == np.int8
        lower, upper = _bounds(fused, output)
        self.limits = np.asarray(lower, self.dtype), np.asarray(upper, self.dtype)
        self.clamp = fused != FusedActivationFunc.NONE

    def calls(self, sums: Array, target: Array, half: Array) -> list[Call]:
        """Calls from sums [rows, columns, channels] to the target; `half` is scratch like sums."""
        if self.quantized and self.signed:
            return self._signed(sums, target, half)
        offset = np.floor(self.counts / 2)
        calls: list[Call] = [(np.add, (sums, offset, sums))] if self.quantized else []
        calls.append((np.divide, (sums, self.counts, sums)))
        if self.clamp:
            if self.quantized:
                calls.append((np.floor, (sums, sums)))
            calls.append((clip, (sums, *self.limits, sums)))
        return calls + (store_quantized(sums, target) if self.quantized else [])

    def _signed(self, sums: Array, target: Array, half: Array) -> list[Call]:
        """Halves are rounded away from zero: n / 2 is added with the sign of the sum."""
        offset = np.floor(self.counts / 2)
        return [
            (np.copysign, (offset, sums, half)),
            (np.add, (sums, half, sums)),
            (np.divide, (sums, self.counts, sums)),
            (np.trunc, (sums, sums)),
            (clip, (sums, *self.limits, sums)),
            copy(target, sums),
        ]


def _average_kernel(shape: Shape, window: Window, fused: int, output: Tensor) -> Kernel:
    averages = _Averages(window, fused, output)
    if window.is_global:
        return _global_average_kernel(averages, shape)
    padded = PaddedRows.shape(window, window.height.output, shape[3], phases=1)
    result = (window.height.output, window.width.output, shape[3])
    specs = [ArraySpec(part, averages.dtype) for part in (padded, result, result)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows = PaddedRows(scratch[0], window, 0.0)
        taps = _taps(scratch[0], window)
        calls = rows.sides()
        for image, target in zip(inputs[0].reshape(shape), outputs[0], strict=True):
            sums = scratch[1] if averages.quantized else target
            calls += rows.rows(image, slice(0, window.height.output))
            calls += _fold(np.add, taps, sums)
            calls += averages.calls(sums, target, scratch[2])
        return sequence(calls)

    return Kernel(bind, specs)


def _global_average_kernel(averages: _Averages, shape: Shape) -> Kernel:
    """One average per channel: the sums are the product of a row of ones and the pixels."""
    batches, height, width, channels = shape
    pixels = height * width
    ones = np.ones((1, pixels), averages.dtype)
    specs = [ArraySpec((pixels, channels), averages.dtype)]
    specs += [ArraySpec((1, 1, channels), averages.dtype)] * 2

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        calls: list[Call] = []
        images = inputs[0].reshape(batches, pixels, channels)
        for image, target in zip(images, outputs[0], strict=True):
            sums = target
            if averages.quantized:
                calls.append(copy(scratch[0], image))
                image, sums = scratch[0], scratch[1]
            calls.append((ones.dot, (image, sums.reshape(1, channels))))
            calls += averages.calls(sums, target, scratch[2])
        return sequence(calls)

    return Kernel(bind, specs)


AVERAGE_POOL_2D = Operation(
    OperationType.AVERAGE_POOL_2D, _signatures(), _infer, _prepare(_average_kernel)
)
MAX_POOL_2D = Operation(OperationType.MAX_POOL_2D, _signatures(), _infer, _prepare(_maximum_kernel))

OPERATIONS: tuple[Operation, ...] = (
    AVERAGE_POOL_2D,
    MAX_POOL_2D,
)
