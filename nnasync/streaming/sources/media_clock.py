"""Times in a stream of media, mapped to the monotonic clock of this machine.

A sender's times count from anywhere, by a clock that drifts against ours. What is known is when a
picture arrived: never before it was captured. So of a live stream the smallest delay that was seen
lately stands for none at all, and a capture is the sender's time plus that offset:

    captured = media time + min(arrival - media time)

The minimum may rise by a thousandth of the difference with each item, so that it follows a clock
that drifts. What is read faster than it plays (a playlist of segments) is mapped by its first item
instead, and is due in the future.

Times of cameras also jump, wrap around after a number of bits, and stand still. Whatever comes, the
mapped times rise strictly; what had to be mended is counted.
"""

from __future__ import annotations

JUMP_NS = 2_000_000_000
"""A step of media time is a jump where it differs by more from the step of the arrivals."""

MOST_DELAY_NS = 10_000_000_000
"""What is mapped to longer ago than this is not that old: the times are wrong."""

_DRIFT_SHIFT = 10


class MediaClock:
    """Maps the times of one connection; `wrap_ns` is where its times begin anew, 0 if never.

    With `is_live` no item is mapped to later than its arrival.
    """

    def __init__(self, *, is_live: bool = True, wrap_ns: int = 0) -> None:
        self._is_live = is_live
        self._wrap_ns = wrap_ns
        self._turns_ns = 0
        self._last_media_ns: int | None = None
        self._last_arrived_ns = 0
        self._last_captured_ns: int | None = None
        self._offset_ns = 0
        self.mended = 0

    def captured_ns(self, media_ns: int | None, arrived_ns: int) -> int:
        """Returns when an item was captured, by its media time, or without one by its arrival."""
        captured_ns = arrived_ns
        if media_ns is not None:
            captured_ns = self._mapped(self._unwrapped(media_ns), arrived_ns)
        last_ns = self._last_captured_ns
        if last_ns is not None and captured_ns <= last_ns:
            captured_ns = last_ns + 1
        self._last_captured_ns = captured_ns
        return captured_ns

    def _unwrapped(self, media_ns: int) -> int:
        """The media time counted on over wrap-arounds."""
        media_ns += self._turns_ns
        last_ns = self._last_media_ns
        if self._wrap_ns and last_ns is not None:
            step_ns = media_ns + self._wrap_ns - last_ns
            if -JUMP_NS < step_ns < JUMP_NS and media_ns < last_ns:
                self._turns_ns += self._wrap_ns
                return media_ns + self._wrap_ns
        return media_ns

    def _mapped(self, media_ns: int, arrived_ns: int) -> int:
        last_ns = self._last_media_ns
        lead_ns = arrived_ns - media_ns
        if last_ns is None:
            self._offset_ns = lead_ns
        elif media_ns <= last_ns or self._has_jumped(media_ns - last_ns, lead_ns, arrived_ns):
            self.mended += 1
            self._offset_ns = lead_ns
        elif self._is_live:
            risen_ns = self._offset_ns + ((lead_ns - self._offset_ns) >> _DRIFT_SHIFT)
            self._offset_ns = min(lead_ns, risen_ns)
        self._last_media_ns, self._last_arrived_ns = media_ns, arrived_ns
        return media_ns + self._offset_ns

    def _has_jumped(self, step_ns: int, lead_ns: int, arrived_ns: int) -> bool:
        if lead_ns - self._offset_ns > MOST_DELAY_NS:
            return True
        if not self._is_live:
            return step_ns > JUMP_NS
        return step_ns - (arrived_ns - self._last_arrived_ns) > JUMP_NS
