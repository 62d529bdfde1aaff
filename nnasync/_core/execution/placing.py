"""What an argument is: the one place that decides for calls, launches and calls of bursts.

Arrays, and what numpy makes one of, are copied into the slot of the execution. Buffers and images
are used where they are, and so are regions in a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nnasync._core.deferred import deferred
from nnasync._core.execution.launch_arguments import gone, misfit
from nnasync._core.execution.ports import Ports, check_target, copy_in
from nnasync._core.execution.slots import IdleSlots, OutputRegion, Piece, Slot
from nnasync.device import PreparedModel
from nnasync.errors import CallerError
from nnasync.hal import Array, Priority
from nnasync.memory import Pool, Region

if TYPE_CHECKING:
    from nnasync._core.execution import buffer, images
else:
    buffer = deferred("nnasync._core.execution.buffer")
    images = deferred("nnasync._core.execution.images")

__all__ = ["place", "placed"]

_SlotT = TypeVar("_SlotT", bound=Slot)


def placed(
    slots: IdleSlots[_SlotT],
    values: Sequence[Any],
    outs: Sequence[Any] | None,
    ports: Ports,
    prepared: PreparedModel,
    priority: Priority | None = None,
) -> tuple[_SlotT, list[tuple[int, Piece]]]:
    """A slot with the arrays of a call in it, and what lies elsewhere; raises as `place`."""
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
            if value.dtype != port.dtype or value.shape != port.shape:
                raise misfit(value, port)
            if isinstance(value, OutputRegion):
                if value.lease.slot is None:
                    raise gone(port)
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
            pieces.append((port.position, images.piece_of(value, port)))
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


def _may_hand_on(region: Region, peer: object) -> bool:
    """Whether a device in another process may be given the memory of a region."""
    if isinstance(region, OutputRegion):
        return region.lease.lends_to(peer)
    return not region.pool.is_private
