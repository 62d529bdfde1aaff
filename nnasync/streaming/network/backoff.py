"""How long to wait before the next attempt: longer each time, and not all at once.

Many clients lose a server at the same moment. So a wait is shorter than its longest by a random
share, the jitter; the random number is passed in.
"""

from __future__ import annotations

import math

from nnasync.errors import InvalidArgument
from nnasync.hal import Struct


class Backoff(Struct, frozen=True):
    """Waits of `first_s`, then `factor` times as long each, up to `longest_s`.

    Each is shorter by a random share of at most `jitter`. After `attempts` failures in a row there
    is no other attempt; None goes on for ever. Raises InvalidArgument for numbers out of range.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    factor: float = 2.0
    jitter: float = 0.5
    attempts: int | None = None

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.longest_s < math.inf):
            raise InvalidArgument(
                f"first_s is {self.first_s} and longest_s {self.longest_s}: "
                "0 < first_s <= longest_s is wanted"
            )
        if not 1 <= self.factor < math.inf:
            raise InvalidArgument(f"factor is {self.factor}, it must be at least 1")
        if not 0 <= self.jitter <= 1:
            raise InvalidArgument(f"jitter is {self.jitter}, it must be between 0 and 1")
        if self.attempts is not None and self.attempts < 1:
            raise InvalidArgument(f"attempts is {self.attempts}, it must be at least 1, or None")

    def wait_s(self, failures: int, uniform: float) -> float | None:
        """How long to wait after so many failures in a row, 1 at least; None to give up.

        `uniform` is a random number between 0 and 1.
        """
        if self.attempts is not None and failures >= self.attempts:
            return None
        try:
            longest_s = min(self.first_s * self.factor ** (failures - 1), self.longest_s)
        except OverflowError:
            longest_s = self.longest_s
        return longest_s * (1 - self.jitter * uniform)
