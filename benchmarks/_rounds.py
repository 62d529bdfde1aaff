"""Rounds that can be trusted: interleaved, with what else the machine did, disturbed ones repeated.

Contestants take turns, so what changes slowly meets all of them alike. What comes in bursts does
not: processor time that other processes used, or that a hypervisor took, is read from /proc/stat
around each round, and a round in which that was too much is run again, as often as there are rounds
at most; of all rounds the quietest count. Beside the figure of each contestant stands the processor
time of this process and its children, which a busy machine changes far less than the time that
passes.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Quiet", "Results", "interleave", "paired_ratio", "percentile"]

FACTS = Path("/proc/stat")
DISTURBED = 2.0
"""Percent of all CPU time from which on figures are not to be trusted."""
TELLING_S = 0.5
"""The kernel counts in hundredths of a second: less CPU time than this tells nothing."""


class Quiet:
    """Measures how much others use the processor, from when it is made.

    Our own processor time includes that of child processes that have ended.
    """

    def __init__(self, facts: Path = FACTS) -> None:
        self._facts = facts
        self._begin = self._times()

    def told(self) -> str:
        """Returns one line on the disturbance, for the end of a section."""
        shares = self._shares()
        if isinstance(shares, str):
            return shares
        others, taken = shares
        told = f"CPU used by other processes {others:.1f} %, taken by a hypervisor {taken:.1f} %"
        return f"{told}: too much to trust the figures" if others + taken > DISTURBED else told

    def disturbance(self, telling_s: float = TELLING_S) -> float:
        """Returns the percentage of processor time that others had.

        0 where it is too early to know.
        """
        shares = self._shares(telling_s)
        return 0.0 if isinstance(shares, str) else sum(shares)

    def _shares(self, telling_s: float = 0.0) -> tuple[float, float] | str:
        """Returns the percentages of others and of a hypervisor, or why they are not known."""
        end = self._times()
        if end is None or self._begin is None:
            return "how quiet the machine was is not known here"
        busy, stolen, total, own = (
            after - before for after, before in zip(end, self._begin, strict=True)
        )
        if total <= telling_s:
            return "too short to tell how quiet the machine was"
        return 100 * max(0.0, busy - own) / total, 100 * stolen / total

    def _times(self) -> tuple[float, float, float, float] | None:
        """Returns the processor seconds so far: busy, stolen, all, and our own; None if unknown."""
        try:
            fields = self._facts.read_text(encoding="utf-8").splitlines()[0].split()[1:9]
        except OSError:
            return None
        ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
        user, nice, system, _idle, _waiting, interrupts, soft, stolen = ticks
        busy = user + nice + system + interrupts + soft
        return busy, stolen, sum(ticks), processor_s()


class Results(dict[str, list[float]]):
    """The figures of each contestant, one a round; `processor_s` is what those took of processors.

    `disturbances` has the percentage that others had in each round that counts; `repeated` is how
    many rounds were run again because of that.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__({name: [] for name in names})
        self.processor_s: dict[str, list[float]] = {name: [] for name in names}
        self.disturbances: list[float] = []
        self.repeated = 0

    def told(self) -> str:
        """Returns a line on how far the rounds can be trusted."""
        worst = max(self.disturbances, default=0.0)
        again = f", {self.repeated} run again" if self.repeated else ""
        told = f"{len(self.disturbances)} rounds{again}; others had up to {worst:.1f} % of the CPU"
        return f"{told}: too much to trust the figures" if worst > DISTURBED else told


async def interleave(
    contestants: Mapping[str, Callable[[], Awaitable[float]]],
    rounds: int,
    *,
    watch: Callable[[], Quiet] = Quiet,
) -> Results:
    """Runs the contestants in turns, a round at a time; returns their results.

    The order turns by one place each round. Disturbed rounds are repeated, and the quietest count.
    """
    names = list(contestants)
    every: list[tuple[float, dict[str, tuple[float, float]]]] = []
    missing = rounds
    while missing and len(every) < 2 * rounds:
        shift, quiet = len(every) % len(names), watch()
        found = {}
        for name in names[shift:] + names[:shift]:
            began_s = processor_s()
            figure = await contestants[name]()
            found[name] = figure, processor_s() - began_s
        every.append((quiet.disturbance(), found))
        missing -= every[-1][0] <= DISTURBED
    results = Results(names)
    results.repeated = len(every) - rounds
    for disturbance, found in sorted(every, key=lambda each: each[0])[:rounds]:
        results.disturbances.append(disturbance)
        for name, (figure, spent_s) in found.items():
            results[name].append(figure)
            results.processor_s[name].append(spent_s)
    return results


def processor_s() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which `share` (0..1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Returns median and quartiles of the ratios of two contestants, round by round."""
    ratios = [value / max(other, 1e-12) for value, other in zip(values, base, strict=True)]
    return percentile(ratios, 0.5), percentile(ratios, 0.25), percentile(ratios, 0.75)
