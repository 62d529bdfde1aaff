"""How many of something there are, in words."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """Returns "1 operation", "2 operations": the number, and the thing in that number."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
