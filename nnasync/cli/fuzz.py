"""`nnasync fuzz`: what a device makes of inputs that are not as they should be."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread

from nnasync import run
from nnasync.cli.argument_types import device, positive, positive_number
from nnasync.cli.suite.output import add_output_options, run_suite
from nnasync.cli.text import HelpFormatter
from nnasync.devices import installed
from nnasync.errors import InvalidArgument, NNError
from nnasync.suites import Gathering
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
  nnasync fuzz --device openvino-cpu --minutes 60 --progress openvino.json
  nnasync fuzz --device nnasync-reference --guided --kind models,requests
  nnasync fuzz --repeat findings/litert-cpu-tflite-crash-0123456789abcdef.json
"""
_ALL = "all"
_SANITIZERS = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "MSAN_OPTIONS")


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "fuzz",
        help="try what devices make of inputs that are not as they should be",
        description="Change models, requests, memory, cache files and files of models at random, "
        "and give them to devices in processes that may be lost: whatever comes in runs or is "
        "refused with an error that says why. What crashes, hangs, takes too much memory, leaks, "
        "raises anything else or gives outputs that depend on undefined memory is a finding; it is "
        "shrunk and written to a file that --repeat takes. Exit code 1 if there are findings. "
        "ASAN_OPTIONS, UBSAN_OPTIONS, LD_PRELOAD and all of the environment are those of the "
        "processes, too, for engines that are built with a sanitizer.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    _add_choices(parser)
    _add_limits(parser)
    add_output_options(parser)
    parser.set_defaults(command=_command)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose what is tried on which devices."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=device,
        action="append",
        help="a device by name, module:factory of one that is not installed, or all; may be "
        "repeated (all)",
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
        "--runs",
        type=positive,
        default=1000,
        metavar="N",
        help="changed models, files or requests of a kind (%(default)s); a changed model that is "
        "prepared is given several requests",
    )
    parser.add_argument(
        "--minutes",
        type=positive_number,
        metavar="M",
        help="instead of --runs: go on for so long, with the kinds in turn",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Which inputs, what they may take, and where findings go."""
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="of all that is drawn (%(default)s)"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="folder of .tflite, .onnx and .nnm files to begin with, besides those that the "
        "project's own models make",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("nnasync-fuzz"),
        metavar="DIR",
        help="where findings go (%(default)s)",
    )
    parser.add_argument(
        "--progress",
        type=Path,
        metavar="FILE",
        help="keep in FILE how far each kind has come, by device and seed, and go on from there "
        "the next time; for one run at a time",
    )
    parser.add_argument(
        "--limit",
        type=positive_number,
        default=60.0,
        metavar="S",
        help="seconds after which an input counts as hanging (%(default)g)",
    )
    parser.add_argument(
        "--memory",
        type=positive,
        default=2048,
        metavar="MIB",
        help="MiB that an input may take (%(default)s)",
    )
    parser.add_argument(
        "--guided", action="store_true", help="let coverage choose the inputs (needs atheris)"
    )
    parser.add_argument(
        "--repeat",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="try findings again, each on its own device or on --device",
    )


def _kinds(text: str) -> tuple[FuzzKind, ...]:
    known = {kind.value: kind for kind in FuzzKind}
    names = text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no kind of input; these are: {', '.join(known)}"
            )
    return tuple(dict.fromkeys(known[name] for name in names))


def _command(arguments: argparse.Namespace) -> int:
    if arguments.guided:
        check_guide()
        if arguments.minutes or arguments.progress:
            raise InvalidArgument("--guided takes --runs, not --minutes or --progress")
    if arguments.repeat:
        return run(_repeat, arguments)

    async def work(gathering: Gathering) -> None:
        await _fuzz(arguments, gathering)

    return run_suite("fuzz", arguments, work)


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


async def _fuzz(arguments: argparse.Namespace, gathering: Gathering) -> None:
    """Fuzz each device; whatever ends it, all rows so far are told."""
    names = await anyio.to_thread.run_sync(_devices, arguments.device)
    gathering.expected = len(names) * len(arguments.kind)
    inputs = 0

    def step(kind: str, count: int) -> None:
        nonlocal inputs
        inputs += count
        gathering.step(f"{inputs:,} inputs, {kind} on {name}")

    for name in names:
        plan = FuzzPlan(
            _setting(arguments, name, isolate=arguments.isolate),
            arguments.kind,
            arguments.runs,
            arguments.seed,
            arguments.limit,
            arguments.out,
            arguments.guided,
            arguments.minutes and 60 * arguments.minutes,
            arguments.progress,
        )
        campaign = Campaign(plan, step)
        try:
            await campaign.run()
        finally:
            for row in campaign.rows():
                gathering.add(row)
                for finding in row.findings:
                    print(f"{row.device}, {row.subject}: {finding.text}")
                    if finding.command:
                        print(f"  {finding.command}")
            if arguments.progress is not None:
                print(f"{name}: {campaign.progress.inputs:,} inputs in all, says the progress file")


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
