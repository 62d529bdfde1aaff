"""`nnasync suite soak`: hours of mixed load on devices, and what grows meanwhile."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from nnasync.cli.argument_types import positive_number
from nnasync.cli.suite.crash import add_targets, networks_in, wanted_devices
from nnasync.cli.suite.output import add_output_options, run_suite
from nnasync.cli.text import HelpFormatter
from nnasync.suites import Gathering
from nnasync.suites.soak import SoakPlan, run_soak

__all__ = ["add_part"]

_HOUR_S = 3600
_EXAMPLES = """examples:
  nnasync suite soak --hours 1 --device nnasync-reference --json soak.json
  nnasync suite soak --hours 12 --device all --html soak.html
"""


def add_part(parts: Any) -> None:
    """Add this part to the command."""
    parser = parts.add_parser(
        "soak",
        help="load devices for hours, and see what grows",
        description="Load devices with streams with deadlines, compilations, networks that are "
        "dropped, a cache that is too small, storms of deadlines and kills of an isolated "
        "driver, all at once. Memory, "
        "descriptors, threads and latency are sampled; a slope that is surely above zero after the "
        "settling time (five minutes, or 30 % of a short run) fails, and so does a wrong answer.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    add_targets(parser)
    parser.add_argument(
        "--hours",
        type=positive_number,
        default=1.0,
        metavar="H",
        help="how long, of which each device has an even share (1)",
    )
    parser.add_argument(
        "--every",
        type=positive_number,
        default=5.0,
        metavar="S",
        help="seconds between samples (5)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is drawn (0)")
    add_output_options(parser)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    command = ["nnasync", "suite", "soak"]
    if arguments.models is not None:
        command += ["--models", str(arguments.models.absolute())]
    plan = SoakPlan(
        wanted_devices(arguments.device),
        networks_in(arguments.models),
        arguments.hours * _HOUR_S,
        arguments.seed,
        sample_s=arguments.every,
        command=shlex.join(command),
    )

    async def work(gathering: Gathering) -> None:
        gathering.expected = len(plan.devices)
        await run_soak(plan, gathering.add, gathering.step)

    return run_suite("soak", arguments, work)
