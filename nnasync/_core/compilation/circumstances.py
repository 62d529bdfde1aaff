"""Under which circumstances a contest was held, and whether its verdict may stay for good.

A program often compiles while a machine starts or something is being installed. Runs on one thread
then take longer than the processor time they need, which a contest sees; such a verdict is used,
but is provisional: the next compilation that finds the machine quiet holds another contest. Where
three in a row were disturbed although the machine had seemed quiet, that is how this machine is,
and the verdict stays.
"""

from __future__ import annotations

import os

from nnasync.hal import Struct

__all__ = ["QUIET", "Circumstances", "is_quiet", "succeeds"]

_DISTURBED = 1.15
_MOST_CONTESTS = 3


class Circumstances(Struct, frozen=True):
    """When a contest was held, and how much other work there was.

    held_at_s: seconds since 1970. crowding: time per processor time of runs on one thread, 1 where
    nobody else wanted the cores. disturbed: how many contests in a row other work disturbed, this
    one included.
    """

    held_at_s: int = 0
    crowding: float = 1.0
    disturbed: int = 0

    @property
    def is_provisional(self) -> bool:
        """Whether another contest should be held when the machine is quiet."""
        return 0 < self.disturbed < _MOST_CONTESTS

    @classmethod
    def of(cls, held_at_s: float, crowding: float, before: Circumstances | None) -> Circumstances:
        """Those of a contest that came after another one, or was the first."""
        if crowding <= _DISTURBED:
            return cls(int(held_at_s), crowding)
        earlier = 0 if before is None else before.disturbed
        return cls(int(held_at_s), crowding, earlier + 1)

    def outlasting(self, contest: Circumstances) -> Circumstances:
        """Those of a verdict that stays after another contest, which counts as held."""
        if not self.disturbed:
            return self
        return Circumstances(contest.held_at_s, self.crowding, contest.disturbed)


QUIET = Circumstances()
"""Those of a contest that nothing is known about."""


def succeeds(new: Circumstances, before: Circumstances | None) -> bool:
    """Whether the outcome of a contest replaces an earlier one: not if it was disturbed more."""
    return before is None or not new.disturbed or new.crowding < before.crowding


def is_quiet() -> bool:
    """Whether at most half of the processors were busy during the last minute."""
    try:
        return os.getloadavg()[0] <= (os.cpu_count() or 1) / 2
    except OSError:
        return True
