"""`nnasync suite report`: the result of a suite that ran before, as a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nnasync.cli.text import table
from nnasync.suites import Standing, SuiteResult, read_suite

__all__ = ["add_part", "told"]


def add_part(parts: Any) -> None:
    """Add this part to the command."""
    parser = parts.add_parser("report", help="show what a suite found out")
    parser.add_argument("result", type=Path, metavar="FILE.json", help="result of a suite")
    parser.set_defaults(command=_command)


def told(result: SuiteResult) -> str:
    """The rows of a result as a table, and whether it was ended before its time."""
    rows = [
        [row.subject, row.device, row.standing.value, f"{row.seconds:.1f}", row.text]
        for row in result.rows
    ]
    lines = [table(["subject", "device", "standing", "s", ""], rows)]
    if result.is_partial:
        lines.append("ended before its time: rows are missing")
    return "\n".join(lines)


def _command(arguments: argparse.Namespace) -> int:
    result = read_suite(arguments.result)
    print(told(result))
    return int(result.standing not in (Standing.SUCCESS, Standing.SKIPPED))
