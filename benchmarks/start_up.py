"""Start-up: what `import nnasync` adds to `import numpy`, and how soon `nnasync devices` answers.

Each figure is the wall time of a fresh process, the contestants in turn, medians.
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
    "import nnasync": ["-c", "import nnasync"],
    "nnasync devices": ["-m", "nnasync", "devices"],
}


def contestant(command: list[str]) -> Callable[[], Awaitable[float]]:
    """Milliseconds that one fresh process takes."""

    async def run() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
        return (time.perf_counter() - started) * 1e3

    return run


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=15).parse_args()
    contestants = {name: contestant(command) for name, command in COMMANDS.items()}
    for command in COMMANDS.values():  # compiled modules are cached before anything counts
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    results = asyncio.run(interleave(contestants, options.rounds))
    added = median(results["import nnasync"]) - median(results["import numpy"])
    rows = [[name, spread(values)] for name, values in results.items()]
    ratio = median(results["import nnasync"]) / median(results["import numpy"])
    text = table(["fresh process", "ms, median (quartiles)"], rows)
    text += f"\n\nimport nnasync adds {added:.0f} ms to import numpy ({ratio:.2f} times as long)"
    figures = {"added_ms": added, "ratio": ratio, "milliseconds": results}
    publish("Start-up", text, figures, options.json)


if __name__ == "__main__":
    main()
