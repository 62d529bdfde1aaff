"""What waits to be sent to one viewer: bounded, so that a viewer who does not read costs nothing.

There are two ways to put a message in. One with a key takes the place of an older one with that key
that still waits: of pictures and ticks only the newest matters. One without waits in line; where
the line is full the one that has waited longest is lost, and counted.
"""

from __future__ import annotations

from collections import deque

import anyio

CAPACITY = 64


class Outbox:
    """Messages for one viewer; `lost` counts those that had no room or were replaced."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._line: deque[str | bytes] = deque()
        self._latest: dict[str, str | bytes] = {}
        self._capacity = capacity
        self._came = anyio.Event()
        self.lost = 0
        self.is_closed = False

    def put(self, message: str | bytes, *, key: str = "") -> None:
        """Have a message sent; in the place of the one with the same `key`, if that waits."""
        if self.is_closed:
            return
        if key:
            self.lost += key in self._latest
            self._latest[key] = message
        else:
            if len(self._line) >= self._capacity:
                self._line.popleft()
                self.lost += 1
            self._line.append(message)
        self._came.set()

    def close(self) -> None:
        """Take no more; who waits for the next message is told that there is none."""
        self.is_closed = True
        self._came.set()

    async def next(self) -> str | bytes | None:
        """The next message to send; None when closed."""
        while not self.is_closed:
            if self._line:
                return self._line.popleft()
            if self._latest:
                return self._latest.pop(next(iter(self._latest)))
            self._came = anyio.Event()
            await self._came.wait()
        return None

    def __len__(self) -> int:
        return len(self._line) + len(self._latest)
