"""How much longer the slowest of one load are than those of another one, and how sure that is.

A percentile near the end hangs on the few slowest of all. Rounds of both loads are drawn again, as
many as there were, with some of them several times, and the ratio is taken of each such draw: where
95 % of these ratios lie tells what other rounds of the same kind might have given.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks._rounds import percentile

__all__ = ["tail_ratio"]

_DRAWS = 1000


def tail_ratio(
    values: Sequence[Sequence[float]], base: Sequence[Sequence[float]], share: float = 0.99
) -> tuple[float, float, float]:
    """Returns the ratio of a percentile over all rounds to that of `base`, and its interval.

    Rounds of the same place belong together.
    """
    chance, rounds = random.Random(1), range(len(values))

    def of(chosen: Sequence[int]) -> float:
        both = ([each for place in chosen for each in of_rounds[place]]
                for of_rounds in (values, base))  # fmt: skip
        found, other = (percentile(each, share) for each in both)
        return found / other

    drawn = sorted(of(chance.choices(rounds, k=len(rounds))) for _ in range(_DRAWS))
    return of(rounds), percentile(drawn, 0.025), percentile(drawn, 0.975)
