"""Keeps the LOW load at the number of clients that was asked for last, while somebody watches."""

from __future__ import annotations

import anyio

from nnasync.cli.demo.load import LowLoad


class LoadKeeper:
    """Runs a load, and again with another number of clients when that changes."""

    def __init__(self, load: LowLoad, clients: int) -> None:
        self.clients = clients
        self._load = load
        self._is_watched = False
        self._changed = anyio.Event()
        self._scope = anyio.CancelScope()

    @property
    def answered(self) -> int:
        """Returns how many calls the load has had answered."""
        return self._load.answered

    def set(self, clients: int) -> None:
        """Have so many clients."""
        if clients != self.clients:
            self.clients = clients
            self._wake()

    def watch(self, *, is_watched: bool) -> None:
        """Without anybody to watch there is no load."""
        if is_watched != self._is_watched:
            self._is_watched = is_watched
            self._wake()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed = anyio.Event()
            self._load.clients = self.clients if self._is_watched else 0
            with anyio.CancelScope() as self._scope:
                await self._load.run()
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._scope.cancel()
