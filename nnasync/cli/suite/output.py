"""What all suites have in common on the command line: where results go, and Ctrl-C.

A suite is a coroutine that adds rows to a `Gathering`. Whatever ends it, what it found until then
is told and written, and says so where rows are missing. What cannot be written is told before the
suite runs where that can be known, and one file that cannot be written keeps no other from it.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from nnasync import run
from nnasync.cli.interruption import interruptible
from nnasync.cli.suite.told import told
from nnasync.cli.watching import watching
from nnasync.errors import InvalidArgument
from nnasync.suites import (
    Gathering,
    Standing,
    SuiteResult,
    read_suite,
    write_junit,
    write_page,
    write_suite,
)

__all__ = ["SuiteOutput", "add_output_options", "open_output", "run_suite", "write_output"]

Work = Callable[[Gathering], Awaitable[None]]


class SuiteOutput(msgspec.Struct, frozen=True):
    """Where a result goes, and the older one that it is compared with."""

    json: Path | None = None
    html: Path | None = None
    junit: Path | None = None
    old: SuiteResult | None = None


def add_output_options(parser: argparse.ArgumentParser, *, is_report: bool = False) -> None:
    """Add the options of the results; a report of a file writes no JSON again."""
    group: Any = parser.add_argument_group("results")
    if not is_report:
        group.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    group.add_argument(
        "--html", type=Path, metavar="FILE", help="write it as a page, which needs no other file"
    )
    group.add_argument(
        "--junit", type=Path, metavar="FILE", help="write it as JUnit XML, which CI systems read"
    )
    group.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="tell what got better or worse since an older result",
    )


def open_output(suite: str, arguments: argparse.Namespace) -> SuiteOutput:
    """The output that options ask for.

    Raises InvalidArgument if a file could not be written where it is to be, or the older result is
    none of this suite; OSError if that cannot be read.
    """
    files = {name: getattr(arguments, name, None) for name in ("json", "html", "junit")}
    asked = {name: path for name, path in files.items() if path is not None}
    for name, path in asked.items():
        _check_place(f"--{name}", path)
    if len({path.resolve() for path in asked.values()}) < len(asked):
        options = ", ".join(f"--{name}" for name in asked)
        raise InvalidArgument(f"{options}: two of these name the same file")
    old = None if arguments.compare is None else read_suite(arguments.compare)
    if old is not None and old.suite != suite:
        raise InvalidArgument(
            f"--compare {arguments.compare} is a result of the suite {old.suite}, not of {suite}"
        )
    return SuiteOutput(**asked, old=old)


def run_suite(suite: str, arguments: argparse.Namespace, work: Work) -> int:
    """Run a suite, tell and write what it found, and return the exit code of its command.

    Errors of `work` are raised when that is done. The code is that of the signal that ended it, 1
    if a row is worse than skipped, else 0.
    """
    output = open_output(suite, arguments)
    return run(_gather, Gathering(suite, _command_of(arguments)), output, work)


async def _gather(gathering: Gathering, output: SuiteOutput, work: Work) -> int:
    error: Exception | None = None
    async with interruptible() as interruption:
        with watching(f"nnasync {gathering.suite}", "rows") as watcher:
            gathering.on_step = lambda text: watcher(len(gathering.rows), gathering.expected, text)
            try:
                await work(gathering)
            except Exception as raised:
                error = raised
    is_partial = error is not None or interruption.signal is not None
    result = gathering.result(is_partial=is_partial)
    if error is None or result.rows:
        print(told(result, output.old))
        await anyio.to_thread.run_sync(write_output, result, output)
    if error is not None:
        raise error
    return interruption.exit_code or exit_code(result)


def write_output(result: SuiteResult, output: SuiteOutput) -> None:
    """Write all files that are asked for, also if one cannot be; raises OSError for that then."""
    ways: tuple[tuple[Path | None, Callable[[Path], None]], ...] = (
        (output.json, lambda path: write_suite(path, result)),
        (output.html, lambda path: write_page(result, path, output.old)),
        (output.junit, lambda path: write_junit(result, path)),
    )
    errors: list[OSError] = []
    for path, write in ways:
        try:
            if path is not None:
                write(path)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def exit_code(result: SuiteResult) -> int:
    """0 if nothing was worse than skipped."""
    return int(result.standing not in (Standing.SUCCESS, Standing.SKIPPED))


def _check_place(option: str, path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InvalidArgument(f"{option} {path}: there is no folder {folder}")
    if path.is_dir():
        raise InvalidArgument(f"{option} {path} is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise InvalidArgument(f"{option} {path}: the folder {folder} may not be written to")


def _command_of(arguments: argparse.Namespace) -> str:
    return shlex.join(["nnasync", *arguments.words])
