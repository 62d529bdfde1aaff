"""Caches made cold on purpose, as a stream finds them whose runs are some milliseconds apart.

In that time the machine does other things: those of the application, of the system, or of others.
A run after it has to fetch its code, its weights and its scratch anew, and engines differ in how
much that is. Letting go of the processor for a moment, and then writing over more memory than the
caches next to a core hold, has the same effect as a stream's pauses, sooner and more evenly.
"""

from __future__ import annotations

import time

import numpy as np

__all__ = ["Chill"]

_BYTES = 16 << 20
_PAUSE_S = 0.002


class Chill:
    """Makes caches cold when it is called; holds some memory for that, so let it go soon."""

    def __init__(self) -> None:
        self.memory = np.zeros(_BYTES, np.uint8)

    def __call__(self) -> None:
        """Sleep for a moment and write over the memory; not for the thread of a loop."""
        time.sleep(_PAUSE_S)
        np.add(self.memory, 1, out=self.memory)
