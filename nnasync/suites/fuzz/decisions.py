"""Randomness as decisions that can be written down, taken again, and taken out.

What a fuzzer does follows from its random choices. A `RecordedRandom` writes each of them down as a
whole number, and a `ReplayedRandom` makes the same ones from such a list; where a list ends, all
further choices are 0, which mostly means "change no more". Whoever shortens the list or makes its
numbers smaller gets a simpler input of the same kind: that is how findings are shrunk, and guided
fuzzing is the same with a list that the guide writes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

_UNIT = 1 << 53
_BYTES = 4


class RecordedRandom(random.Random):
    """The randomness of a seed; `decisions` are those that were made so far."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.decisions: list[int] = []

    def _noted(self, decision: int) -> int:
        self.decisions.append(decision)
        return decision

    def getrandbits(self, k: int, /) -> int:
        """Returns so many random bits, and records them."""
        return self._noted(super().getrandbits(k))

    def random(self) -> float:
        """A number from 0 to below 1."""
        return self._noted(super().getrandbits(53)) / _UNIT

    def _randbelow(self, n: int) -> int:
        bits = n.bit_length()
        while (number := super().getrandbits(bits)) >= n:
            pass
        return self._noted(number)


class ReplayedRandom(random.Random):
    """The decisions of a list, and zeros behind its end; `used` says how many were asked for."""

    def __init__(self, decisions: Sequence[int]) -> None:
        super().__init__(0)
        self._decisions = decisions
        self.used = 0

    def _next(self) -> int:
        place, self.used = self.used, self.used + 1
        return self._decisions[place] if place < len(self._decisions) else 0

    def getrandbits(self, k: int, /) -> int:
        """Returns so many bits of the next decision."""
        return self._next() & ((1 << k) - 1)

    def random(self) -> float:
        """The next decision as a number from 0 to below 1."""
        return (self._next() % _UNIT) / _UNIT

    def _randbelow(self, n: int) -> int:
        return self._next() % n


def decisions_in(data: bytes) -> list[int]:
    """The decisions that bytes stand for: four bytes each, the first ones the most important."""
    words = [data[place : place + _BYTES] for place in range(0, len(data), _BYTES)]
    return [_spread(int.from_bytes(word, "little")) for word in words]


def _spread(word: int) -> int:
    """A decision whose low bits choose, and whose high bits make the number of `random()`."""
    return (word << 21) | word
