"""What the benchmarks share: arguments, interleaved rounds, foreign load, tables."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnasync import CompileOptions

__all__ = [
    "BEST",
    "arguments",
    "cores",
    "foreign_load",
    "interleave",
    "models_folder",
    "percentile",
    "publish",
    "table",
]

ROOT = Path(__file__).resolve().parent.parent

BEST = CompileOptions(wait="best")
"""What is measured is what a contest chose, not who answers first."""

BUSY = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end:\n    pass\n"


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="each round runs every contestant (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


def models_folder(chosen: Path | None) -> Path:
    """Folder of the reference models: the argument, $NNASYNC_MODELS, or ../shared/models."""
    default = os.environ.get("NNASYNC_MODELS") or ROOT.parent / "shared" / "models"
    folder = chosen or Path(default)
    if not folder.is_dir():
        sys.exit(f"no folder {folder}: name one with --models or $NNASYNC_MODELS")
    return folder


def cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


async def interleave(
    contestants: Mapping[str, Callable[[], Awaitable[float]]], rounds: int
) -> dict[str, list[float]]:
    """Results of each contestant, one a round; the order turns by one place each round."""
    names = list(contestants)
    results: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            results[name].append(await contestants[name]())
    return results


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextlib.contextmanager
def foreign_load(processes: int, seconds: float) -> Iterator[None]:
    """Busy processes beside us; each ends by itself after `seconds` at the latest."""
    code = BUSY.format(seconds)
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    if running:
        time.sleep(0.1)
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait()


def spread(values: Sequence[float]) -> str:
    """Median and, in brackets, the quartiles."""
    quarter, half, three = (percentile(values, share) for share in (0.25, 0.5, 0.75))
    return f"{half:.1f} ({quarter:.1f}-{three:.1f})"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def publish(title: str, text: str, figures: Mapping[str, Any], path: Path | None) -> None:
    """Print the tables; write the figures as JSON if a path is given."""
    print(f"{title} (Python {platform.python_version()}, {len(cores())} cores)\n\n{text}")
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
