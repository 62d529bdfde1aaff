"""What a compilation tells: where the model runs, what was measured, what was refused, and why."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

import msgspec

from nnasync._core.notebook import html_lines, html_table
from nnasync.device import Device, PreparedModel
from nnasync.hal import Model

_MOST_LINES = 40
"""Most lines of one part; the report itself has them all."""


class Partition(msgspec.Struct, frozen=True):
    """A part of the model and where it runs; `operations` are indices into the main subgraph.

    What the control-flow interpreter runs has `bodies`: then and else, or condition and body, each
    in parts whose `operations` are indices into that subgraph.
    """

    device: str
    operations: tuple[int, ...]
    reason: str
    bodies: tuple[tuple[Partition, ...], ...] = ()


class Fate(enum.Enum):
    """What became of a candidate; the verdict says it in words.

    EQUAL and SLOWER agree with the reference, and were measured.
    """

    CHOSEN = "chosen"
    EQUAL = "equal"
    SLOWER = "slower"
    DISAGREES = "disagrees"
    FAILED = "failed"
    UNTRIED = "untried"
    UNSUPPORTED = "unsupported"
    FORBIDDEN = "forbidden"


class Candidate(msgspec.Struct, frozen=True):
    """A way to run the model that was considered.

    `median_us` of a run while nothing disturbs, and `cpu_us`, what all threads of the process used
    meanwhile, are None where nothing was measured. `cold_us` is a run that finds cold caches, as
    those of a stream do; measured where it might decide, else None. `agreement` says how far
    results are from the reference's.
    """

    device: str
    lowering: str
    median_us: float | None
    agreement: str
    verdict: str
    cpu_us: float | None = None
    cold_us: float | None = None
    fate: Fate = Fate.UNTRIED


class Rejection(msgspec.Struct, frozen=True):
    """Why a device does not run an operation, or the whole model (operation -1)."""

    device: str
    operation: int
    reason: str

    def __str__(self) -> str:
        where = "" if self.operation < 0 else f"operation {self.operation}: "
        return f"{self.device}: {where}{self.reason}"


class Fallback(msgspec.Struct, frozen=True):
    """Work of a device that the reference did, since the device failed.

    `kind` is "prepare" where the device could not prepare the model, "partial" where the reference
    ran what the device is there for, "full" where it ran the whole model in place of all devices.
    `reason` is the first failure of its sort, `count` how often it happened.
    """

    device: str
    operations: tuple[int, ...]
    kind: str
    reason: str
    count: int


class Report(msgspec.Struct, frozen=True):
    """How a compilation came out, and what fell back since."""

    partitions: tuple[Partition, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    cache_hit: bool = False
    cache_reason: str = ""
    pin: str = ""
    fallbacks: tuple[Fallback, ...] = ()

    def __str__(self) -> str:
        return _report_text(self)

    def __repr__(self) -> str:
        """Say where the model runs; `str` tells all of it."""
        chosen = [each for each in self.candidates if each.fate is Fate.CHOSEN]
        ways = ", ".join(each.lowering for each in chosen if each.lowering)
        way = f" ({ways})" if ways else ""
        considered = f"{len(self.candidates)} considered, {len(self.rejections)} rejections"
        return f"<Report: runs on {devices_of(self) or 'nothing'}{way}; {considered}>"

    def _repr_html_(self) -> str:
        """Return all of it as tables, for notebooks."""
        return _report_html(self)


def devices_of(report: Report) -> str:
    """Returns the names of the devices that run the model, joined by "+", in their order."""
    return "+".join(dict.fromkeys(partition.device for partition in report.partitions))


def _none() -> tuple[Fallback, ...]:
    return ()


class Better(msgspec.Struct, frozen=True):
    """Describes what runs a model after a better plan has taken over; fields as in Compilation."""

    model: Model
    report: Report
    run_ns: float | None


class Compilation(msgspec.Struct, frozen=True):
    """A model that is prepared on a device.

    `later`, if there is one, brings the best plan in while the first is in use, and tells of it.
    `fallbacks` tells what fell back so far. `run_ns` is how long a run took when the devices
    competed, None where they did not.
    """

    model: Model
    prepared: PreparedModel
    device: Device
    report: Report
    later: Callable[[], Awaitable[Better]] | None = None
    fallbacks: Callable[[], tuple[Fallback, ...]] = _none
    run_ns: float | None = None


def _report_html(report: Report) -> str:
    """Returns all of a report but the pin as HTML, without a limit of lines."""
    parts = [html_table(_PARTS, list(_partitions(report.partitions)), "Runs on")]
    if report.candidates:
        parts.append(html_table(_CANDIDATES, _candidates(report.candidates), "Considered"))
    parts.append(html_lines("Not taken:", [str(each) for each in report.rejections]))
    parts.append(html_lines("Fell back:", _fallbacks(report.fallbacks)))
    cache = "hit" if report.cache_hit else report.cache_reason
    return "".join([*parts, html_lines("Cache:", [cache])])


_PARTS = ("runs on", "operations", "why")
_CANDIDATES = ("considered", "in which way", "median", "cold", "agreement", "verdict")


def _report_text(report: Report) -> str:
    """Returns all of a report as text but the pin, which is for programs."""
    parts = [_table(_PARTS, list(_partitions(report.partitions)))]
    if report.candidates:
        parts.append(candidates_text(report.candidates))
    if report.rejections:
        parts.append(rejections_text(report.rejections))
    if report.fallbacks:
        lines = [f"  {line}" for line in _fallbacks(report.fallbacks)]
        parts.append("\n".join(["fell back:", *lines]))
    parts.append(f"cache: {'hit' if report.cache_hit else report.cache_reason}")
    return "\n\n".join(parts)


def _fallbacks(fallbacks: Sequence[Fallback]) -> list[str]:
    return [
        f"{each.device}: {each.kind}, {each.count} times, first: {each.reason}"
        for each in fallbacks
    ]


def candidates_text(candidates: Sequence[Candidate]) -> str:
    """Returns a table of the candidates: medians, agreement with the reference, verdicts."""
    return _table(_CANDIDATES, _candidates(candidates))


def _candidates(candidates: Sequence[Candidate]) -> list[tuple[str, ...]]:
    return [
        (
            each.device,
            each.lowering,
            "" if each.median_us is None else f"{each.median_us:.1f} us",
            "" if each.cold_us is None else f"{each.cold_us:.1f} us",
            each.agreement,
            each.verdict,
        )
        for each in candidates
    ]


def rejections_text(rejections: Sequence[Rejection]) -> str:
    """Returns the rejections as text, with operations of the same reason in one line."""
    groups: dict[tuple[str, str], list[int]] = {}
    for each in rejections:
        groups.setdefault((each.device, each.reason), []).append(each.operation)
    lines = []
    for (device, reason), operations in groups.items():
        named = ranges(n for n in operations if n >= 0)
        plural = "s" if len(operations) > 1 else ""
        lines.append(f"  {device}: {f'operation{plural} {named}: ' if named else ''}{reason}")
    return "\n".join(["not taken:", *_limited(lines)])


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in words such as "0..4, 7"."""
    ordered = sorted(set(numbers))
    parts = []
    for _, group in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}")
    return ", ".join(parts)


def _partitions(
    partitions: Sequence[Partition], indent: str = ""
) -> Iterator[tuple[str, str, str]]:
    for each in partitions:
        yield f"{indent}{each.device}", ranges(each.operations), each.reason
        for body in each.bodies:
            yield from _partitions(body, f"{indent}  ")


def _limited(lines: Sequence[str]) -> list[str]:
    left = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], *([f"  ... and {left} more"] if left > 0 else [])]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    shown = rows[:_MOST_LINES]
    widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (heads, ["-" * width for width in widths], *shown)
    ]
    left = len(rows) - len(shown)
    return "\n".join([*lines, *([f"... and {left} more"] if left else [])])
