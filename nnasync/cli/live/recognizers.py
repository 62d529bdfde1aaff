"""What is made of frames and hops: boxes with digits, and words.

Both are called as stages of a graph; each call gets what is left of its item's deadline, and the
priority of its stream at that moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from nnasync import Deadline, Priority, now_ns, vision
from nnasync.cli.live.messages import Box
from nnasync.cli.recognition import Word, WordDecoder
from nnasync.hal import Array, Struct


class Sight(Struct, frozen=True):
    """A picture and what was found in it."""

    picture: Array
    boxes: tuple[Box, ...]
    answered_ns: int


class Eyes:
    """Finds digits in the pictures of one stream, and follows them from picture to picture."""

    def __init__(self, detector: vision.Detector) -> None:
        self._detector = detector
        self._tracker = vision.Tracker(confirmations=2)

    async def __call__(
        self, picture: Array, *, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Sight:
        """Returns what is seen in a picture.

        The picture is a uint8 array [height, width] or [height, width, 3].
        """
        found = await self._detector(picture, deadline=deadline, priority=priority)
        answered_ns = now_ns()
        height, width = picture.shape[:2]
        known = self._tracker.update(found, answered_ns)
        boxes = tuple(_as_shares(box, width, height) for box in known)
        return Sight(picture, boxes, answered_ns)


def _as_shares(box: vision.Box, width: int, height: int) -> Box:
    return Box(
        round(box.left / width, 4),
        round(box.top / height, 4),
        round(box.right / width, 4),
        round(box.bottom / height, 4),
        box.name,
        round(box.score, 3),
        box.identity,
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
