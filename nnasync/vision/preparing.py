"""Pictures as the input of a network: shape, layout, type and quantization are the network's own.

What a network says of its input settles everything but two things: how a picture of other
proportions fits (see `Fit`), and for floats which numbers stand for black and white. An input of 8
bits has bytes for that: its lowest value is black, its highest white. An input of floats has 0 to 1
unless a `Normalization` says otherwise.

All 256 values of a byte are translated once for each network (`_table`); a picture is then resized
and looked up, which normalizes, quantizes and changes the type in one pass.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from nnasync._core.arguments import check_size, check_whole, is_finite, or_none, told
from nnasync._core.execution import Port
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.pictures import Picture, Window, pixels_of, size_of
from nnasync.vision.placement import Fit, Placement, placement

_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))


class Normalization(Struct, frozen=True):
    """A byte b of channel c is given as (b - mean[c]) / deviation[c].

    One number stands for all channels.
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (255.0,)

    def __post_init__(self) -> None:
        """Raise InvalidArgument for what are no finite numbers, and for a deviation of 0."""
        for name, values in (("mean", self.mean), ("deviation", self.deviation)):
            is_row = isinstance(values, tuple) and len(values) in (1, 3)
            if not is_row or not all(is_finite(value) for value in values):
                raise InvalidArgument(
                    f"{name} is {told(values)}, it must be a tuple of one finite number, or of one "
                    "for each channel"
                )
        if 0 in self.deviation:
            raise InvalidArgument("deviation has a 0, by which nothing can be divided")

    @property
    def channels(self) -> int:
        """Returns for how many channels there are numbers: 1 where one number stands for all."""
        return max(len(self.mean), len(self.deviation))


ZERO_TO_ONE = Normalization()
"""Black is 0, white is 1."""
MINUS_ONE_TO_ONE = Normalization((127.5,), (127.5,))
"""Black is -1, white is 1."""
IMAGENET = Normalization((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
"""What networks of PyTorch's collection that were trained on ImageNet expect."""


class HasInputs(Protocol):
    """A compiled network, or any other object with inputs."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Returns the inputs."""
        ...


class PictureInput(Struct, frozen=True):
    """Describes an input for pictures: height, width, 1 or 3 channels, which may come first."""

    port: Port
    height: int
    width: int
    channels: int
    channels_first: bool

    @classmethod
    def of(cls, net: HasInputs | Port, *, size: tuple[int, int] | None = None) -> PictureInput:
        """Returns how the first input of a network, or a port, takes pictures.

        `size` (height, width) is for inputs that leave it open. Raises InvalidArgument for an input
        that is not [1, height, width, 1 or 3] or [1, 1 or 3, height, width].
        """
        port = net if isinstance(net, Port) else _first_input(net)
        shape = port.shape
        if len(shape) == 4 and shape[0] in (0, 1):
            for first in (False, True):
                channels = shape[1] if first else shape[3]
                if channels in (1, 3):
                    rows, columns = _sides(shape[2:] if first else shape[1:3], size, port)
                    return cls(port, rows, columns, channels, first)
        raise InvalidArgument(
            f"input {port.name!r}: a picture needs an input [1, height, width, 1 or 3] or "
            f"[1, 1 or 3, height, width], the network takes {list(shape)}"
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Returns the shape of the array that is given to the network."""
        if self.channels_first:
            return 1, self.channels, self.height, self.width
        return 1, self.height, self.width, self.channels


class Prepared(NamedTuple):
    """Holds what a network is given, and where the picture lies in it."""

    input: Array
    placement: Placement


def prepare(
    picture: Picture,
    net: HasInputs | Port,
    *,
    fit: Fit = "letterbox",
    window: Window | None = None,
    normalization: Normalization | None = None,
    size: tuple[int, int] | None = None,
    fill: int = 114,
    out: Array | None = None,
) -> Prepared:
    """Returns a picture as the first input of `net` takes it, or the input `net`, if it is a Port.

    `window` (left, top, right, bottom) takes a part of the picture only, `fill` is the gray of the
    bars, `size` (height, width) is for inputs that leave theirs open. `out`, of the input's shape
    and type, is written in place of a new array. Raises InvalidArgument for what is no picture, an
    input that takes none, and an `out` that does not fit.

    It computes, and a large picture takes some milliseconds: an event loop is kept free of that by
    a thread.
    """
    check_normalization(normalization)
    check_whole("fill", fill, 0, 255)
    target = PictureInput.of(net, size=size)
    if normalization is not None and target.channels < normalization.channels:
        raise InvalidArgument(
            f"normalization has {normalization.channels} channels, the network takes 1"
        )
    width, height = size_of(picture)
    where = placement(width, height, (target.height, target.width), fit=fit, window=window)
    pixels = pixels_of(picture, target.channels, window=where.source, size=where.target_size)
    array, table = _array(target, out), _table(target.port, normalization)
    if where.target_size != (target.height, target.width):
        bars = table[fill] if not target.channels_first else table[fill][:, None, None]
        array[0] = bars
    _fill(array, pixels, target, where.target, table)
    return Prepared(array, where)


def _first_input(net: HasInputs) -> Port:
    try:
        return net.inputs[0]
    except (AttributeError, IndexError, TypeError):
        raise InvalidArgument(
            "a picture is prepared for a compiled network or a Port, not for a "
            f"{type(net).__name__}"
        ) from None


def check_normalization(normalization: Normalization | None) -> None:
    """Raises InvalidArgument for what is none."""
    if normalization is not None and not isinstance(normalization, Normalization):
        raise InvalidArgument(
            f"normalization is {normalization!r}, it must be ZERO_TO_ONE, MINUS_ONE_TO_ONE, "
            "IMAGENET or Normalization(mean, deviation)"
        )


def _sides(sides: Sequence[int], size: tuple[int, int] | None, port: Port) -> tuple[int, int]:
    or_none(check_size, "size", size)
    found = tuple(sides) if 0 not in sides or size is None else tuple(size)
    if 0 in found:
        raise InvalidArgument(
            f"input {port.name!r} takes pictures of any size: say which, size=(height, width)"
        )
    if size is not None and tuple(size) != found:
        raise InvalidArgument(f"input {port.name!r} takes {found} (height, width), not {size}")
    return found[0], found[1]


def _array(target: PictureInput, out: Array | None) -> Array:
    if out is None:
        return np.empty(target.shape, target.port.dtype)
    is_fitting = isinstance(out, np.ndarray) and out.shape == target.shape
    if not is_fitting or out.dtype != target.port.dtype or not out.flags.writeable:
        raise InvalidArgument(
            f"out is {told(out)}, it must be a writable {target.port.dtype} array of shape "
            f"{list(target.shape)}"
        )
    return out


def _fill(array: Array, pixels: Array, target: PictureInput, window: Window, table: Array) -> None:
    """Write bytes [height, width, channels] into a window of an input, as the table has them."""
    channels = np.arange(target.channels)
    values = table[:, 0][pixels] if table.shape[1] == 1 else table[pixels, channels]
    left, top, right, bottom = window
    view = np.moveaxis(array[0], 0, 2) if target.channels_first else array[0]
    view[top:bottom, left:right] = values


@functools.lru_cache(maxsize=64)
def _table(port: Port, normalization: Normalization | None) -> Array:
    """Returns what each byte becomes: [256, 1] of the port's type, or [256, channels]."""
    if normalization is None and port.dtype in _BYTES:
        low = np.iinfo(port.dtype).min
        return (np.arange(256) + low).astype(port.dtype)[:, None]
    chosen = normalization or ZERO_TO_ONE
    mean, deviation = np.array(chosen.mean, float), np.array(chosen.deviation, float)
    return port.quantize((np.arange(256)[:, None] - mean) / deviation)
