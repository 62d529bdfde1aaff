"""What is printed of a suite's result."""

from __future__ import annotations

from nnasync.cli.text import table
from nnasync.suites import SuiteComparison, SuiteResult, Trend, compare_suites


def told(result: SuiteResult, old: SuiteResult | None = None) -> str:
    """The rows of a result as a table, and whether it was ended before its time."""
    rows = [
        [row.subject, row.device, row.standing.value, f"{row.seconds:.1f}", row.text]
        for row in result.rows
    ]
    lines = [table(["subject", "device", "standing", "s", ""], rows)]
    if result.is_partial:
        lines.append("ended before its time: rows are missing")
    if old is not None:
        lines += ["", *_compared(compare_suites(old, result))]
    return "\n".join(lines)


def _compared(found: SuiteComparison) -> list[str]:
    lines = [found.summary]
    for what, entries in (("machine", found.machine), ("versions", found.versions)):
        differing = ", ".join(
            f"{key}: {a or 'none'} -> {b or 'none'}" for key, (a, b) in entries.items()
        )
        lines += [f"other {what} than before: {differing}"] if differing else []
    lines += [
        f"{row.subject} on {row.device}: {before.standing.value} -> {row.standing.value}"
        for before, row in found.standings
    ]
    lines += [
        f"{trend.value}: {each.subject} on {each.device}: {each.after.name} "
        f"{each.before.value:.5g} -> {each.after.value:.5g} {each.after.unit}".rstrip()
        for trend in (Trend.WORSE, Trend.BETTER)
        for each in found.of(trend)
    ]
    return lines
