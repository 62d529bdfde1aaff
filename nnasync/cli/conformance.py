"""`nnasync conformance`: official or own cases against a device, or the direct tests of the HAL."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Sequence
from typing import Any

import anyio

from nnasync import Options, run
from nnasync.cli.argument_types import device, positive
from nnasync.cli.hal_suite import run_hal_suite
from nnasync.cli.interruption import interruptible
from nnasync.cli.progress import Progress
from nnasync.cli.text import HelpFormatter, json_text, table
from nnasync.conformance import OWN_CASES, CaseResult, Path, Plan, Report, Selection, driver_facts
from nnasync.conformance.parallel import run_parallel
from nnasync.conformance.result_counts import Counts, Failure
from nnasync.errors import InvalidArgument
from nnasync.hal import HalVersion

_EXAMPLES = """examples:
  nnasync conformance --device litert-cpu
  nnasync conformance cases/ --device nnasync-reference
  nnasync conformance cases/ --device nnasync-reference --spec 'conv2d*' --path all --timing
  nnasync conformance V1_2.jsonl.gz --device nnasync-reference --version 1.2 --json result.json
  nnasync conformance cases/ --device litert-cpu --lowering all
  nnasync conformance --suite hal --device nnasync-reference
  nnasync conformance --suite hal --device nnasync-reference --isolate
  nnasync conformance --suite hal --device nnasync-reference --only 'bursts' --cases cases/
"""
_CASES, _HAL = "cases", "hal"
_ALL = "all"
_SHOWN_PER_OPERATION = 3
_SHOWN = 60
_SHOWN_REASONS = 20
_REASON_WIDTH = 240
_LINE_WIDTH = 100
_TOLD_EVERY = 500


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "conformance",
        help="run conformance cases on a device",
        description="Run case files (*.jsonl, *.jsonl.gz) on a device: each case as given, with "
        "dynamic output shapes, and one of a single operation on unsigned bytes as its signed twin "
        "too. Or, with --suite hal, hold the device to the contract of the HAL: mutated models, "
        "requests and burst messages, priorities and deadlines, compilation caching. Exit code 1 "
        "if something failed; what the device says it does not support has not.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "place",
        metavar="CASES_DIR",
        nargs="?",
        help="folder of case files, or one file (the cases that come with nnasync)",
    )
    parser.add_argument(
        "--suite",
        choices=(_CASES, _HAL),
        default=_CASES,
        help="the cases of CASES_DIR, or the direct tests of the HAL (cases)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=device,
        required=True,
        help="the device to run them on: its name, or module:factory of one that is not installed",
    )
    parser.add_argument(
        "--isolate", action="store_true", help="run the device in a process of its own"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to a file")
    _add_cases_options(parser.add_argument_group("--suite cases"))
    _add_hal_options(parser.add_argument_group("--suite hal"))
    parser.set_defaults(command=_command)


def _add_cases_options(group: Any) -> None:
    group.add_argument("--spec", metavar="GLOB", help="specs to run (all)")
    group.add_argument(
        "--version",
        metavar="V",
        type=_version,
        help="only models that this HAL version introduced: 1.0 to 1.3, or none for those without",
    )
    group.add_argument(
        "--jobs", type=positive, metavar="N", help="processes (as many as there are cores)"
    )
    group.add_argument(
        "--path",
        choices=[*(path.value for path in Path), _ALL],
        help="how executions get to the device (sync)",
    )
    group.add_argument(
        "--lowering",
        metavar="NAME",
        help="run the cases in this lowering of the device (that which it takes by itself); all: "
        "in each one that it offers",
    )
    group.add_argument(
        "--timing",
        action="store_true",
        default=None,
        help="make each execution without and with measuring",
    )


def _add_hal_options(group: Any) -> None:
    group.add_argument("--only", metavar="GLOB", help="groups, or checks as group/name (all)")
    group.add_argument(
        "--cases", metavar="DIR", help="folder of case files, some of which are tried as well"
    )


def _version(text: str) -> str:
    name = text if text == "none" else "V" + text.removeprefix("V").replace(".", "_")
    if name != "none" and name not in HalVersion.__members__:
        raise argparse.ArgumentTypeError(
            f"{text} is no version of the HAL; 1.0 to 1.3 are, or none"
        )
    return name


def _command(arguments: argparse.Namespace) -> int:
    wants_hal = arguments.suite == _HAL
    _check_options(arguments, _CASES_OPTIONS if wants_hal else _HAL_OPTIONS)
    return run(run_hal_suite if wants_hal else _run, arguments)


_CASES_OPTIONS = ("place", "spec", "version", "jobs", "path", "timing", "lowering")
_HAL_OPTIONS = ("only", "cases")


def _check_options(arguments: argparse.Namespace, foreign: Sequence[str]) -> None:
    """Raise InvalidArgument for an option of the other suite."""
    for name in foreign:
        if getattr(arguments, name) is not None:
            option = "CASES_DIR" if name == "place" else f"--{name}"
            hint = "; --cases names a folder of cases" if name == "place" else ""
            raise InvalidArgument(f"{option} is not for --suite {arguments.suite}{hint}")


async def _run(arguments: argparse.Namespace) -> int:
    path, place = arguments.path or Path.SYNC.value, arguments.place or str(OWN_CASES)
    plan = Plan(
        place=place,
        device=arguments.device,
        selection=Selection(spec=arguments.spec or "*", version=arguments.version),
        paths=_paths(path, arguments.lowering),
        timing=bool(arguments.timing),
        isolate=arguments.isolate,
        lowering=arguments.lowering,
    )
    report = Report(driver_facts(plan.device).known_gaps)

    def line() -> str:
        counts = report.counts
        return f"{progress.done} cases, {counts.failed} failed, {counts.unsupported} unsupported"

    def done(result: CaseResult) -> None:
        report.add(result)
        progress.step()

    progress = Progress(line, every=_TOLD_EVERY)
    started_s = time.monotonic()
    async with interruptible() as interruption:
        await run_parallel(plan, arguments.jobs or Options().cores, done)
    progress.close()
    duration_s = time.monotonic() - started_s
    if not progress.done and not interruption.signal:
        raise InvalidArgument(f"no case in {place} is of these specs and this version")
    if arguments.json:
        data = {"device": plan.device, "duration_s": round(duration_s, 1), **report.as_data()}
        await anyio.Path(arguments.json).write_bytes(json_text(data).encode() + b"\n")
    print(_text(report, plan.device, duration_s))
    return interruption.exit_code or int(bool(report.counts.failed))


def _paths(path: str, lowering: str | None) -> tuple[Path, ...]:
    """The paths of the command line; through a runtime goes no lowering that one could name."""
    if lowering is None:
        return tuple(Path) if path == _ALL else (Path(path),)
    if path == Path.RUNTIME.value:
        raise InvalidArgument("--lowering is not for --path runtime, which chooses by itself")
    named = tuple(Path) if path == _ALL else (Path(path),)
    return tuple(each for each in named if each is not Path.RUNTIME)


# -- what is printed


def _text(report: Report, device: str, duration_s: float) -> str:
    by_name = report.operations()
    taken = {
        name: each for name, each in by_name.items() if each.passed + each.failed + each.known_gaps
    }
    operations = [(name, *_cells(counts)) for name, counts in taken.items()]
    operations.append(("all cases", *_cells(report.counts)))
    runs = [
        (
            f"{each.variant}{', ' + each.path if each.path else ''}"
            f"{', measured' if each.measured else ''}"
            f"{f', in {each.lowering}' if each.lowering else ''}",
            str(each.passed),
            str(each.failed),
            str(each.unsupported),
        )
        for each in report.runs()
    ]
    parts = [
        table(("operation", "passed", "failed", "unsupported", "known gaps"), operations),
        table(("runs", "passed", "failed", "unsupported"), runs),
    ]
    if len(taken) < len(by_name):
        others = sorted(by_name.keys() - taken.keys())
        parts.insert(1, textwrap.fill(f"no case is taken of: {', '.join(others)}", _LINE_WIDTH))
    if report.failures:
        parts.append("\n".join(_failure_lines(report.failures)))
    parts += [f"known gap: {gap.name}: {gap.gap}" for gap in report.gaps[:_SHOWN]]
    parts += [f"{glob}: listed as a known gap, but passes" for glob in report.closed_gaps()]
    if report.unsupported:
        parts.append("\n".join(_declined(report.reasons())))
    counts = report.counts
    parts.append(
        f"{device}: {counts.passed} passed, {counts.failed} failed, "
        f"{counts.unsupported} unsupported, in {duration_s:.1f} s"
    )
    return "\n\n".join(parts)


def _cells(counts: Counts) -> tuple[str, ...]:
    return tuple(
        str(number)
        for number in (counts.passed, counts.failed, counts.unsupported, counts.known_gaps)
    )


def _declined(reasons: Sequence[tuple[str, int]]) -> list[str]:
    """Returns why cases are not supported, in the order of how many."""
    lines = [
        f"unsupported: {count}: {textwrap.shorten(reason, _REASON_WIDTH, placeholder=' ...')}"
        for reason, count in reasons[:_SHOWN_REASONS]
    ]
    left = len(reasons) - len(lines)
    return [*lines, f"... and {left} more reasons, which --json lists"] if left else lines


def _failure_lines(failures: Sequence[Failure]) -> list[str]:
    """The first failures of each operation."""
    seen: dict[tuple[str, ...], int] = {}
    lines: list[str] = []
    for failure in failures:
        seen[failure.operations] = seen.get(failure.operations, 0) + 1
        if seen[failure.operations] <= _SHOWN_PER_OPERATION and len(lines) < _SHOWN:
            names = "+".join(failure.operations)
            reason = textwrap.shorten(failure.reasons[0], _REASON_WIDTH, placeholder=" ...")
            lines.append(f"{names}: {failure.source}: {failure.name}: {reason}")
    left = len(failures) - len(lines)
    return [*lines, f"... and {left} more, which --json lists"] if left else lines
