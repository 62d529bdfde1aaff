"""`nnasync suite crash`: what devices survive, and what they take with them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nnasync.cli import demo_data
from nnasync.cli.argument_types import device, positive_number
from nnasync.cli.suite.output import add_output_options, run_suite
from nnasync.cli.text import HelpFormatter
from nnasync.devices import installed
from nnasync.errors import InvalidArgument
from nnasync.suites import Gathering
from nnasync.suites.crash import MODES, CrashPlan, expected_rows, run_crash

__all__ = ["add_part", "add_targets", "networks_in", "wanted_devices"]

ALL = "all"
OWN = ("digits.nnm", "words.nnm", "detector.nnm")
SUFFIXES = (".nnm", ".tflite", ".onnx")
_EXAMPLES = """examples:
  nnasync suite crash --scale 0.01 --json crash.json --html crash.html
  nnasync suite crash parallel-inference-stress --device litert-cpu --seed 7
  nnasync suite crash model-loading-stress --device acme:NpuEngine --models networks/
"""


def add_part(parts: Any) -> None:
    """Add this part to the command."""
    modes = "\n".join(f"  {mode.name}: {mode.about}" for mode in MODES)
    parser = parts.add_parser(
        "crash",
        help="find out what devices survive",
        description="Stress each device in each mode, in processes with time limits: each ends "
        "as success, failure, hang or crash, and the next goes on. Exit code 1 if one was no "
        "success.",
        epilog=f"modes:\n{modes}\n\n{_EXAMPLES}",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("modes", nargs="*", metavar="MODE", help="modes to run (all)")
    add_targets(parser)
    parser.add_argument(
        "--scale",
        type=positive_number,
        default=1.0,
        metavar="X",
        help="how long it takes: 1 is more than an hour a device, 4 takes as long as Android's "
        "own crash tests; below 0.1 each mode has its hardest parameters only (1)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is drawn (0)")
    add_output_options(parser)
    parser.set_defaults(command=_command)


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Add the options for devices and networks."""
    parser.add_argument(
        "--device",
        nargs="+",
        action="extend",
        type=device,
        metavar="NAME",
        help="devices, by name or as module:factory, or all that are installed; may be repeated "
        "(all)",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help=f"of networks to use, {', '.join(SUFFIXES)} (those that come with nnasync)",
    )


def wanted_devices(names: list[str] | None) -> tuple[str, ...]:
    """The devices that are asked for, each once; all where none are."""
    names = names or [ALL]
    if ALL in names:
        here = [each.name for each in installed() if not each.absence]
        names = [*(name for name in names if name != ALL), *here]
    return tuple(dict.fromkeys(names))


def networks_in(folder: Path | None) -> tuple[str, ...]:
    """The files of the networks; raises InvalidArgument for a folder without any."""
    if folder is None:
        return tuple(str(demo_data.path(name)) for name in OWN)
    if not folder.is_dir():
        raise InvalidArgument(f"--models {folder} is no folder")
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise InvalidArgument(f"--models {folder} has no file with {', '.join(SUFFIXES)}")
    return tuple(str(path.absolute()) for path in found)


def _command(arguments: argparse.Namespace) -> int:
    known = [mode.name for mode in MODES]
    unknown = [name for name in arguments.modes if name not in known]
    if unknown:
        raise InvalidArgument(
            f"there is no mode {', '.join(unknown)}; there are: {', '.join(known)}"
        )
    plan = CrashPlan(
        wanted_devices(arguments.device),
        networks_in(arguments.models),
        tuple(arguments.modes or known),
        arguments.scale,
        arguments.seed,
        options=() if arguments.models is None else ("--models", str(arguments.models.absolute())),
    )

    async def work(gathering: Gathering) -> None:
        gathering.expected = expected_rows(plan)
        await run_crash(plan, gathering.add, gathering.step)

    return run_suite("crash", arguments, work)
