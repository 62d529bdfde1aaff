"""Delta debugging: the fewest and smallest decisions that still lead to the same verdict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

Decisions = tuple[int, ...]
Still = Callable[[Decisions], Awaitable[bool]]
"""Whether these decisions still lead to the finding."""


async def shrunk(decisions: Sequence[int], still: Still, most_trials: int) -> Decisions:
    """Decisions as few and small as `most_trials` questions allow; at worst the given ones."""
    search = _Search(tuple(decisions), still, most_trials)
    await search.cut_end()
    size = max(1, len(search.best) // 2)
    while size and search.trials_left:
        await search.without_pieces(size)
        size //= 2
    size = max(1, len(search.best) // 2)
    while size and search.trials_left:
        await search.zeroed_pieces(size)
        size //= 2
    return search.best


class _Search:
    def __init__(self, best: Decisions, still: Still, most_trials: int) -> None:
        self.best = _stripped(best)
        self.trials_left = most_trials
        self._still = still
        self._asked: set[Decisions] = {self.best}

    async def _takes(self, decisions: Decisions) -> bool:
        """Take these as the best ones if they still lead to the finding."""
        decisions = _stripped(decisions)
        if decisions in self._asked or not self.trials_left:
            return False
        self._asked.add(decisions)
        self.trials_left -= 1
        if not await self._still(decisions):
            return False
        self.best = decisions
        return True

    async def cut_end(self) -> None:
        """Find the shortest beginning: what is behind it becomes zeros."""
        low, high = 0, len(self.best)
        while low < high and self.trials_left:
            middle = (low + high) // 2
            if await self._takes(self.best[:middle]):
                high = min(middle, len(self.best))
            else:
                low = middle + 1

    async def without_pieces(self, size: int) -> None:
        """Take pieces of a size out, where the rest is enough."""
        place = 0
        while place < len(self.best) and self.trials_left:
            if not await self._takes(self.best[:place] + self.best[place + size :]):
                place += size

    async def zeroed_pieces(self, size: int) -> None:
        """Make pieces of a size zeros, where that is enough."""
        place = 0
        while place < len(self.best) and self.trials_left:
            piece = self.best[place : place + size]
            zeros = (0,) * len(piece)
            await self._takes(self.best[:place] + zeros + self.best[place + size :])
            place += size


def _stripped(decisions: Decisions) -> Decisions:
    """The decisions without the zeros at their end, which are there anyhow."""
    end = len(decisions)
    while end and decisions[end - 1] == 0:
        end -= 1
    return decisions[:end]
