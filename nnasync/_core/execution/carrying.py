"""Regions on their way to a device in another process that may not be given their memory.

What is private to this process has no descriptor, and that of a pool which another process has
would give this one more than the region. So the region is copied to where the input lies in the
slot of the launch: as soon as all fences that the launch waits for are signaled, on the thread that
signals the last one. To the device the copy is one more dependency.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.fences import Fence, merge
from nnasync.hal import Array

__all__ = ["carried"]


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
