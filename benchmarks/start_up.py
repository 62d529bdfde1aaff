"""Start-up: what `import nnasync` adds to `import numpy`, and how soon `nnasync devices` answers.

Each figure is the wall time of a fresh process, the contestants in turn, medians. The names of
`nnasync` are loaded when first used, so there is also a row in which every one of them is. Compiled
modules are cached before anything counts, unless PYTHONDONTWRITEBYTECODE forbids it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

from benchmarks._report import arguments, interleave, median, publish, spread, table

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import numpy, nnasync": ["-c", "import numpy, nnasync"],
    "all names of nnasync": ["-c", "import numpy\nfrom nnasync import *"],
    "nnasync devices": ["-m", "nnasync", "devices"],
}


def contestant(command: list[str]) -> Callable[[], Awaitable[float]]:
    """Returns a contestant that gives the milliseconds of one fresh process."""

    async def run() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
        return (time.perf_counter() - started) * 1e3

    return run


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=15).parse_args()
    contestants = {name: contestant(command) for name, command in COMMANDS.items()}
    for command in COMMANDS.values():
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    results = asyncio.run(interleave(contestants, options.rounds))
    base = median(results["import numpy"])
    added = {
        name: median(results[name]) - base
        for name in ("import numpy, nnasync", "all names of nnasync")
    }
    rows = [[name, spread(values)] for name, values in results.items()]
    text = table(["fresh process", "ms, median (quartiles)"], rows)
    for name, added_ms in added.items():
        text += f"\n{name}: {added_ms:.0f} ms above import numpy"
    figures = {"added_ms": added, "milliseconds": results}
    publish("Start-up", text, figures, options)


if __name__ == "__main__":
    main()
