"""What the benchmarks share: arguments, foreign load, tables, and one page of figures per machine.

With `--keep` the tables also go to docs/benchmarks, in place of those that the same benchmark put
there on the same machine: figures of two machines are never on one page.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._rounds import Results, interleave, paired_ratio, percentile
from nnasync import CompileOptions
from nnasync.machine import read_facts

__all__ = [
    "BEST",
    "Results",
    "arguments",
    "cores",
    "foreign_load",
    "interleave",
    "keep",
    "models_folder",
    "percentile",
    "publish",
    "relative",
    "table",
]

ROOT = Path(__file__).resolve().parent.parent

PAGES = ROOT / "docs" / "benchmarks"
_LIMIT = "ONEDNN_MAX_CPU_ISA"
_FAMILIES = {"amx_int8": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}

BEST = CompileOptions(wait="best")
"""What is measured is what a contest chose, not who answers first."""

BUSY = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end:\n    pass\n"


def arguments(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Returns a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="each round runs every contestant (%(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--keep", action="store_true", help="put the tables on this machine's page in docs"
    )
    return parser


def models_folder(chosen: Path | None) -> Path:
    """Returns the folder of reference models.

    The argument, $NNASYNC_MODELS, or ../shared/models.
    """
    default = os.environ.get("NNASYNC_MODELS") or ROOT.parent / "shared" / "models"
    folder = chosen or Path(default)
    if not folder.is_dir():
        sys.exit(f"no folder {folder}: name one with --models or $NNASYNC_MODELS")
    return folder


def cores() -> list[int]:
    """Returns the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextlib.contextmanager
def foreign_load(processes: int, seconds: float) -> Iterator[None]:
    """Keeps so many processes busy while the block runs.

    Each ends after `seconds` at the latest.
    """
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
    """Returns the median and, in brackets, the quartiles."""
    quarter, half, three = (percentile(values, share) for share in (0.25, 0.5, 0.75))
    return f"{half:.1f} ({quarter:.1f}-{three:.1f})"


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a text table: the first column is aligned to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def relative(results: Results, base: str, unit: str) -> str:
    """Returns a table with figures, processor time and the ratio to `base` of each contestant.

    Ratios are of rounds: the median, and the quartiles as its spread.
    """
    rows = []
    for name, values in results.items():
        half, quarter, three = paired_ratio(values, results[base])
        rows.append(
            [
                name,
                f"{percentile(values, 0.25):.1f}",
                spread(values),
                f"{1e3 * median(results.processor_s[name]):.1f}",
                f"{half:.2f} ({quarter:.2f}-{three:.2f})",
            ]
        )
    heads = [unit, "lower quartile", "median (quartiles)", "CPU ms a round", f"to {base}"]
    return f"{table(heads, rows)}\n\n{results.told()}"


def publish(
    title: str, text: str, figures: Mapping[str, Any], options: Any, *, folder: Path = PAGES
) -> None:
    """Print the tables; write the figures as JSON if a path is given; keep them if asked to.

    `options` are those of `arguments`.
    """
    print(f"{title} (Python {platform.python_version()}, {len(cores())} cores)\n\n{text}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if options.keep:
        keep(title, text, folder)


def keep(title: str, text: str, folder: Path = PAGES) -> None:
    """Puts the tables on the page of this machine, in place of earlier ones of the same title.

    Figures under a limit of the instructions that engines use are told apart.
    """
    facts = read_facts()
    if _LIMIT in os.environ:
        title = f"{title}, with {_LIMIT}={os.environ[_LIMIT]}"
    has = [name for flag, name in _FAMILIES.items() if flag in facts.flags]
    what = f"{facts.processor}, {len(cores())} cores, {has[0] if has else 'no AVX2'}"
    system = ".".join(map(str, facts.kernel))
    page = folder / f"{re.sub('[^a-z0-9]+', '-', what.lower()).strip('-')}.md"
    folder.mkdir(exist_ok=True)
    known = page.read_text(encoding="utf-8") if page.exists() else f"# {what}\n"
    head, *sections = re.split(r"^## ", known, flags=re.MULTILINE)
    others = [section for section in sections if not section.startswith(f"{title}\n")]
    mine = f"{title}\n\nLinux {system}, {facts.python}\n\n```text\n{text}\n```\n"
    parts = [head.rstrip() + "\n", *(f"\n## {each.rstrip()}\n" for each in sorted([*others, mine]))]
    page.write_text("".join(parts), encoding="utf-8")
