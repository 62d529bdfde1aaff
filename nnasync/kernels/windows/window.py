"""Windows that slide over the height and width of an image: their arguments and their geometry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnasync.hal import Array, OperandType, PaddingScheme, Shape, Struct
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Parameter,
    Step,
    Tensor,
)
from nnasync.kernels.steps import Call, copy

EXPLICIT_PADDING = tuple(
    Parameter(name, OperandType.INT32)
    for name in ("padding_left", "padding_right", "padding_top", "padding_bottom")
)
IMPLICIT_PADDING = (Parameter("padding_scheme", OperandType.INT32),)
STRIDES = (
    Parameter("stride_width", OperandType.INT32),
    Parameter("stride_height", OperandType.INT32),
)
LAYOUT = (Parameter("is_nchw", OperandType.BOOL),)

_MOST_CALLS = 16
_LARGEST_WINDOW = 1 << 22
"""Elements that a window may span beyond its input, so that its padding stays in memory."""


class Axis(Struct, frozen=True):
    """A window along one dimension: sizes in elements of input and output."""

    input: int
    filter: int
    stride: int
    dilation: int
    head: int
    tail: int

    @property
    def extent(self) -> int:
        """Input elements between the first and the last tap, both included."""
        return (self.filter - 1) * self.dilation + 1

    @property
    def output(self) -> int:
        """Number of positions of the window."""
        return (self.input - self.extent + self.stride + self.head + self.tail) // self.stride

    @property
    def cells(self) -> Array:
        """Returns how many cells of the window are not padding, for each position."""
        first = np.arange(self.output) * self.stride - self.head
        return np.minimum(first + self.filter, self.input) - np.maximum(first, 0)

    @property
    def padded(self) -> int:
        """Input elements with padding, as far as the window reaches them."""
        return max((self.output - 1) * self.stride + self.extent, 0)


class Window(Struct, frozen=True):
    """A window over height and width."""

    height: Axis
    width: Axis

    @property
    def is_pointwise(self) -> bool:
        """Returns whether each output element sees just the input element at its own place."""
        return all(
            axis.filter == axis.stride == 1 and axis.head == axis.tail == 0
            for axis in (self.height, self.width)
        )

    @property
    def is_global(self) -> bool:
        """Returns whether there is one position, which sees the whole input and no padding."""
        return all(
            axis.output == 1 and axis.extent == axis.filter == axis.input and axis.head == 0
            for axis in (self.height, self.width)
        )


def position(arguments: Arguments, name: str) -> int:
    """Index of a named argument, or one past the last when this form does not have it."""
    names = [parameter.name for parameter in arguments.signature.inputs]
    return names.index(name) if name in names else len(names)


def is_nchw(arguments: Arguments) -> bool:
    """Returns whether the layout flag, if this form has one, says that channels come first."""
    return arguments.flag(position(arguments, "is_nchw"))


def image_shape(arguments: Arguments) -> Shape:
    """Shape of the input image as batches, height, width, channels; only batches may be 0."""
    shape = arguments.tensor(0, 4).shape
    if 0 in shape[1:]:
        raise arguments.error(0, f"has shape {shape}, of which only the batch may be empty")
    return _as_nhwc(shape) if is_nchw(arguments) else shape


def image_result(arguments: Arguments, height: int, width: int, channels: int) -> Tensor:
    """An output image of the input's type, batches and layout."""
    source = arguments.tensor(0)
    batches = source.shape[0]
    nhwc = (batches, height, width, channels)
    shape = (batches, channels, height, width) if is_nchw(arguments) else nhwc
    return Tensor(type=source.type, shape=shape)


def in_layout(arguments: Arguments, outputs: Sequence[Tensor], kernel: Kernel) -> Kernel:
    """A kernel for the layout that the arguments ask for, from one for NHWC."""
    if not is_nchw(arguments):
        return kernel
    return _from_nchw(kernel, arguments.tensor(0), outputs[0])


def is_implicit(arguments: Arguments) -> bool:
    """Returns whether there is a padding scheme and not four paddings."""
    return any(parameter.name == "padding_scheme" for parameter in arguments.signature.inputs)


def filter_window(arguments: Arguments) -> Window:
    """The window of a convolution, as large as its filter; ModelError if it is not legal."""
    _, height, width, _ = arguments.tensor(1).shape
    return _window(arguments, (height, width))


def pooling_window(arguments: Arguments) -> Window:
    """The window of a pooling, whose size is told; ModelError if it is not legal."""
    first = position(arguments, "filter_width")
    return _window(arguments, (arguments.integer(first + 1, 1), arguments.integer(first, 1)))


def _window(arguments: Arguments, filters: tuple[int, int]) -> Window:
    """The window that padding, strides and dilations describe; `filters` is (height, width)."""
    _, *whole, _ = image_shape(arguments)
    sizes = (whole[0], whole[1])
    strides = position(arguments, "stride_width")
    stride = (arguments.integer(strides + 1, 1), arguments.integer(strides, 1))
    dilations = position(arguments, "dilation_width")
    dilation = (1, 1)
    if arguments.has(dilations):
        dilation = (arguments.integer(dilations + 1, 1), arguments.integer(dilations, 1))
    extents = ((filters[0] - 1) * dilation[0] + 1, (filters[1] - 1) * dilation[1] + 1)
    if math.prod(extents) > max(_LARGEST_WINDOW, math.prod(sizes)):
        raise arguments.fail(f"the window spans {extents}, which is too large for input {sizes}")
    if is_implicit(arguments):
        pads = [
            same_padding(size, step, extent) if is_same(arguments) else (0, 0)
            for size, step, extent in zip(sizes, stride, extents, strict=True)
        ]
    else:
        pads = _explicit(arguments, extents)
    height, width = (
        Axis(input=size, filter=filter, stride=step, dilation=rate, head=pad[0], tail=pad[1])
        for size, filter, step, rate, pad in zip(
            sizes, filters, stride, dilation, pads, strict=True
        )
    )
    if height.output < 1 or width.output < 1:
        raise arguments.fail(f"the window {extents} is larger than the padded input {sizes}")
    return Window(height=height, width=width)


def is_same(arguments: Arguments) -> bool:
    """Returns whether the padding scheme is SAME; raises ModelError for one that does not exist."""
    index = position(arguments, "padding_scheme")
    scheme = arguments.integer(index)
    if scheme not in (PaddingScheme.NONE, PaddingScheme.SAME, PaddingScheme.VALID):
        raise arguments.error(index, f"is {scheme}, expected 1 (SAME) or 2 (VALID)")
    return scheme == PaddingScheme.SAME


def same_padding(size: int, stride: int, extent: int) -> tuple[int, int]:
    """Padding before and after that makes ceil(size / stride) positions of a window."""
    output = -(-size // stride)
    total = max((output - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def _explicit(arguments: Arguments, extents: tuple[int, int]) -> list[tuple[int, int]]:
    """Padding (before, after) of height and width; each is smaller than the window."""
    first = position(arguments, "padding_left")
    pads = [arguments.integer(first + index, 0) for index in range(4)]
    for index, pad in enumerate(pads):
        extent = extents[0] if index >= 2 else extents[1]
        if pad >= extent:
            message = f"is {pad}, expected less than the filter's {extent}"
            raise arguments.error(first + index, message)
    return [(pads[2], pads[3]), (pads[0], pads[1])]


def _as_nhwc(shape: Shape) -> Shape:
    """The NHWC shape of an NCHW shape."""
    return (shape[0], shape[2], shape[3], shape[1])


def _from_nchw(kernel: Kernel, source: Tensor, target: Tensor) -> Kernel:
    """A kernel for NCHW data from one for NHWC data; `source` and `target` are the NCHW tensors."""
    specs = (
        ArraySpec(_as_nhwc(source.shape), source.dtype),
        ArraySpec(_as_nhwc(target.shape), target.dtype),
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        image = inputs[0]
        inner = kernel.bind([scratch[0], *inputs[1:]], [scratch[1]], scratch[2:])
        before = copy(scratch[0], image.transpose(0, 2, 3, 1))
        after = copy(outputs[0], scratch[1].transpose(0, 3, 1, 2))

        def step() -> None:
            before[0](*before[1])
            inner()
            after[0](*after[1])

        return step

    return Kernel(bind, (*specs, *kernel.scratch))


class PaddedRows:
    """Rows of an image with padding around them, in a buffer that each block of output rows reuses.

    The buffer is [rows, phases, columns, channels]: with a stride of s along the width, column x of
    the padded image is at phase x % s, column x // s, so that what one tap sees is contiguous.
    """

    __slots__ = ("border", "buffer", "window")

    def __init__(self, buffer: Array, window: Window, border: float) -> None:
        self.buffer = buffer
        self.window = window
        self.border = np.asarray(border, buffer.dtype)

    @staticmethod
    def shape(window: Window, rows: int, channels: int, *, phases: int) -> Shape:
        """Shape of the buffer for blocks of at most `rows` output rows."""
        height = (rows - 1) * window.height.stride + window.height.extent
        return (height, phases, -(-window.width.padded // phases), channels)

    def sides(self) -> list[Call]:
        """Calls that write the columns no block touches; once before the blocks of an image."""
        calls = []
        for phase in range(self.buffer.shape[1]):
            _, start, count = self._columns(phase)
            edges = (self.buffer[:, phase, :start], self.buffer[:, phase, start + count :])
            calls += [copy(edge, self.border) for edge in edges if edge.size]
        return calls

    def rows(self, image: Array, output_rows: slice) -> list[Call]:
        """Calls that write what the output rows see; `image` is [height, width, channels].

        With more channels in the buffer than in the image each is repeated.
        """
        axis = self.window.height
        first = output_rows.start * axis.stride - axis.head
        last = (output_rows.stop - 1) * axis.stride + axis.extent - axis.head
        top, bottom = max(first, 0), max(min(last, axis.input), 0)
        edges = (self.buffer[: top - first], self.buffer[bottom - first : last - first])
        calls = [copy(edge, self.border) for edge in edges if edge.size]
        for phase in range(self.buffer.shape[1]):
            source, start, count = self._columns(phase)
            target = self.buffer[top - first : bottom - first, phase, start : start + count]
            part = image[top:bottom, source :: self.buffer.shape[1]][:, :count]
            if target.size:
                calls.append(copy(*_matched(target, part)))
        return calls

    def _columns(self, phase: int) -> tuple[int, int, int]:
        """First image column of a phase, its column in the buffer, and how many there are."""
        phases, columns = self.buffer.shape[1:3]
        head = self.window.width.head
        source = (phase - head) % phases
        start = (head + source) // phases
        count = -(-max(self.window.width.input - source, 0) // phases)
        return source, start, max(min(count, columns - start), 0)


def _matched(target: Array, source: Array) -> tuple[Array, Array]:
    """Both with the same shape; channels of the source repeat where the target has more."""
    channels = source.shape[-1]
    if target.shape[-1] == channels:
        return target, source
    multiplier = target.shape[-1] // channels
    shape = (*target.shape[:-1], channels, multiplier)
    strides = (*target.strides[:-1], target.itemsize * multiplier, target.itemsize)
    return as_strided(target, shape, strides), source[..., None]


def windows(buffer: Array, window: Window, rows: int) -> Array:
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


def lay_out(buffer: Array, window: Window, columns: Array) -> list[Call]:
    """Calls that copy windows of a padded buffer side by side to [rows, columns, terms].

    A run of one window's row is short, so that numpy spends its time between the runs. Hence they
    are copied as single elements that are as long, all those of one tap down in one call.
    """
    height, width = window.height, window.width
    view = windows(buffer, window, len(columns))
    if width.dilation > 1 or height.filter > _MOST_CALLS:
        return [copy(columns.reshape(view.shape), view)]
    run = np.dtype((np.void, width.filter * buffer.shape[3] * buffer.itemsize))
    places = np.ndarray((*columns.shape[:2], height.filter), run, buffer=columns)
    row, column = view.strides[0], view.strides[1]
    return [
        copy(
            places[:, :, y],
            np.ndarray(places.shape[:2], run, buffer, y * view.strides[2], (row, column)),
        )
        for y in range(height.filter)
    ]
