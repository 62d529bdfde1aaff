"""Kills: a service that is killed at random moments under load, and what its clients see.

`tests/service/siege.py` says what runs meanwhile, and what is counted. Measured are the time from a
kill to the last answer of what was pending, and to the first success of a network that was called
all along (`Options(revive=True)`). A compilation that had not reached the process yet goes on with
the next one: those are counted beside.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

import nnasync as nn
from benchmarks._report import percentile, publish, table
from tests.service.siege import Outcome, besiege


def report(outcome: Outcome, path: Path | None) -> None:
    """Print the tables."""
    rows = [
        [name, *(f"{percentile(values, share):.1f}" for share in (0.5, 0.99)), f"{max(values):.1f}"]
        for name, values in (
            ("kill to the last answer, ms", outcome.answered_ms),
            ("kill to the next success, ms", outcome.back_ms),
        )
        if values
    ]
    counts = [
        ["kills", str(outcome.kills)],
        ["calls that were pending", str(outcome.pending.total())],
        *([f"  {kind}", str(count)] for kind, count in sorted(outcome.pending.items())),
        ["  went on with the next process", str(outcome.went_on)],
        ["  never answered", str(outcome.unanswered)],
        ["answered twice, or by another error", str(len(outcome.wrong))],
        ["never served again", str(outcome.kills - len(outcome.back_ms))],
        ["descriptors left", str(outcome.left.descriptors)],
        ["mappings of shared memory left", str(outcome.left.shared)],
        ["processes left", str(outcome.left.children)],
    ]
    text = table(["", "median", "99 %", "worst"], rows) + "\n\n" + table(["", "count"], counts)
    if outcome.wrong:
        text += "\n\n" + "\n".join(outcome.wrong[:20])
    publish("Kills of a service under load", text, msgspec.to_builtins(outcome), path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=500, help="how many (%(default)s)")
    parser.add_argument("--device", default="nnasync-reference", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()

    def said(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    async def measure() -> None:
        report(
            await besiege(options.device, options.kills, seed=options.seed, said=said),
            options.json,
        )

    nn.run(measure)


if __name__ == "__main__":
    main()
