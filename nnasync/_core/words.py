"""Numbers of things and times until deadlines, in words."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """Returns "1 operation", "2 operations": the number, and the thing in that number."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def until_deadline(remaining_ns: float) -> str:
    """Returns how far away a deadline is, or how long ago it was."""
    if remaining_ns < 0:
        return f"the deadline passed {-remaining_ns / 1e6:.3f} ms ago"
    return f"the deadline is {remaining_ns / 1e6:.3f} ms away"
