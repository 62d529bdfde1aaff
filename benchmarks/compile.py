"""Compile: how long until the first answer of a model, beside the engines alone with the same file.

Every figure is of a fresh process, in turn with the others. nnasync starts with nothing known, with
a verdict of an earlier contest, and with a cache of compilations; each engine loads the file itself
and answers once. Times count from the moment when numpy and asyncio are imported.
*Start* of nnasync includes its own import and the opening of a runtime, *load* does not; the engine
that answers is imported in both, as it is where it runs alone. *Again* is what an application pays
that runs already: the engine loads the file a second time, a runtime that has compiled before
compiles it once more with nothing known; both after a rest of 0.3 seconds. To let go of what was
loaded counts nowhere. Beside the first compilation a 1 ms ticker looks how late the loop is until
the best plan runs; the processor time of the contest is that of its process. An engine that does
not run a model is left out there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._first_answer import CACHE, ENGINES, NEW, OURS, SUFFIXES, VERDICT, Figures
from benchmarks._report import arguments, models_folder, publish, table

TIMEOUT_S = 300
ASKED = 1.5
KEYS = ("start_ms", "load_ms", "again_ms")


def measured(**task: Any) -> Figures | None:
    """Returns the figures of a fresh process; None where it failed."""
    command = [sys.executable, "-m", "benchmarks._first_answer", json.dumps(task)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    ran = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        env=environment,
    )
    if ran.returncode:
        return None
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def of_model(path: Path, options: argparse.Namespace) -> dict[str, list[Figures]]:
    """Returns all figures of a model, measured in turns."""
    rounds, only = options.rounds, options.only
    whos = [*OURS, *(name for name, (_, suffixes) in ENGINES.items() if path.suffix in suffixes)]
    whos = [who for who in whos if not only or who in only]
    found: dict[str, list[Figures]] = {who: [] for who in whos}
    if not whos:
        return found
    with tempfile.TemporaryDirectory() as folder:
        places = {"state": f"{folder}/state", "cache": f"{folder}/cache"}
        devices = options.devices
        os.mkdir(places["cache"], 0o700)
        if {VERDICT, CACHE} & set(whos):
            measured(who="prepare", path=str(path), devices=devices, **places)
        for number in range(rounds):
            for who in [*whos[number % len(whos) :], *whos[: number % len(whos)]]:
                figures = measured(who=who, path=str(path), devices=devices, **places)
                if figures is not None:
                    found[who].append(figures)
    return found


def middle(found: Sequence[Figures], key: str) -> tuple[float, float, float]:
    """Returns lower quartile, median and upper quartile."""
    values = sorted(each[key] for each in found if key in each)
    if not values:
        return (float("nan"),) * 3
    return values[len(values) // 4], statistics.median(values), values[len(values) * 3 // 4]


def row(model: str, who: str, figures: Sequence[Figures], fastest: Figures) -> list[str]:
    """Returns one line of the table."""
    if not figures:
        return [model, who, "does not run it"]
    cells = [model, who]
    for key in KEYS:
        low, median, high = middle(figures, key)
        if math.isnan(median):
            cells += ["", ""]
            continue
        cells += [f"{median:.1f} ({low:.1f}..{high:.1f})", f"{median / fastest[key]:.2f}"]
    if who == NEW:
        keys = ("best_ms", "own_cpu_ms", "contest_cpu_ms", "worst_tick_ms")
        cells += [f"{middle(figures, key)[1]:.0f}" for key in keys]
    return cells


def report(options: argparse.Namespace) -> None:
    """Measure every model and print the table."""
    paths = options.model
    if not paths:
        folder = models_folder(options.models)
        paths = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    rows, every = [], {}
    heads = ["model", "who", "start ms", "ratio", "load ms", "ratio", "again ms", "ratio"]
    heads += ["best after ms", "cpu for it ms", "contest cpu ms", "worst tick ms"]
    for path in paths:
        every[path.name] = found = of_model(path, options)
        fastest = {
            key: min((middle(found[who], key)[1] for who in ENGINES if found.get(who)), default=1.0)
            for key in KEYS
        }
        for who, figures in found.items():
            cells = row(path.name, who, figures, fastest)
            rows.append(cells + [""] * (len(heads) - len(cells)))
    title = f"First answers; asked: at most {ASKED} times the fastest engine alone"
    publish(title, table(heads, rows), every, options)


def model_file(text: str) -> Path:
    """Returns the path of a model that exists; raises ArgumentTypeError otherwise."""
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text} is no {' or '.join(SUFFIXES)} file")
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--models", type=Path, help="folder of models (the reference models)")
    parser.add_argument("--model", type=model_file, nargs="+", help="these files only")
    parser.add_argument("--devices", nargs="+", help="of nnasync (all that are installed)")
    whos = [*OURS, *ENGINES]
    parser.add_argument("--only", nargs="+", default=[], choices=whos, help="these contestants")
    report(parser.parse_args())


if __name__ == "__main__":
    main()
