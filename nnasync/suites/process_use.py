"""What a process holds: resident memory, descriptors and threads, as Linux tells of any process.

Reading them from outside means that the process itself does nothing for it, and so also tells of
one that hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

from nnasync.hal import Struct

__all__ = ["ProcessUse", "process_use", "resident_bytes"]


class ProcessUse(Struct, frozen=True):
    """Resident bytes, open descriptors and threads of a process."""

    memory_bytes: int
    descriptors: int
    threads: int


def process_use(pid: int | None = None) -> ProcessUse | None:
    """What a process holds now, this one without a number; None where it is gone or not ours."""
    folder = _folder(pid)
    resident = resident_bytes(pid)
    try:
        descriptors, threads = (len(os.listdir(folder / each)) for each in ("fd", "task"))
    except OSError:
        return None
    return None if resident is None else ProcessUse(resident, descriptors, threads)


def resident_bytes(pid: int | None = None) -> int | None:
    """The memory of it alone, which takes some microseconds to tell."""
    try:
        pages = (_folder(pid) / "statm").read_text("ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def _folder(pid: int | None) -> Path:
    return Path("/proc") / ("self" if pid is None else str(pid))
