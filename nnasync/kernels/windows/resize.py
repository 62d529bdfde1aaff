"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR.

Where an output pixel lies in the input is computed in float32, as the rule says. Bilinear results
of quantized images are cut off, not rounded; that is done on unsigned values, so that signed ones
come out the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Struct
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
from nnasync.kernels.steps import Call, blocks, copy, pieces
from nnasync.kernels.windows.window import LAYOUT, image_result, image_shape, in_layout, position

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED

_BILINEAR = {
    _F32: HalVersion.V1_0,
    _F16: HalVersion.V1_2,
    _Q8: HalVersion.V1_2,
    _Q8S: HalVersion.V1_3,
}
_NEAREST = {**_BILINEAR, _F32: HalVersion.V1_2}
_CENTERS = (
    Parameter("align_corners", OperandType.BOOL),
    Parameter("half_pixel_centers", OperandType.BOOL),
)
_SIGN = np.asarray(128, np.uint8)
_BLOCK_ELEMENTS = 1 << 15
_MOST_PIXELS = 1 << 24
"""Along one axis of the output; the places of all of them are kept."""


def _signatures(types: dict[OperandType, HalVersion], *, layout: bool) -> list[Signature]:
    """Sizes as integers or scales as floats, then layout (optional unless `layout`) and centers."""
    found = []
    for data, since in types.items():
        real = OperandType.FLOAT16 if data == _F16 else OperandType.FLOAT32
        for scalar, earliest in (
            (OperandType.INT32, HalVersion.V1_0),
            (real, HalVersion.V1_2),
        ):
            sizes = tuple(Parameter(name, scalar) for name in ("width", "height"))
            inputs = (Parameter("input", data, ranks=(4,)), *sizes)
            outputs = (Parameter("output", data, ranks=(4,)),)
            version = max(since, earliest)
            if not layout:
                found.append(Signature(version, inputs, outputs))
            inputs += LAYOUT
            found.append(Signature(max(version, HalVersion.V1_2), inputs, outputs))
            for parameter in _CENTERS:
                inputs += (parameter,)
                found.append(Signature(HalVersion.V1_3, inputs, outputs))
    return found


class Places(Struct, frozen=True):
    """How the pixels of one axis of the output lie over those of the input."""

    input: int
    output: int
    align_corners: bool
    half_pixel_centers: bool

    @property
    def scale(self) -> np.float32:
        """Input pixels per output pixel."""
        if self.align_corners and self.output > 1:
            return np.float32(self.input - 1) / np.float32(self.output - 1)
        return np.float32(self.input) / np.float32(self.output)

    @property
    def nearest(self) -> Array:
        """The input pixel of each output pixel."""
        half = np.float32(0.5 if self.half_pixel_centers else 0)
        places = (np.arange(self.output, dtype=np.float32) + half) * self.scale
        whole = np.floor(places)
        if self.align_corners:
            whole += places - whole >= 0.5
        found: Array = np.minimum(whole, self.input - 1).astype(np.intp)
        return found

    def between(self) -> tuple[Array, Array, Array]:
        """The input pixels around each output pixel, and the weight of the second."""
        places = np.arange(self.output, dtype=np.float32)
        if self.half_pixel_centers:
            places = (places + np.float32(0.5)) * self.scale - np.float32(0.5)
        else:
            places = places * self.scale
        lower = np.clip(np.floor(places), 0, self.input - 1)
        upper = np.clip(np.ceil(places), 0, self.input - 1)
        weights = places - lower.astype(np.float32)
        return lower.astype(np.intp), upper.astype(np.intp), weights


def _sizes(arguments: Arguments) -> tuple[int, int]:
    """Height and width of the output."""
    shape = image_shape(arguments)
    sizes = []
    for index, size in ((2, shape[1]), (1, shape[2])):
        if arguments.tensor(index).type == OperandType.INT32:
            sizes.append(arguments.integer(index, 1))
        else:
            sizes.append(_scaled(arguments, index, size))
        if sizes[-1] > _MOST_PIXELS:
            message = f"makes {sizes[-1]} pixels, expected at most {_MOST_PIXELS}"
            raise arguments.error(index, message)
    return sizes[0], sizes[1]


def _scaled(arguments: Arguments, index: int, size: int) -> int:
    """A size times the scale at an argument position, rounded down."""
    scale = arguments.number(index)
    if not 0 < scale < math.inf:
        raise arguments.error(index, f"is scale {scale}, expected a positive one")
    scaled = float(np.float32(size)) * scale
    if scaled < _MOST_PIXELS:
        scaled = float(np.float32(size) * np.float32(scale))
    if scaled < 1:
        raise arguments.error(index, f"is scale {scale}, which leaves nothing of {size}")
    return math.floor(scaled)


def _infer(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    first = position(arguments, "align_corners")
    if arguments.flag(first) and arguments.flag(first + 1):
        raise arguments.error(first + 1, "must not be set together with align_corners")
    result = image_result(arguments, *_sizes(arguments), image_shape(arguments)[3])
    return [msgspec.structs.replace(result, scale=source.scale, zero_point=source.zero_point)]


def _places(arguments: Arguments) -> tuple[Places, Places]:
    """Rows and columns of the output over those of the input."""
    first = position(arguments, "align_corners")
    flags = arguments.flag(first), arguments.flag(first + 1)
    height, width = _sizes(arguments)
    shape = image_shape(arguments)
    return Places(shape[1], height, *flags), Places(shape[2], width, *flags)


def _prepare_nearest(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """Rows are picked first, then columns."""
    shape, dtype = image_shape(arguments), outputs[0].dtype
    batches, _, width, channels = shape
    rows, columns = _places(arguments)
    down, across = rows.nearest, columns.nearest
    parts = list(blocks(rows.output, max(width, columns.output) * channels, _BLOCK_ELEMENTS))
    spec = ArraySpec((parts[0].stop, width, channels), dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = inputs[0].reshape(shape)
        targets = outputs[0].reshape(batches, rows.output, columns.output, channels)

        def calls() -> Iterator[Call]:
            for batch, part in itertools.product(range(batches), parts):
                lines = scratch[0][: part.stop - part.start]
                yield images[batch].take, (down[part], 0, lines, "clip")
                yield lines.take, (across, 1, targets[batch, part], "clip")

        return pieces(batches * len(parts), calls)

    return in_layout(arguments, outputs, Kernel(bind, [spec]))


def _prepare_bilinear(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """Rows are weighted first, then columns, in the order of multiplications of the rule."""
    shape, dtype = image_shape(arguments), outputs[0].dtype
    batches, _, width, channels = shape
    rows, columns = _places(arguments)
    parts = list(blocks(rows.output, max(width, columns.output) * channels, _BLOCK_ELEMENTS))
    largest = parts[0].stop
    lines = ArraySpec((largest, width, channels))
    specs = [lines, lines, *[ArraySpec((largest, columns.output, channels))] * 2]
    if dtype != np.float32:
        specs.append(ArraySpec(lines.shape, dtype))
    down, across = rows.between(), columns.between()

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        images = inputs[0].reshape(shape)
        targets = outputs[0].reshape(batches, rows.output, columns.output, channels)

        def calls() -> Iterator[Call]:
            for batch, part in itertools.product(range(batches), parts):
                memory = [array[: part.stop - part.start] for array in scratch]
                yield from _weighted_rows(images[batch], down, part, memory)
                yield from _weighted_columns(across, targets[batch, part], memory)

        return pieces(batches * len(parts), calls)

    return in_layout(arguments, outputs, Kernel(bind, specs))


def _weighted_rows(
    image: Array, places: tuple[Array, Array, Array], part: slice, memory: Sequence[Array]
) -> list[Call]:
    """Calls that write the rows above and below the output's, each times its weight."""
    lower, upper, weights = places
    calls: list[Call] = []
    for index, lines, factor in (
        (lower[part], memory[0], 1 - weights[part]),
        (upper[part], memory[1], weights[part]),
    ):
        if image.dtype == np.float32:
            calls.append((image.take, (index, 0, lines, "clip")))
        else:
            narrow = memory[-1]
            calls.append((image.take, (index, 0, narrow, "clip")))
            if image.dtype == np.int8:
                raw = narrow.view(np.uint8)
                calls.append((np.bitwise_xor, (raw, _SIGN, raw)))
                narrow = raw
            calls.append(copy(lines, narrow))
        calls.append((np.multiply, (lines, factor[:, None, None], lines)))
    return calls


def _weighted_columns(
    places: tuple[Array, Array, Array], target: Array, memory: Sequence[Array]
) -> list[Call]:
    """Calls that write the output from the weighted rows."""
    lower, upper, weights = places
    sums = target if target.dtype == np.float32 else memory[2]
    product = memory[3]
    calls: list[Call] = []
    for index, factor in ((lower, 1 - weights), (upper, weights)):
        for lines in memory[:2]:
            into = product if calls else sums
            calls.append((lines.take, (index, 1, into, "clip")))
            calls.append((np.multiply, (into, factor[:, None], into)))
            if into is product:
                calls.append((np.add, (sums, product, sums)))
    if sums is not target:
        raw = target.view(np.uint8)
        calls.append(copy(raw, sums))
        if target.dtype == np.int8:
            calls.append((np.bitwise_xor, (raw, _SIGN, raw)))
    return calls


RESIZE_BILINEAR = Operation(
    OperationType.RESIZE_BILINEAR,
    _signatures(_BILINEAR, layout=False),
    _infer,
    _prepare_bilinear,
    empty=True,
)
RESIZE_NEAREST_NEIGHBOR = Operation(
    OperationType.RESIZE_NEAREST_NEIGHBOR,
    _signatures(_NEAREST, layout=True),
    _infer,
    _prepare_nearest,
    empty=True,
)
