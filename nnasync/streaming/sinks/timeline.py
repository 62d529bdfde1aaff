"""Where items are in a recording: how long after its first one.

The time in the media is the better one. A file that is read with pace "fast" gives a minute of
pictures within a second, all captured in that second; their times in the media are still those of
the minute. For live sources and files at their own pace both times advance alike.

Two kinds of items have to be placed by their capture instead: those of a source that tells no time
in the media, which can be seen, for it does not advance; and those of several sources in one
recording, whose media began at different moments, which cannot be seen: `times` has to say it.
"""

from __future__ import annotations

from typing import Literal

from nnasync._core.arguments import check_choice
from nnasync.streaming.item import Item

Times = Literal["media", "captured"]
"""Which times of items a recording has."""


def check_times(times: str) -> None:
    """Raise InvalidArgument for an unknown kind of times."""
    check_choice("times", times, ("media", "captured"))


class Timeline:
    """Computes the positions of items in a recording whose first item is `first`."""

    def __init__(self, first: Item, times: Times) -> None:
        self._first = first
        self._is_media = times == "media"

    def position_ns(self, item: Item) -> int:
        """Nanoseconds from the first item to this one."""
        media_ns = item.media_ns - self._first.media_ns
        if self._is_media and media_ns > 0:
            return media_ns
        return item.captured_ns - self._first.captured_ns
