"""Memory filled with a known byte when the C library gives it out, and when it takes it back."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator

FILLS = (0x00, 0xA5)
"""What outputs are filled with, in the first execution and in the second."""
_M_PERTURB = -6


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    function: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    return function


@contextlib.contextmanager
def fill_allocations(fill: int) -> Iterator[None]:
    """Have the C library fill what it gives out meanwhile, where it is one that does so."""
    option = _mallopt()
    if option is None:
        yield
        return
    option(_M_PERTURB, fill ^ 0xFF or 0x5A)
    try:
        yield
    finally:
        option(_M_PERTURB, 0)
