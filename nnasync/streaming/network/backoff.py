"""How long to wait before the next attempt: longer each time, and not all at once.

Many clients lose a server at the same moment. So a wait is shorter than its longest by a random
share, the jitter; the random number is passed in.
"""

from __future__ import annotations

from nnasync._core.arguments import check_number, check_positive, check_share, check_whole, or_none
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
        check_positive("first_s", self.first_s)
        check_positive("longest_s", self.longest_s)
        check_number("factor", self.factor, 1)
        check_share("jitter", self.jitter)
        or_none(check_whole, "attempts", self.attempts, 1)
        if self.first_s > self.longest_s:
            raise InvalidArgument(
                f"first_s is {self.first_s} and longest_s {self.longest_s}: "
                "0 < first_s <= longest_s is wanted"
            )

    def wait_s(self, failures: int, uniform: float) -> float | None:
        """Returns how long to wait after so many failures in a row, 1 at least; None to give up.

        `uniform` is a random number between 0 and 1.
        """
        if self.attempts is not None and failures >= self.attempts:
            return None
        try:
            longest_s = min(self.first_s * self.factor ** (failures - 1), self.longest_s)
        except OverflowError:
            longest_s = self.longest_s
        return longest_s * (1 - self.jitter * uniform)
