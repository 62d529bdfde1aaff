"""When the items of a recording come: at absolute times, so that no error adds up.

Item times are start + position in the recording. A consumer that takes an item late gets it at once
and with the time at which it was due; the next one is due when it always was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from nnasync._core.arguments import check_choice
from nnasync._core.clock import now_ns
from nnasync.streaming.arguments import check_ns
from nnasync.streaming.item import Pace

Sleep = Callable[[float], Awaitable[None]]


class Pacer:
    """Waits until the positions of one recording are due.

    `start_ns` is the time of position 0; None takes the first wait as the start. Raises
    InvalidArgument for an unknown pace.
    """

    def __init__(
        self,
        pace: Pace = "real-time",
        *,
        start_ns: int | None = None,
        now: Callable[[], int] = now_ns,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        check_choice("pace", pace, ("real-time", "fast"))
        check_ns("start_ns", start_ns, None)
        self.pace = pace
        self.start_ns = start_ns
        self._now = now
        self._sleep = sleep

    async def wait_until(self, media_ns: int) -> int:
        """Wait until position `media_ns` is due and return when that is on the monotonic clock.

        With pace "fast" everything is due now.
        """
        if self.pace == "fast":
            await anyio.lowlevel.checkpoint()
            return self._now()
        if self.start_ns is None:
            self.start_ns = self._now()
        due_ns = self.start_ns + media_ns
        if self._now() >= due_ns:
            await anyio.lowlevel.checkpoint()
        while (left_ns := due_ns - self._now()) > 0:
            await self._sleep(left_ns / 1e9)
        return due_ns
