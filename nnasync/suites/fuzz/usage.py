"""What memory this process, or another one, has: Linux tells, elsewhere it is not known."""

from __future__ import annotations

import os
import resource
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | str = "self") -> int:
    """The memory that a process has now; 0 where that is not known or the process is gone."""
    return _pages(pid, 1)


def _pages(pid: int | str, field: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[field]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def forget_peak() -> None:
    """Have the most memory counted from now on, where the system does that."""
    try:
        with open("/proc/self/clear_refs", "wb") as file:
            file.write(b"5")
    except OSError:
        return


def peak_bytes() -> int:
    """The most memory that this process had since `forget_peak`; 0 where that is not known.

    What getrusage says will not do: a process begins with what the one that started it had.
    """
    try:
        with open("/proc/self/status", "rb") as file:
            line = next(line for line in file if line.startswith(b"VmHWM"))
    except (OSError, StopIteration):
        return 0
    return int(line.split()[1]) * 1024


def limit_address_space(more_bytes: int) -> None:
    """Refuse this process much more memory than it has, where the system tells how much it has."""
    if not sys.platform.startswith("linux"):
        return
    limit = _pages("self", 0) + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
