"""Plays many seeds of the simulation, with a command of its own.

    make simulate                                          10,000 seeds
    python -m tests.simulation.play --seeds 500:1500       those
    python -m tests.simulation.play --seeds 4711:4712      one of them

Half of the processors' time is that of starting threads, so there is a process per core. The exit
status is 1 if there are findings; each is a line with its seed, which says the same again.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
from collections.abc import Sequence

from tests.simulation import calls, deaths

MOST = 10_000


def found_by(seed: int) -> str | None:
    """What both scenarios find with a seed, None for nothing."""
    verdict = calls.simulate(seed)
    found = [f"calls: {verdict.finding}" if verdict.finding else None]
    of_deaths = deaths.simulate(seed)
    found.append(f"deaths: {of_deaths}" if of_deaths else None)
    return "; ".join(filter(None, found)) or None


def _of(seed: int) -> tuple[int, str | None]:
    return seed, found_by(seed)


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    return range(int(first), int(end)) if end else range(int(first))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds and print what they find."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=_range, default=range(MOST), help="END or FIRST:END")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args(arguments)
    count: collections.Counter[bool] = collections.Counter()
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool:
        for seed, found in pool.imap_unordered(_of, asked.seeds, chunksize=10):
            count[found is None] += 1
            if found is not None:
                print(f"seed {seed}: {found}", flush=True)
    print(f"{count[True]} seeds are clean, {count[False]} are not")
    return 1 if count[False] else 0


if __name__ == "__main__":
    raise SystemExit(main())
