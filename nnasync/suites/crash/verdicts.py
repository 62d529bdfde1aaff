"""What the ends of a mode's processes come to: whose death it was, and what was left behind."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterable, Sequence

from nnasync.hal import Struct
from nnasync.suites.crash.children import ChildEnd
from nnasync.suites.crash.orders import CallTimes, ChildReport, UseSample
from nnasync.suites.process_use import ProcessUse
from nnasync.suites.results import Bars, Better, Standing, SuiteFigure
from nnasync.suites.trends import trend

MIB = 1 << 20
SETTLED_SHARE = 0.3
"""The first part of a stress, in which a process may grow."""
MEMORY_SHARE = 0.02
MEMORY_BYTES = 8 * MIB
"""Growth of memory beyond both is a leak."""
COUNT_GROWTH = 3.0
"""Growth of descriptors or threads beyond this is a leak."""
LEFT_DESCRIPTORS = 4
LEFT_THREADS = 8
"""A driver's process may keep so many more, beside its workers and the threads of its engine."""


class ClientEnd(Struct, frozen=True):
    """How a process of clients ended, and whether it was to be killed."""

    end: ChildEnd
    is_victim: bool = False

    @property
    def was_killed(self) -> bool:
        """Returns whether SIGKILL ended it."""
        return self.end.code == -signal.SIGKILL

    @property
    def standing(self) -> Standing:
        """Returns the standing; a victim's death by SIGKILL is a success."""
        if not self.is_victim:
            return self.end.standing
        return Standing.SUCCESS if self.was_killed else _alive(self.end.standing)

    @property
    def text(self) -> str:
        """Returns why it is no success."""
        if self.is_victim and self.end.standing is Standing.SUCCESS and not self.was_killed:
            return "a client that was to be killed came to its end"
        return self.end.text


def _alive(standing: Standing) -> Standing:
    return Standing.FAILURE if standing is Standing.SUCCESS else standing


def victims(seed: str, processes: int, percent: int, seconds: float) -> list[float | None]:
    """Returns for each process when it kills itself, None where it does not; each is seeded."""
    found: list[float | None] = []
    for number in range(processes):
        chance = random.Random(f"{seed}/{number}")
        dies = chance.random() * 100 < percent
        found.append(chance.uniform(0.1, 0.9) * seconds if dies else None)
    return found


def worst(standings: Iterable[Standing]) -> Standing:
    """The worst of several standings."""
    order = list(Standing)
    return max(standings, key=order.index, default=Standing.SUCCESS)


def served_verdict(
    driver: ChildEnd, innocent: ChildEnd, clients: Sequence[ClientEnd]
) -> tuple[Standing, str]:
    """The verdict on a driver in a process of its own: its death is told from its clients'."""
    if driver.standing is not Standing.SUCCESS:
        dead = sum(each.standing is Standing.CRASH for each in clients)
        lived = f"{dead} of {len(clients)} clients died with it" if dead else "its clients lived"
        return driver.standing, f"the driver's process: {driver.text}; {lived}"
    texts = [f"a client: {each.text}" for each in clients if each.standing is not Standing.SUCCESS]
    if innocent.standing is not Standing.SUCCESS:
        texts.append(f"the innocent client beside: {innocent.text}")
    standing = worst([innocent.standing, *(each.standing for each in clients)])
    if standing is Standing.CRASH:
        texts.append("the driver's process lived")
    return standing, "; ".join(dict.fromkeys(texts))


def leaks(samples: Sequence[UseSample], seconds: float) -> list[str]:
    """Returns which figures surely grew over a stress that returned to one state at each sample."""
    times = [each.at_s for each in samples]
    found = []
    for name, values in (
        ("memory", [float(each.memory_bytes) for each in samples]),
        ("descriptors", [float(each.descriptors) for each in samples]),
        ("threads", [float(each.threads) for each in samples]),
    ):
        seen = trend(times, values, settle=seconds * SETTLED_SHARE)
        if seen is None:
            continue
        if name == "memory" and seen.grown > max(MEMORY_BYTES, MEMORY_SHARE * seen.level):
            found.append(f"memory grows by {seen.slope / MIB:.2f} MiB a second")
        elif name != "memory" and seen.grown > COUNT_GROWTH:
            found.append(f"{name} grow by {seen.slope:.2f} a second")
    return found


def is_released(before: ProcessUse, now: ProcessUse, workers: int) -> bool:
    """Returns whether a driver has released what the vanished clients had, except its workers."""
    return (
        now.descriptors <= before.descriptors + workers + LEFT_DESCRIPTORS
        and now.threads <= before.threads + 2 * workers + LEFT_THREADS
    )


def call_figures(times: CallTimes | None, who: str) -> tuple[SuiteFigure, ...]:
    """Latencies of a kind of client as figures."""
    if times is None:
        return ()
    values = (("median", times.p50_ms), ("99 %", times.p99_ms), ("worst", times.worst_ms))
    return tuple(
        SuiteFigure(f"{who}, {name}", value, "ms", better=Better.LESS) for name, value in values
    )


def call_bars(times: CallTimes | None, who: str) -> tuple[Bars, ...]:
    """The histogram of a kind of client."""
    if times is None:
        return ()
    return (Bars(who, "ms", times.start_ms, times.step_ms, times.buckets),)


def use_figures(before: ProcessUse | None, after: ProcessUse | None) -> tuple[SuiteFigure, ...]:
    """Returns the figures of what a process held before and after."""
    if before is None or after is None:
        return ()
    return (
        SuiteFigure("memory before", before.memory_bytes / MIB, "MiB", better=Better.LESS),
        SuiteFigure("memory after", after.memory_bytes / MIB, "MiB", better=Better.LESS),
        SuiteFigure("descriptors before", before.descriptors, better=Better.LESS),
        SuiteFigure("descriptors after", after.descriptors, better=Better.LESS),
        SuiteFigure("threads before", before.threads, better=Better.LESS),
        SuiteFigure("threads after", after.threads, better=Better.LESS),
    )


def report_figures(report: ChildReport | None) -> tuple[SuiteFigure, ...]:
    """Counts and figures of a report."""
    if report is None:
        return ()
    counts = [SuiteFigure(name, count) for name, count in sorted(report.counts.items())]
    figures = [
        SuiteFigure(name.removesuffix(", %"), value, "%", better=Better.LESS)
        for name, value in report.figures.items()
    ]
    return (*counts, *figures)


def merged(reports: Iterable[ChildReport]) -> ChildReport:
    """The counts of several processes, added up."""
    sums: Counter[str] = Counter()
    for report in reports:
        sums.update(report.counts)
    return ChildReport(counts=dict(sums))
