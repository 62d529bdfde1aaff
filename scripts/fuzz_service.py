"""Hostile clients of a driver service, for as long as it is told: python -m scripts.fuzz_service.

Fails where anything but an error of the client's own comes of what it sends, where the service does
not answer, and where memory or descriptors grow.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from nnasync import run
from tests.service.fuzzing import fuzz

WARM_SHARE = 0.2
MOST_GROWTH_BYTES = 64 << 20
MOST_MORE_DESCRIPTORS = 64


class Progress:
    """Prints now and then, and keeps what was in use when all caches were warm, and at most."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._begun_s = self._told_s = time.monotonic()
        self.warm: tuple[int, int] | None = None
        self.now = (0, 0)
        self.most_bytes = 0

    def tell(self, sent: int, counts: Counter[str], resident: int) -> None:
        """Note where it stands."""
        self.now = (resident, len(os.listdir("/proc/self/fd")))
        self.most_bytes = max(self.most_bytes, resident)
        if self.warm is None and sent >= WARM_SHARE * self._count:
            self.warm = self.now
        now_s = time.monotonic()
        if now_s - self._told_s > 10:
            self._told_s = now_s
            rate = sent / (now_s - self._begun_s)
            print(
                f"{sent:,} sent ({rate:,.0f} a second), {counts['lives']:,} clients, "
                f"{counts['answers']:,} answers, {resident >> 20} MiB, {self.now[1]} descriptors",
                flush=True,
            )


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="fuzz_service", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000, help="and packets (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    progress = Progress(options.messages)
    with tempfile.TemporaryDirectory() as folder:
        work = functools.partial(fuzz, options.messages, options.seed, Path(folder), progress.tell)
        counts = run(work)
    for name, number in sorted(counts.items()):
        print(f"{number:>12,} {name}")
    warm = progress.warm or progress.now
    grown, opened = progress.now[0] - warm[0], progress.now[1] - warm[1]
    print(
        f"memory {warm[0] >> 20} -> {progress.now[0] >> 20} MiB, at most "
        f"{progress.most_bytes >> 20} MiB; descriptors {warm[1]} -> {progress.now[1]}"
    )
    return int(grown > MOST_GROWTH_BYTES or opened > MOST_MORE_DESCRIPTORS)


if __name__ == "__main__":
    sys.exit(main())
