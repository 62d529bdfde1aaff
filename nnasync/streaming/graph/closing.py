"""The end of a source or a sink: it is closed once, behind the last node that uses it."""

from __future__ import annotations

from typing import Any

import anyio


class Closing:
    """Counts the nodes that use a source or a sink, such as those of several streams."""

    def __init__(self, used: Any) -> None:
        self.used = used
        self._users = 0

    def enter(self) -> None:
        """Counts one more node that uses the source or sink."""
        self._users += 1

    async def leave(self) -> None:
        """Counts a node out; the last one closes the source or sink, also in a cancelled graph.

        Raises what closing raises.
        """
        self._users -= 1
        close = getattr(self.used, "aclose", None)
        if close is not None and not self._users:
            with anyio.CancelScope(shield=True):
                await close()
