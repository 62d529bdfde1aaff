"""`nnasync trace FILE`: where the time of a trace went, by layer and phase, and by network."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnasync.cli.text import HelpFormatter, json_text, milliseconds, table
from nnasync.cli.trace_file import read, spans_of
from nnasync.hal import Struct

_EXAMPLES = """examples:
  nnasync run model.tflite --repeat 100 --trace trace.json
  nnasync trace trace.json
  nnasync trace trace.json --json
"""


class Row(Struct):
    """Durations, in nanoseconds, of all spans of one kind."""

    name: str
    count: int
    total_ns: float
    median_ns: float
    longest_ns: float


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "trace",
        help="sum up a trace",
        description="Sum up a trace that `nnasync run --trace FILE` wrote: durations by layer and "
        "phase, of runs by network, and of times in the queue. To look at it, open the file at "
        "https://ui.perfetto.dev.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="a trace")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    spans = list(spans_of(read(arguments.file)))
    parts = {
        "layers and phases": _rows((cat.replace(",", ", "), ns) for _, cat, ns in spans),
        "runs": _rows((name, ns) for name, cat, ns in spans if cat == "driver,execution"),
        "queues": _rows((name, ns) for name, _, ns in spans if name.startswith("queue ")),
    }
    if arguments.json:
        print(json_text(parts))
    else:
        print("\n\n".join(_table(head, rows) for head, rows in parts.items() if rows))
    return 0


def _rows(spans: Iterable[tuple[str, float]]) -> list[Row]:
    kinds: dict[str, list[float]] = defaultdict(list)
    for name, ns in spans:
        kinds[name].append(ns)
    rows = [
        Row(name, len(each), sum(each), float(np.median(each)), max(each))
        for name, each in kinds.items()
    ]
    return sorted(rows, key=lambda row: -row.total_ns)


def _table(head: str, rows: Sequence[Row]) -> str:
    cells = [
        (
            row.name,
            str(row.count),
            *map(milliseconds, (row.total_ns, row.median_ns, row.longest_ns)),
        )
        for row in rows
    ]
    return table((head, "count", "total", "median", "longest"), cells)
