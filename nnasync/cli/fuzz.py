"""`nnasync fuzz`: what a device makes of inputs that are not as they should be."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio.to_thread

from nnasync import __version__, run
from nnasync.cli.argument_types import device, positive
from nnasync.cli.interruption import interruptible
from nnasync.cli.progress import Progress
from nnasync.cli.suite.report import told
from nnasync.cli.text import HelpFormatter
from nnasync.devices import installed
from nnasync.errors import InvalidArgument, NNError
from nnasync.machine import cores_allowed
from nnasync.suites import Standing, SuiteResult, SuiteRow, write_suite
from nnasync.suites.fuzz import (
    Broken,
    Campaign,
    FuzzKind,
    FuzzPlan,
    Setting,
    check_guide,
    read_finding,
    repeat,
)

__all__ = ["add_parser"]

_EXAMPLES = """examples:
  nnasync fuzz
  nnasync fuzz --device litert-cpu --runs 100000 --kind tflite --corpus models/ --out findings/
  nnasync fuzz --device acme_npu:NpuEngine --isolate --json fuzz.json
  nnasync fuzz --device nnasync-reference --guided --kind models,requests
  nnasync fuzz --repeat findings/litert-cpu-tflite-crash-0123456789abcdef.json
"""
_ALL = "all"
_TOLD_EVERY = 5000
_SANITIZERS = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "MSAN_OPTIONS")


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "fuzz",
        help="try what devices make of inputs that are not as they should be",
        description="Changes models, requests, memory, cache files and files of models at random, "
        "and gives them to devices in processes that may be lost: whatever comes in runs or is "
        "refused with an error that says why. What crashes, hangs, takes too much memory, leaks, "
        "raises anything else or gives outputs that depend on undefined memory is a finding; it is "
        "shrunk and written to a file that --repeat takes. Exit code 1 if there are findings. "
        "ASAN_OPTIONS, UBSAN_OPTIONS, LD_PRELOAD and all of the environment are those of the "
        "processes, too, for engines that are built with a sanitizer.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=device,
        action="append",
        help="a device by name, module:factory of one that is not installed, or all; may be given "
        "several times (all)",
    )
    parser.add_argument("--isolate", action="store_true", help="isolate the devices as well")
    parser.add_argument(
        "--kind",
        metavar="KIND,...",
        type=_kinds,
        default=tuple(FuzzKind),
        help=f"what is changed: {', '.join(kind.value for kind in FuzzKind)} (all of them)",
    )
    parser.add_argument(
        "--runs", type=positive, default=1000, metavar="N", help="inputs of a kind (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which ones (%(default)s)")
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="folder of .tflite, .onnx and .nnm files to begin with, besides those that the "
        "project's own models make",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where findings go (nnasync-fuzz)")
    parser.add_argument(
        "--limit", type=_seconds, default=60.0, metavar="S", help="an input that takes longer hangs"
    )
    parser.add_argument(
        "--memory", type=positive, default=2048, metavar="MIB", help="what an input may take"
    )
    parser.add_argument(
        "--guided", action="store_true", help="let coverage choose the inputs (needs atheris)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to a file")
    parser.add_argument(
        "--repeat",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="try findings again, each on its own device or on --device",
    )
    parser.set_defaults(command=_command)


def _kinds(text: str) -> tuple[FuzzKind, ...]:
    known = {kind.value: kind for kind in FuzzKind}
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no kind of input; these are: {', '.join(known)}"
            )
    return tuple(dict.fromkeys(known[name] for name in names))


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _command(arguments: argparse.Namespace) -> int:
    if arguments.guided:
        check_guide()

    async def main() -> int:
        return await (_repeat(arguments) if arguments.repeat else _fuzz(arguments))

    return run(main)


def _setting(arguments: argparse.Namespace, name: str, *, isolate: bool) -> Setting:
    preloaded = os.environ.get("LD_PRELOAD", "")
    return Setting(
        name,
        isolate=isolate,
        corpus=str(arguments.corpus.absolute()) if arguments.corpus else None,
        memory_bytes=arguments.memory << 20,
        is_sanitized=any(os.environ.get(each) for each in _SANITIZERS) or "san" in preloaded,
    )


def _devices(named: Sequence[str] | None) -> list[str]:
    if named and _ALL not in named:
        return list(dict.fromkeys(named))
    return [each.name for each in installed() if not each.absence]


async def _fuzz(arguments: argparse.Namespace) -> int:
    names = await anyio.to_thread.run_sync(_devices, arguments.device)
    out = arguments.out or Path("nnasync-fuzz")
    campaigns: list[Campaign] = []

    def line() -> str:
        count = sum(len(each.findings) for each in campaigns)
        return f"{progress.done:,} inputs, {count} findings: {names[len(campaigns) - 1]}"

    progress = Progress(line, every=_TOLD_EVERY)
    began_at, started_s = (
        datetime.now().astimezone().isoformat(timespec="seconds"),
        time.monotonic(),
    )
    is_partial = True
    async with interruptible() as interruption:
        for name in names:
            plan = FuzzPlan(
                _setting(arguments, name, isolate=arguments.isolate),
                arguments.kind,
                arguments.runs,
                arguments.seed,
                arguments.limit,
                out,
                arguments.guided,
            )
            campaigns.append(Campaign(plan, progress.step))
            await campaigns[-1].run()
        is_partial = False
    progress.close()
    rows = tuple(row for campaign in campaigns for row in campaign.rows())
    result = SuiteResult(
        "fuzz",
        _command_line(arguments),
        began_at,
        time.monotonic() - started_s,
        rows,
        {"cores": str(cores_allowed())},
        {"nnasync": __version__},
        is_partial,
    )
    if arguments.json:
        await anyio.to_thread.run_sync(write_suite, arguments.json, result)
    print(_text(result))
    failed = result.standing not in (Standing.SUCCESS, Standing.SKIPPED)
    return interruption.exit_code or int(failed)


def _command_line(arguments: argparse.Namespace) -> str:
    """The command that tries the same inputs again."""
    parts = ["nnasync fuzz"]
    parts += [f"--device {name}" for name in arguments.device or ()]
    parts += ["--isolate"] * arguments.isolate
    parts.append(f"--kind {','.join(kind.value for kind in arguments.kind)}")
    parts.append(f"--runs {arguments.runs} --seed {arguments.seed}")
    if arguments.corpus:
        parts.append(f"--corpus {arguments.corpus}")
    return " ".join([*parts, *["--guided"] * arguments.guided])


def _text(result: SuiteResult) -> str:
    lines = [told(result)]
    lines += [line for row in result.rows for line in _finding_lines(row)]
    return "\n".join(lines)


def _finding_lines(row: SuiteRow) -> list[str]:
    return [
        f"{row.device}, {row.subject}: {finding.text}"
        + (f"\n  {finding.command}" if finding.command else "")
        for finding in row.findings
    ]


async def _repeat(arguments: argparse.Namespace) -> int:
    """Try findings again; returns 1 if one is still there."""
    named = arguments.device or [None]
    if len(named) > 1:
        raise InvalidArgument("--repeat takes one --device, not several")
    is_there = False
    for path in arguments.repeat:
        finding = await anyio.to_thread.run_sync(read_finding, path)
        setting = _setting(
            arguments, named[0] or finding.device, isolate=finding.isolate or arguments.isolate
        )
        try:
            (tried,) = await repeat([finding], setting, arguments.limit)
        except NNError as error:
            raise InvalidArgument(f"{path}: {error}") from error
        is_there |= tried.result.broken is not None
        ending = tried.result.ending
        now = ending.value if ending else _said(tried.result.broken, tried.result.text)
        other = "" if tried.is_same_input else " (this version makes another input of the file)"
        print(f"{path}: was {_said(finding.broken, finding.text)}; is {now}{other}")
    return int(is_there)


def _said(broken: Broken | None, text: str) -> str:
    """A verdict in words."""
    return f"{broken.value}: {text}" if broken else text
