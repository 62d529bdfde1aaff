"""The end of a network, which may be waited for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nnasync.fences import Fence

__all__ = ["Closing"]


class Closing:
    """The end of a network; awaiting it is optional."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence

    def __await__(self) -> Generator[Any, Any, None]:
        return self._fence.__await__()
