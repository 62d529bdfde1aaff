"""Waits that end at a deadline, and not before: timers of event loops ring up to 1 ms early."""

from __future__ import annotations

import anyio

from nnasync._core.clock import Deadline


async def set_in_time(event: anyio.Event, deadline: Deadline | None) -> bool:
    """Waits for an event, and returns whether it was set by the deadline."""
    while not event.is_set():
        patience_s = remaining_s(deadline)
        if patience_s == 0:
            return False
        with anyio.move_on_after(patience_s):
            await event.wait()
    return True


async def until_passed(deadline: Deadline) -> None:
    """Waits for the rest of the time after a timer that may have been early."""
    await set_in_time(anyio.Event(), deadline)


def remaining_s(deadline: Deadline | None) -> float | None:
    """Returns how long a deadline is away, 0 once it has passed, and None where there is none."""
    return None if deadline is None else max(0.0, deadline.remaining_ns() * 1e-9)
