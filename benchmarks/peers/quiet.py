"""How quiet the machine was meanwhile: CPU time that others used, and that a hypervisor took."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Quiet"]

FACTS = Path("/proc/stat")
DISTURBED = 2.0
"""Percent of all CPU time from which on figures are not to be trusted."""


class Quiet:
    """Counts from when it is made; our own CPU time includes that of ended child processes."""

    def __init__(self, facts: Path = FACTS) -> None:
        self._facts = facts
        self._begin = self._times()

    def told(self) -> str:
        """One line for the end of a section."""
        end = self._times()
        if end is None or self._begin is None:
            return "how quiet the machine was is not known here"
        busy, stolen, total, own = (
            after - before for after, before in zip(end, self._begin, strict=True)
        )
        if total <= 0:
            return "too short to tell how quiet the machine was"
        others, taken = 100 * max(0.0, busy - own) / total, 100 * stolen / total
        told = f"CPU used by other processes {others:.1f} %, taken by a hypervisor {taken:.1f} %"
        return f"{told}: too much to trust the figures" if others + taken > DISTURBED else told

    def _times(self) -> tuple[float, float, float, float] | None:
        """CPU seconds so far: busy, stolen, all, and our own."""
        try:
            fields = self._facts.read_text(encoding="utf-8").splitlines()[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = ticks
        busy = user + nice + system + interrupts + soft
        own = os.times()
        return busy, stolen, sum(ticks), sum(own[:4])
