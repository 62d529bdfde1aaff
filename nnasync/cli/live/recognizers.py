"""What is made of frames and hops: boxes with digits, and words.

Both are called as stages of a graph; each call gets what is left of its item's deadline, and the
priority of its stream at that moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from nnasync import Deadline, Net, Priority, now_ns
from nnasync.cli.demo.streams import IMAGE, image
from nnasync.cli.live.messages import Box
from nnasync.cli.recognition import NONE, Word, WordDecoder
from nnasync.hal import Array, Struct

_SURE = 0.5


class Sight(Struct, frozen=True):
    """A picture and what was found in it."""

    picture: Array
    boxes: tuple[Box, ...]
    answered_ns: int


class Eyes:
    """Finds digits in pictures: uint8 arrays [height, width] or [height, width, 3]."""

    def __init__(self, network: Net) -> None:
        self._network = network

    async def __call__(
        self, picture: Array, *, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Sight:
        """What is in a picture."""
        square, area = middle_square(picture)
        scores = await self._network(
            image(resized(square)), deadline=deadline, priority=priority or Priority.MEDIUM
        )
        label = int(scores.argmax())
        score = float(scores.reshape(-1)[label])
        is_something = label != NONE and score >= _SURE
        boxes = (Box(*area, label=str(label), score=round(score, 3)),) if is_something else ()
        return Sight(picture, boxes, now_ns())


def middle_square(picture: Array) -> tuple[Array, tuple[float, float, float, float]]:
    """The largest square in the middle of a picture, and its corners as shares of the picture."""
    height, width = picture.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = picture[top : top + side, left : left + side]
    return square, (left / width, top / height, (left + side) / width, (top + side) / height)


def resized(square: Array) -> Array:
    """A square picture as gray bytes of the network's size: each the mean of its area."""
    gray = square if square.ndim == 2 else square.mean(axis=2)
    side = gray.shape[0]
    if side == IMAGE[0]:
        return gray.astype(np.uint8, copy=False)
    edges = np.linspace(0, side, IMAGE[0] + 1).astype(int)
    starts = np.minimum(edges[:-1], side - 1)
    sums = np.add.reduceat(np.add.reduceat(gray.astype(np.float32), starts, 0), starts, 1)
    counts = np.maximum(np.diff(np.append(starts, side)), 1)
    mean: Array = sums / (counts[:, None] * counts[None, :])
    return mean.astype(np.uint8)


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
