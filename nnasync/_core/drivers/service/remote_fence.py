"""The fence of a fenced execution in a driver service.

To a third process it is handed on as a duplicate of the descriptor that came from the service, so
that a chain over two services makes no detour through the application.
"""

from __future__ import annotations

import os

from nnasync._core.wire.connection import close_all
from nnasync.errors import ResourceExhaustedTransient
from nnasync.fences import Fence


class RemoteFence(Fence):
    """A fence of a service; it fails when the service dies. `origin` is its name in a trace."""

    __slots__ = ("_fd", "origin")

    def __init__(self) -> None:
        super().__init__()
        self._fd = -1
        self.origin = ""

    def belongs_to(self, fd: int) -> None:
        """Own the descriptor that came from the service."""
        self._fd = fd

    def export_fd(self) -> int:
        """A descriptor for another process, straight from the service while it is pending."""
        if self._fd < 0 or self.done:
            return super().export_fd()
        try:
            return os.dup(self._fd)
        except OSError as error:
            raise ResourceExhaustedTransient(f"no descriptor for a fence: {error}") from error

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_all([fd])
