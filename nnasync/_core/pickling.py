"""What belongs to one process, and is not sent to another one."""

from __future__ import annotations

from typing import Never


def stays_here(thing: object) -> Never:
    """Raise the TypeError of what cannot be pickled, which says what to do instead."""
    raise TypeError(
        f"{thing!r} belongs to this process: give the other one the path of the model, and have it "
        "open a runtime of its own"
    )
