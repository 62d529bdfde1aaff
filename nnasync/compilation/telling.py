"""A report as text: where a model runs, what was considered, what was refused, what fell back."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnasync.compilation.report import Candidate, Partition, Rejection, Report

__all__ = ["candidates_text", "ranges", "rejections_text", "report_text"]

_MOST_LINES = 40
"""Most lines of one part; the report itself has them all."""


def report_text(report: Report) -> str:
    """All of a report but the pin, which is for programs."""
    heads = ("runs on", "operations", "why")
    parts = [_table(heads, list(_partitions(report.partitions)))]
    if report.candidates:
        parts.append(candidates_text(report.candidates))
    if report.rejections:
        parts.append(rejections_text(report.rejections))
    if report.fallbacks:
        lines = [
            f"  {each.device}: {each.kind}, {each.count} times, first: {each.reason}"
            for each in report.fallbacks
        ]
        parts.append("\n".join(["fell back:", *lines]))
    parts.append(f"cache: {'hit' if report.cache_hit else report.cache_reason}")
    return "\n\n".join(parts)


def candidates_text(candidates: Sequence[Candidate]) -> str:
    """What was considered: medians, agreement with the reference, verdicts."""
    heads = ("considered", "in which way", "median", "cold", "agreement", "verdict")
    rows = [
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
    return _table(heads, rows)


def rejections_text(rejections: Sequence[Rejection]) -> str:
    """What was refused, operations with the same reason in one line."""
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
