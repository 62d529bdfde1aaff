"""What is made of frames and hops: boxes with digits, and words.

Both are called as stages of a graph; each call gets what is left of its item's deadline, and the
priority of its stream at that moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread

from nnasync import Deadline, Net, Priority, now_ns, vision
from nnasync.cli.live.messages import Box
from nnasync.cli.recognition import NONE, Word, WordDecoder
from nnasync.hal import Array, Struct

_SURE = 0.5

_LARGE = 64 << 10
"""A picture with more values than this is resized on a thread."""


class Sight(Struct, frozen=True):
    """A picture and what was found in it."""

    picture: Array
    boxes: tuple[Box, ...]
    answered_ns: int


class Eyes:
    """Finds a digit in the middle square of pictures: uint8 [height, width] or with 3 channels."""

    def __init__(self, network: Net) -> None:
        self._network = network

    async def __call__(
        self, picture: Array, *, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Sight:
        """What is in a picture."""
        prepared = await self._prepared(picture)
        scores = await self._network(
            prepared.input, deadline=deadline, priority=priority or Priority.MEDIUM
        )
        label = int(scores.argmax())
        score = float(scores.reshape(-1)[label])
        is_something = label != NONE and score >= _SURE
        boxes = (_box(prepared.placement, str(label), score),) if is_something else ()
        return Sight(picture, boxes, now_ns())

    async def _prepared(self, picture: Array) -> vision.Prepared:
        if picture.size > _LARGE:
            return await anyio.to_thread.run_sync(self._prepare, picture)
        return self._prepare(picture)

    def _prepare(self, picture: Array) -> vision.Prepared:
        return vision.prepare(picture, self._network, fit="crop")


def _box(where: vision.Placement, label: str, score: float) -> Box:
    """A box around what the network was given of a picture."""
    left, top, right, bottom = where.source
    return Box(
        left / where.width,
        top / where.height,
        right / where.width,
        bottom / where.height,
        label,
        round(score, 3),
    )


class Ears:
    """Hears words in hops of 10 ms: float32 arrays [160] between -1 and 1."""

    def __init__(self, burst: Callable[..., Awaitable[Any]]) -> None:
        self._burst = burst
        self._decoder = WordDecoder()
        self._hop = 0

    async def __call__(
        self, hop: Array, *, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Word | None:
        """The word that ends here, if one does; hops without an answer count, too."""
        number, self._hop = self._hop, self._hop + 1
        scores = await self._burst(
            hop.reshape(1, -1), deadline=deadline, priority=priority or Priority.HIGH
        )
        return self._decoder.feed(number, scores)
