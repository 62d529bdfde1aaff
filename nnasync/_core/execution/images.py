"""Images in shared memory as inputs of networks, read in place."""

from __future__ import annotations

import numpy as np

from nnasync._core.execution.ports import Port
from nnasync._core.validation import image_fault
from nnasync.errors import BadState, InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.memory import Pool, count_copied

__all__ = ["ImagePiece", "piece_of", "pixels_of"]


class ImagePiece(Struct, frozen=True):
    """An image as an input of a request: all of its pool."""

    pool: Pool
    offset: int = 0
    length: int = 0


def piece_of(image: Pool, port: Port) -> ImagePiece:
    """An image for an input of (1, height, width, 3 or 4) uint8, quantized or not.

    Raises InvalidArgument for another image, or memory that is none; BadState when closed.
    """
    _check(image, port)
    fault = image_fault(image.image_layout, port.shape) if image.image_layout else None
    if fault:
        raise InvalidArgument(f"input {port.name!r}: {fault}")
    return ImagePiece(image)


def pixels_of(image: Pool, port: Port) -> Array:
    """The same for an input of open shape, as an array that will be copied."""
    _check(image, port)
    if image.image_layout is not None and not image.image_layout.is_rgb:
        fault = image_fault(image.image_layout, ())
        raise InvalidArgument(f"input {port.name!r}: {fault}")
    pixels = image.planes[0][np.newaxis]
    count_copied(pixels.nbytes)
    return pixels


def _check(image: Pool, port: Port) -> None:
    if image.closed:
        raise BadState(f"input {port.name!r}: {image!r} is closed")
    if image.image_layout is None:
        raise InvalidArgument(
            f"input {port.name!r} is {image!r} and no image; give a region of it to launch, or an "
            "array: pool.region(...), pool.array(...)"
        )
    if port.dtype != np.uint8:
        raise InvalidArgument(
            f"input {port.name!r} has dtype {port.dtype}, an image has uint8; convert "
            "image.planes[0] as the model wants it"
        )
