"""What an argument is: the one place that decides for calls, launches and calls of bursts.

Arrays, and what numpy makes one of, are copied into the slot of the execution. Buffers and images
are used where they are, and so are regions in a launch, unless its device is in another process
that may not be given their memory.

What is private to this process has no descriptor, and that of a pool which another process has
would give this one more than the region. So the region is copied to where the input lies in the
slot of the launch: as soon as all fences that the launch waits for are signaled, on the thread that
signals the last one. To the device the copy is one more dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from nnasync._core.deferred import deferred
from nnasync._core.execution.ports import Port, Ports, check_target, copy_in
from nnasync._core.execution.slots import IdleSlots, OutputRegion, Piece, Slot
from nnasync._core.validation import image_fault
from nnasync.device import PreparedModel
from nnasync.errors import BadState, CallerError, InvalidArgument
from nnasync.fences import Fence, merge
from nnasync.hal import Array, Priority, Struct
from nnasync.memory import Pool, Region, count_copied

if TYPE_CHECKING:
    from nnasync._core.execution import buffer
else:
    buffer = deferred("nnasync._core.execution.buffer")


_SlotT = TypeVar("_SlotT", bound=Slot)


def placed(
    slots: IdleSlots[_SlotT],
    values: Sequence[Any],
    outs: Sequence[Any] | None,
    ports: Ports,
    prepared: PreparedModel,
    priority: Priority | None = None,
) -> tuple[_SlotT, list[tuple[int, Piece]]]:
    """Returns a slot with a call's arrays in it, and what lies elsewhere; raises as `place`."""
    slot = slots.take(priority)
    try:
        return slot, place(slot, values, outs, ports, prepared)[0]
    except CallerError:
        slots.give_back(slot)
        raise


def place(
    slot: Slot,
    values: Sequence[Any],
    outs: Sequence[Any] | None,
    ports: Ports,
    prepared: PreparedModel,
    *,
    is_launch: bool = False,
    peer: object | None = None,
) -> tuple[list[tuple[int, Piece]], list[Any], list[tuple[Array, Array]]]:
    """Copy arrays into the slot, and check those for outputs.

    Returns what lies elsewhere, by position as in `Slot.request_with`. Then, for a launch, the
    objects that own that memory, and the regions that are to be copied, each as a target and a
    source: `peer` is the device in another process, if it is in one, and may not be given the
    memory of every region. Raises InvalidArgument for what does not fit, BadState for what is
    closed.
    """
    pieces: list[tuple[int, Piece]] = []
    sources: list[Any] = []
    copies: list[tuple[Array, Array]] = []
    for target, value, port in zip(slot.inputs, values, ports.inputs, strict=True):
        if value.__class__ is np.ndarray:
            copy_in(target, value, port)
        elif is_launch and isinstance(value, Region):
            _check_region(value, port)
            if isinstance(value, OutputRegion):
                sources.append(value.lease)
            if peer is None or _may_hand_on(value, peer):
                pieces.append((port.position, value))
            else:
                copies.append((target, value.array))
        elif value.__class__ is buffer.Buffer:
            value.check(prepared, "input", port)
            pieces.append((port.position, value))
            if is_launch:
                sources.append(value)
        elif value.__class__ is Pool:
            pieces.append((port.position, piece_of(value, port)))
        else:
            copy_in(target, value, port)
    if outs is not None:
        first = len(ports.inputs) + len(ports.state_inputs)
        for out, port in zip(outs, ports.outputs, strict=True):
            if out.__class__ is buffer.Buffer:
                out.check(prepared, "output", port)
                pieces.append((first + port.position, out))
                if is_launch:
                    sources.append(out)
            elif out is not None:
                check_target(out, port)
    return pieces, sources, copies


def held_by(
    value: Any, prepared: PreparedModel, kind: Literal["input", "output"], port: Port
) -> buffer.Buffer | None:
    """Returns a value if it is a buffer, None for any other; raises as `Buffer.check`."""
    if value is None or value.__class__ is np.ndarray or value.__class__ is not buffer.Buffer:
        return None
    held: buffer.Buffer = value
    held.check(prepared, kind, port)
    return held


def _check_region(region: Region, port: Port) -> None:
    if region.dtype != port.dtype or region.shape != port.shape:
        raise InvalidArgument(
            f"region for input {port.name!r} is {region.dtype} {list(region.shape)}, "
            f"should be {port.dtype} {list(port.shape)}"
        )
    if isinstance(region, OutputRegion) and region.lease.slot is None:
        raise BadState(
            f"the execution that gave the region for input {port.name!r} is closed, "
            "its outputs are gone"
        )


def _may_hand_on(region: Region, peer: object) -> bool:
    """Returns whether a device in another process may be given the memory of a region."""
    if isinstance(region, OutputRegion):
        return region.lease.lends_to(peer)
    return not region.pool.is_private


def carried(copies: Sequence[tuple[Array, Array]], fences: Sequence[Fence]) -> Sequence[Fence]:
    """Copy each source to its target after `fences`; returns the fences to wait for."""
    if all(fence.done for fence in fences):
        _copy(copies)
        return fences
    carrier = _Carrier(copies)
    merge(fences).add_callback(carrier)
    return [carrier.over]


def _copy(copies: Sequence[tuple[Array, Array]]) -> None:
    for target, source in copies:
        np.copyto(target, source)


class _Carrier:
    """Callback that copies, and then settles a fence of its own."""

    __slots__ = ("_copies", "over")

    def __init__(self, copies: Sequence[tuple[Array, Array]]) -> None:
        self._copies = copies
        self.over = Fence()

    def __call__(self, fence: Fence) -> None:
        copies, self._copies = self._copies, ()
        if fence.error is not None:
            self.over.fail(fence.error)
            return
        _copy(copies)
        self.over.signal()


class ImagePiece(Struct, frozen=True):
    """Presents an image as an input of a request, which is all of its pool."""

    pool: Pool
    offset: int = 0
    length: int = 0


def piece_of(image: Pool, port: Port) -> ImagePiece:
    """Returns an image as an input of (1, height, width, 3 or 4) uint8, quantized or not.

    Raises InvalidArgument for another image, or memory that is none; BadState when closed.
    """
    _check(image, port)
    fault = image_fault(image.image_layout, port.shape) if image.image_layout else None
    if fault:
        raise InvalidArgument(f"input {port.name!r}: {fault}")
    return ImagePiece(image)


def pixels_of(image: Pool, port: Port) -> Array:
    """Returns the pixels of an image for an input of open shape, which copies them."""
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
