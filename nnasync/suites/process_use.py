"""What a process holds: resident memory, descriptors and threads, as Linux tells of any process.

Reading them from outside means that the process itself does nothing for it, and so also tells of
one that hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

from nnasync.hal import Struct

__all__ = ["ProcessUse", "least", "process_use"]


class ProcessUse(Struct, frozen=True):
    """Resident bytes, open descriptors and threads of a process."""

    memory_bytes: int
    descriptors: int
    threads: int


def process_use(pid: int | None = None) -> ProcessUse | None:
    """Returns the resources of a process, by default this one; None if it is gone or not ours."""
    folder = Path("/proc") / ("self" if pid is None else str(pid))
    try:
        resident = int((folder / "statm").read_text("ascii").split()[1])
        if not resident:
            return None  # It has ended, and nobody has waited for it yet.
        return ProcessUse(
            resident * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir(folder / "fd")),
            len(os.listdir(folder / "task")),
        )
    except (OSError, IndexError, ValueError):
        return None


def least(one: ProcessUse | None, other: ProcessUse | None) -> ProcessUse | None:
    """The least of each that was held at two times, one of which may be unknown."""
    if one is None or other is None:
        return one or other
    return ProcessUse(
        min(one.memory_bytes, other.memory_bytes),
        min(one.descriptors, other.descriptors),
        min(one.threads, other.threads),
    )
