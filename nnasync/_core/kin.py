"""Processes that compute for the same application: those of its isolated devices, and itself.

What they use of the cores is no load of other programs, and no reason to be more or less nice than
they are.
"""

from __future__ import annotations

import sys
import time

_SCHEDULED_TIME_OF_A_PROCESS = 0b010


class Kin:
    """Processes beside this one that compute for the same application; from any thread."""

    def __init__(self) -> None:
        self._members: set[int] = set()

    def joins(self, pid: int) -> None:
        """Note a process that was started for the application, or that is the application."""
        self._members.add(pid)

    def leaves(self, pid: int) -> None:
        """Note that a process has ended."""
        self._members.discard(pid)

    def ran_ns(self) -> dict[int, int]:
        """Returns the processor time of each so far, where the system tells it, by its number."""
        found: dict[int, int] = {}
        for pid in tuple(self._members) if sys.platform == "linux" else ():
            try:
                found[pid] = time.clock_gettime_ns((~pid << 3) | _SCHEDULED_TIME_OF_A_PROCESS)
            except OSError:
                continue  # It has ended, and nobody has said so yet.
        return found


KIN = Kin()
"""That of this process."""
