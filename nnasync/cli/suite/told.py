"""What is printed of a suite's result."""

from __future__ import annotations

from nnasync.cli.text import table
from nnasync.suites import SuiteResult


def told(result: SuiteResult, old: SuiteResult | None = None) -> str:
    """The rows of a result as a table, and whether it was ended before its time."""
    rows = [
        [row.subject, row.device, row.standing.value, f"{row.seconds:.1f}", row.text]
        for row in result.rows
    ]
    lines = [table(["subject", "device", "standing", "s", ""], rows)]
    if result.is_partial:
        lines.append("ended before its time: rows are missing")
    return "\n".join(lines)
