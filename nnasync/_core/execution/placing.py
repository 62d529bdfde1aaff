"""Where the inputs and outputs of a launch lie: copied into its slot, or where they are already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnasync._core.deferred import deferred
from nnasync._core.execution.launch_arguments import gone, misfit
from nnasync._core.execution.ports import Ports, copy_in
from nnasync._core.execution.slots import OutputRegion, Piece, Slot
from nnasync.device import PreparedModel
from nnasync.hal import Array
from nnasync.memory import Pool, Region

if TYPE_CHECKING:
    from nnasync._core.execution import buffer, images
else:
    buffer = deferred("nnasync._core.execution.buffer")
    images = deferred("nnasync._core.execution.images")

__all__ = ["place"]


def place(
    slot: Slot,
    values: Sequence[Any],
    outs: Sequence[Any] | None,
    ports: Ports,
    prepared: PreparedModel,
    peer: object | None,
) -> tuple[list[tuple[int, Piece]], list[Any], list[tuple[Array, Array]]]:
    """Copy arrays into the slot; other pieces are returned with the objects that own their memory.

    The third are regions that are to be copied, each as a target and a source: `peer` is the device
    in another process, if it is in one, and may not be given the memory of every region.
    """
    pieces: list[tuple[int, Piece]] = []
    sources: list[Any] = []
    copies: list[tuple[Array, Array]] = []
    for target, value, port in zip(slot.inputs, values, ports.inputs, strict=True):
        if isinstance(value, Region):
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
        elif value.__class__ is not np.ndarray and isinstance(value, buffer.Buffer):
            value.check(prepared, "input", port)
            pieces.append((port.position, value))
            sources.append(value)
        elif value.__class__ is Pool:
            pieces.append((port.position, images.piece_of(value, port)))
        else:
            copy_in(target, value, port)
    if outs is not None:
        written = buffer.placed(ports, prepared, outs)
        pieces += written
        sources += [each for _, each in written]
    return pieces, sources, copies


def _may_hand_on(region: Region, peer: object) -> bool:
    """Whether a device in another process may be given the memory of a region."""
    if isinstance(region, OutputRegion):
        return region.lease.lends_to(peer)
    return not region.pool.is_private
