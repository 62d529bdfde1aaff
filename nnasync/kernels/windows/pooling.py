"""AVERAGE_POOL_2D, L2_POOL_2D and MAX_POOL_2D; cells of the padding do not take part.

A window is folded along its width first and then along its height, block by block of output rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nnasync.hal import (
    Array,
    FusedActivationFunc,
    HalVersion,
    OperandType,
    OperationType,
    Shape,
    is_quantized,
)
from nnasync.kernels.facts import Facts
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    quantized_range,
)
from nnasync.kernels.steps import (
    Call,
    blocks,
    clip,
    copy,
    float_bounds,
    pieces,
    quantized_bounds,
)
from nnasync.kernels.windows.linear import activation
from nnasync.kernels.windows.window import (
    EXPLICIT_PADDING,
    IMPLICIT_PADDING,
    LAYOUT,
    STRIDES,
    Axis,
    PaddedRows,
    Window,
    image_result,
    image_shape,
    in_layout,
    pooling_window,
    position,
)

_TYPES: dict[OperandType, HalVersion] = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_0,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: HalVersion.V1_3,
}
_FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
_FILTER_AND_ACTIVATION = tuple(
    Parameter(name, OperandType.INT32) for name in ("filter_width", "filter_height", "activation")
)
_EXACT_FLOAT32_CELLS = 4096
_NUDGE, _FINE_NUDGE = 2.0**-22, 2.0**-40
"""How much further from zero averages are before they are rounded to the nearest whole number.

Two roundings of float32 change an average by less than a part in 2**23, so halves end up beyond
the half; the others, which are 1 / (2 * cells) from one at least, stay on their side of it.
"""
_MOST_CALLS = 16
"""Cells along an axis that are folded one by one; longer windows are reduced by numpy."""


def _signatures(types: Sequence[OperandType]) -> list[Signature]:
    signatures = []
    for type in types:
        since = _TYPES[type]
        for padding in (IMPLICIT_PADDING, EXPLICIT_PADDING):
            source = Parameter("input", type, ranks=(4,))
            inputs = (source, *padding, *STRIDES, *_FILTER_AND_ACTIVATION)
            outputs = (Parameter("output", type, ranks=(4,)),)
            signatures.append(Signature(since, inputs, outputs))
            late = max(since, HalVersion.V1_2)
            signatures.append(Signature(late, (*inputs, *LAYOUT), outputs))
    return signatures


def _infer(arguments: Arguments) -> list[Tensor]:
    source, window = arguments.tensor(0), pooling_window(arguments)
    channels = image_shape(arguments)[3]
    result = image_result(arguments, window.height.output, window.width.output, channels)
    return [msgspec.structs.replace(result, scale=source.scale, zero_point=source.zero_point)]


class _Pool:
    """What distinguishes the three: how cells are prepared and combined, and what follows.

    `border` is what padding holds, `dtype` that of the cells.
    """

    __slots__ = ("_clamp", "_limits", "_output", "border", "dtype", "function")

    def __init__(
        self, function: np.ufunc, dtype: Any, border: float, fused: int, output: Tensor
    ) -> None:
        self.function = function
        self.dtype = np.dtype(dtype)
        self.border = border
        quantized = is_quantized(output.type)
        bounds = quantized_bounds(fused, output) if quantized else float_bounds(fused)
        self._limits = tuple(np.asarray(bound, self.dtype) for bound in bounds)
        self._clamp = fused != FusedActivationFunc.NONE
        self._output = output

    @property
    def in_place(self) -> bool:
        """Returns whether cells are combined in the output's memory."""
        return bool(self.dtype == self._output.dtype)

    def before(self, cells: Array) -> list[Call]:
        """Calls on the cells, padding among them, before they are combined."""
        return []

    def after(self, sums: Array, target: Array, part: slice) -> list[Call]:
        """Calls from what the cells of output rows combine to, to the output's rows."""
        return [(clip, (sums, *self._limits, sums))] if self._clamp else []


class _Maximum(_Pool):
    """The largest cell."""

    def __init__(self, window: Window, fused: int, output: Tensor) -> None:
        quantized = is_quantized(output.type)
        lowest = quantized_range(output.type)[0] if quantized else -np.inf
        super().__init__(np.maximum, output.dtype, lowest, fused, output)


class _Average(_Pool):
    """The sum of the cells divided by their number; whole numbers are rounded, halves from zero."""

    __slots__ = ("counts", "factors")

    def __init__(self, window: Window, fused: int, output: Tensor) -> None:
        counts = np.multiply.outer(window.height.cells, window.width.cells)[..., None]
        exact = not is_quantized(output.type) or counts.max() <= _EXACT_FLOAT32_CELLS
        super().__init__(np.add, np.float32 if exact else np.float64, 0.0, fused, output)
        self.counts = counts.astype(self.dtype)
        self.factors = ((1 + (_NUDGE if exact else _FINE_NUDGE)) / counts).astype(self.dtype)

    def after(self, sums: Array, target: Array, part: slice) -> list[Call]:
        if self.in_place:
            divide = (np.divide, (sums, self.counts[part], sums))
            return [divide, *super().after(sums, target, part)]
        return [
            (np.multiply, (sums, self.factors[part], sums)),
            (np.rint, (sums, sums)),
            (clip, (sums, *self._limits, sums)),
            copy(target, sums),
        ]


class _L2(_Average):
    """The root of the mean of the squares."""

    def before(self, cells: Array) -> list[Call]:
        return [(np.multiply, (cells, cells, cells))]

    def after(self, sums: Array, target: Array, part: slice) -> list[Call]:
        divide, *clamp = super().after(sums, target, part)
        return [divide, (np.sqrt, (sums, sums)), *clamp]


def _prepare(
    kind: Callable[[Window, int, Tensor], _Pool],
) -> Callable[[Arguments, Sequence[Tensor]], Kernel]:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        fused = activation(arguments, position(arguments, "activation"))
        window, shape = pooling_window(arguments), image_shape(arguments)
        pool = kind(window, fused, outputs[0])
        if window.is_global and isinstance(pool, _Average):
            kernel = _global_kernel(pool, shape)
        else:
            kernel = _kernel(pool, shape, window)
        return in_layout(arguments, outputs, kernel)

    return prepare


def _kernel(pool: _Pool, shape: Shape, window: Window) -> Kernel:
    batches, channels, width = shape[0], shape[3], window.width.output
    parts = list(blocks(window.height.output, shape[2] * channels))
    largest = parts[0].stop
    padded = PaddedRows.shape(window, largest, channels, phases=1)
    result = (largest, width, channels)
    specs = [ArraySpec(size, pool.dtype) for size in (padded, (padded[0], width, channels))]
    if not pool.in_place:
        specs.append(ArraySpec(result, pool.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows = PaddedRows(scratch[0], window, pool.border)
        images = inputs[0].reshape(shape)
        output = outputs[0].reshape(batches, -1, width, channels)

        def calls() -> Iterator[Call]:
            yield from rows.sides()
            for batch, part in itertools.product(range(batches), parts):
                target = output[batch, part]
                sums = target if pool.in_place else scratch[2][: len(target)]
                count = (len(target) - 1) * window.height.stride + window.height.extent
                cells, lines = scratch[0][:count, 0], scratch[1][:count]
                yield from rows.rows(images[batch], part)
                yield from pool.before(cells)
                yield from _fold(pool.function, cells, window.width, 1, lines)
                yield from _fold(pool.function, lines, window.height, 0, sums)
                yield from pool.after(sums, target, part)

        return pieces(batches * len(parts), calls)

    return Kernel(bind, specs)


def _fold(
    function: np.ufunc, source: Array, axis: Axis, dimension: int, target: Array
) -> list[Call]:
    """Calls that combine the cells of windows along a dimension."""
    places = slice(0, (target.shape[dimension] - 1) * axis.stride + 1, axis.stride)
    windows = sliding_window_view(source, axis.filter, dimension)
    views = np.moveaxis(windows[places] if dimension == 0 else windows[:, places], -1, 0)
    if len(views) == 1:
        return [copy(target, views[0])]
    if len(views) > _MOST_CALLS:
        return [(partial(function.reduce, views, 0, out=target), ())]
    onto = partial(function, out=target)
    return [(onto, (views[0], views[1])), *((onto, (target, view)) for view in views[2:])]


def _global_kernel(pool: _Average, shape: Shape) -> Kernel:
    """One result per channel: the sums are the product of a row of ones and the pixels."""
    batches, height, width, channels = shape
    pixels = height * width
    ones = np.ones((1, pixels), pool.dtype)
    specs = [ArraySpec((pixels, channels), pool.dtype)]
    specs.append(ArraySpec((1, 1, channels), pool.dtype))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = inputs[0].reshape(batches, pixels, channels)
        targets = outputs[0].reshape(batches, 1, 1, channels)

        def calls() -> Iterator[Call]:
            for image, target in zip(images, targets, strict=True):
                sums = target if pool.in_place else scratch[1]
                before = pool.before(scratch[0])
                if before or not pool.in_place:
                    yield copy(scratch[0], image)
                    yield from before
                    image = scratch[0]
                yield ones.dot, (image, sums.reshape(1, channels))
                yield from pool.after(sums, target, slice(None))

        return pieces(batches, calls)

    return Kernel(bind, specs)


AVERAGE_POOL_2D = Operation(
    OperationType.AVERAGE_POOL_2D,
    _signatures(tuple(_TYPES)),
    _infer,
    _prepare(_Average),
    empty=True,
    facts=Facts(by_channel=True, rounds_by_sign=True),
)
L2_POOL_2D = Operation(
    OperationType.L2_POOL_2D,
    _signatures(_FLOATS),
    _infer,
    _prepare(_L2),
    empty=True,
    facts=Facts(non_negative=True),
)
MAX_POOL_2D = Operation(
    OperationType.MAX_POOL_2D,
    _signatures(tuple(_TYPES)),
    _infer,
    _prepare(_Maximum),
    empty=True,
    facts=Facts(by_channel=True),
)
