"""`nnasync experiment`: policies and loads from a file, simulated or for real, as a report."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread

from nnasync import run
from nnasync.cli.argument_types import positive
from nnasync.cli.experiment.told import comparison_table, figures_table
from nnasync.cli.experiment.watch import watch
from nnasync.cli.interruption import interruptible
from nnasync.cli.text import HelpFormatter
from nnasync.errors import InvalidArgument
from nnasync.experiments import (
    Experiment,
    Results,
    compare,
    read_experiment,
    read_results,
    write_report,
)
from nnasync.experiments import run as run_experiment
from nnasync.machine import cores_allowed

__all__ = ["add_parser"]

_EXAMPLES = """examples:
  nnasync experiment run examples/experiments/wake_word.toml
  nnasync experiment run bursts.toml --simulate --jobs 2 --out results/bursts
  nnasync experiment run bursts.toml --both --only load=0.5,0.9 --only policy=edf
  nnasync experiment report results/bursts
  nnasync experiment compare results/bursts results/bursts-again
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "experiment",
        help="ask what if: another policy, another load, more cores",
        description="Run the streams of a file under scheduling policies, in virtual time, on "
        "this machine, or both, and write figures, pictures and a report of it. What files say is "
        "in docs/experiments.md.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parts = parser.add_subparsers(title="parts", metavar="PART", required=True)
    _add_run(parts)
    report = parts.add_parser(
        "report",
        help="write the report of results again",
        description="Write the report, and its pictures, of results that `nnasync experiment run` "
        "left in a folder.",
    )
    report.add_argument("results", type=Path, metavar="RESULTS", help="folder of results")
    _add_pictures(report)
    report.set_defaults(command=_report)
    both = parts.add_parser(
        "compare",
        help="tell what two results differ in",
        description="Compare two results of the same experiment, point by point and stream by "
        "stream, and tell what is clearly larger or smaller in the second.",
    )
    both.add_argument("before", type=Path, metavar="BEFORE", help="folder of results")
    both.add_argument("after", type=Path, metavar="AFTER", help="folder of other results")
    both.add_argument("--all", action="store_true", help="tell what is not clear, too")
    both.set_defaults(command=_compare)


def _add_run(parts: Any) -> None:
    parser = parts.add_parser(
        "run",
        help="run the experiment of a file",
        description="Run each point of the sweep of an experiment, print its figures, and write "
        "results.json, results.csv, report.html and pictures into a folder.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="TOML file of the experiment")
    how = parser.add_mutually_exclusive_group()
    for name, text in (
        ("simulate", "in virtual time (what is done without these)"),
        ("real", "on this machine, in real time"),
        ("both", "simulate, run for real, and tell how far apart they are"),
    ):
        how.add_argument(f"--{name}", dest="how", action="store_const", const=name, help=text)
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes that simulate (one for each core)"
    )
    parser.add_argument(
        "--only",
        type=_chosen,
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="of a key of the sweep these values alone, such as load=0.5,0.9 (may be repeated)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the results (nnasync-NAME)"
    )
    _add_pictures(parser)
    parser.set_defaults(command=_run, how="simulate")


def _add_pictures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-pictures",
        dest="pictures",
        action="store_false",
        help="no PNGs, which a headless Chromium takes",
    )


def _chosen(text: str) -> tuple[str, list[str]]:
    """A key of a sweep and values of it, as `--only` has them."""
    key, sign, values = text.partition("=")
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not (key.strip() and sign and words):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE or KEY=VALUE,VALUE")
    return key.strip(), words


def _run(arguments: argparse.Namespace) -> int:
    wanted: dict[str, list[str]] = {}
    for key, words in arguments.only:
        wanted.setdefault(key, []).extend(words)
    experiment = read_experiment(arguments.file).only(wanted)
    return run(_run_and_tell, experiment, arguments)


async def _run_and_tell(experiment: Experiment, arguments: argparse.Namespace) -> int:
    jobs = arguments.jobs or cores_allowed()
    folder = arguments.out or Path(f"nnasync-{experiment.name}")
    # Now, and not after runs that take minutes.
    await anyio.to_thread.run_sync(functools.partial(folder.mkdir, parents=True, exist_ok=True))
    kept: list[Results] = []
    error: Exception | None = None
    async with interruptible() as interruption:
        with watch(experiment) as on_run:
            try:
                results = await run_experiment(
                    experiment, arguments.how, jobs=jobs, on_run=on_run, on_partial=kept.append
                )
                kept.append(results)
            except Exception as raised:
                error = raised
    if not kept and interruption.signal:
        print("nnasync: ended before the first run, there are no results", file=sys.stderr)
    for results in kept:
        print(figures_table(results))
        await anyio.to_thread.run_sync(results.save, folder)
        await anyio.to_thread.run_sync(_write, results, folder, arguments.pictures)
    if error is not None:
        raise error
    return interruption.exit_code


def _report(arguments: argparse.Namespace) -> int:
    results = read_results(arguments.results)
    folder = arguments.results if arguments.results.is_dir() else arguments.results.parent
    _write(results, folder, arguments.pictures)
    return 0


def _write(results: Results, folder: Path, pictures: bool) -> None:
    written = write_report(results, folder, pictures=pictures)
    print(f"\n{written.page}")
    if written.pictures:
        print(", ".join(path.name for path in written.pictures))
    if written.no_pictures:
        print(f"no pictures: {written.no_pictures}")


def _compare(arguments: argparse.Namespace) -> int:
    found = compare(read_results(arguments.before), read_results(arguments.after))
    if not found.changes:
        raise InvalidArgument(
            f"{arguments.before} and {arguments.after} have no stream at a point of the sweep and "
            "kind of run in common"
        )
    print(comparison_table(found, all_of_them=arguments.all))
    return 0
