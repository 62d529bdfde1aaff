"""Write the table of operators in docs/onnx.md: every operator of ONNX, and how its tests run.

`python -m scripts.onnx_doc` writes it, `--check` says whether it is current. Both run all of ONNX's
own tests, which takes a minute.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.onnx_nodes import Outcome, families, outcomes

__all__ = ["PATH", "main", "page", "rows"]

PATH = Path(__file__).resolve().parent.parent / "docs" / "onnx.md"

_MARK = "<!-- The table is written by `python -m scripts.onnx_doc`. -->\n"
_HEAD = (
    "| operator | tests | translated | whole | types | becomes | otherwise |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)
_TRANSLATED = ("translated", "frozen")
_MOST_SHOWN = 6
_LONGEST = 90


def page(folder: Path) -> str:
    """The page with the table as it should be; `folder` is for files."""
    head = PATH.read_text(encoding="utf-8").partition(_MARK)[0]
    lines = sorted(row for family in families() for row in rows(outcomes(family, folder)))
    return f"{head}{_MARK}\n{_HEAD}{''.join(lines)}"


def rows(found: Sequence[Outcome]) -> Iterator[str]:
    """The rows of the operators of a family."""
    for operator in dict.fromkeys(outcome.operator for outcome in found):
        yield _row(operator, [outcome for outcome in found if outcome.operator == operator])


def _row(operator: str, found: Sequence[Outcome]) -> str:
    done = [outcome for outcome in found if outcome.way in _TRANSLATED]
    whole = [outcome for outcome in found if outcome.way == "whole"]
    types = ", ".join(sorted({outcome.type for outcome in done if outcome.type}))
    cells = (operator, len(found), len(done) or "", len(whole) or "", types)
    told = " | ".join(str(cell) for cell in cells)
    return f"| {told} | {_operations(done)} | {_reasons(found)} |\n"


def _operations(done: Sequence[Outcome]) -> str:
    """The operations of the simplest test; none where the result is known before the run."""
    lists = [outcome.operations for outcome in done if outcome.operations]
    shortest = min(lists, key=lambda names: (len(names), names), default=())
    shown = ", ".join(shortest[:_MOST_SHOWN])
    return f"{shown} ..." if len(shortest) > _MOST_SHOWN else shown


def _reasons(found: Sequence[Outcome]) -> str:
    """Why tests were not translated, or are refused: the first reason of each."""
    told = []
    for way in ("whole", "refused"):
        reasons = [_short(outcome.reason) for outcome in found if outcome.way == way]
        if reasons:
            count = f"{len(reasons)} refused: " if way == "refused" else ""
            told.append(count + min(reasons, key=lambda reason: (-reasons.count(reason), reason)))
    return "; ".join(told)


def _short(reason: str) -> str:
    """A reason without places and names of values."""
    reason = re.sub(r"^.*?\.onnx: ", "", reason)
    reason = re.sub(r"^node \d+ \((.*?)\): ", r"\1 ", reason)
    reason = re.sub(r"^ONNX Runtime refuses .*?(Could|Type Error)", r"ONNX Runtime: \1", reason)
    reason = reason.partition(" node with name")[0]
    reason = re.sub(r", first node \d+", "", reason.partition("; ")[0])
    reason = re.sub(r"/\S+: ?", "", reason).replace("|", "/").strip()
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} ..."


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it; the exit code is 1 if it is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        text = page(Path(folder))
    if arguments.check:
        return int(PATH.read_text(encoding="utf-8") != text)
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
