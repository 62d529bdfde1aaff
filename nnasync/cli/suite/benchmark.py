"""`nnasync suite benchmark`: how right and how fast networks are on each device."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import anyio.to_thread
from msgspec.structs import replace

from nnasync.cli.argument_types import add_value_limit, device, positive_number
from nnasync.cli.suite.output import add_output_options, run_suite
from nnasync.cli.suite.own_models import own_subjects
from nnasync.cli.text import HelpFormatter
from nnasync.errors import InvalidArgument
from nnasync.suites import Gathering
from nnasync.suites.benchmark import (
    Benchmark,
    ListedModel,
    PictureFolder,
    Subject,
    baselines,
    open_children,
    run_benchmark,
    subject_of,
    subjects_in,
    targets_of,
)

__all__ = ["add_part"]

OWN = "own"
_EXAMPLES = """examples:
  nnasync suite benchmark --scale 0.1 --json benchmark.json --html benchmark.html
  nnasync suite benchmark own models/ list.toml --device litert-cpu --device auto
  nnasync suite benchmark model.tflite --device isolated:openvino-cpu
  nnasync suite benchmark net.tflite --pictures photos/ --labels labels.txt --expected-top1 0.7
"""


def add_part(parts: Any) -> None:
    """Add this part to the command."""
    parser = parts.add_parser(
        "benchmark",
        help="how right and how fast networks are on each device",
        description="Compile each network for each device, without a cache, to one and from one, "
        "run it on its data, and say whether the answers are as right as those of the baseline: "
        "LiteRT with its plain kernels where it is installed and has them, else the reference. "
        "Each device runs in a child process; one that dies or hangs costs a row. Exit code 1 if "
        "a row failed.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODELS",
        help="a model, a list of models (.toml, .json), a folder of models or with such a list, or "
        f'"{OWN}": the networks that come with nnasync ({OWN})',
    )
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        type=device,
        metavar="NAME",
        help="a device; isolated:NAME for one in a process of its own, NAME+NAME for two that may "
        "divide a network, auto for the runtime's choice, module:factory for one that is not "
        "installed, all for every installed one and auto; may be repeated (all)",
    )
    parser.add_argument(
        "--scale",
        type=positive_number,
        default=1.0,
        metavar="X",
        help="how much longer all measurements take, and the share of the data (1)",
    )
    add_value_limit(parser)
    _add_pictures(parser)
    add_output_options(parser)
    parser.set_defaults(command=_command)


def _add_pictures(parser: argparse.ArgumentParser) -> None:
    pictures = parser.add_argument_group("pictures with labels, for all networks of MODELS")
    pictures.add_argument(
        "--pictures",
        type=Path,
        metavar="DIR",
        help="of pictures, in a sub-folder for each label or with ground_truth.json",
    )
    pictures.add_argument(
        "--labels", type=Path, metavar="FILE", help="the names of the classes, one a line"
    )
    pictures.add_argument(
        "--preprocessing",
        choices=("inception", "network"),
        default="inception",
        help="how pictures are made inputs: as for Inception, or as the network's own input says "
        "(inception)",
    )
    pictures.add_argument(
        "--expected-top1",
        type=float,
        default=0.0,
        metavar="X",
        help="the share of pictures that must be right",
    )


def _command(arguments: argparse.Namespace) -> int:
    async def work(gathering: Gathering) -> None:
        benchmark = await anyio.to_thread.run_sync(_benchmark, arguments)
        async with open_children() as children:
            await run_benchmark(benchmark, children, gathering)

    return run_suite("benchmark", arguments, work)


def _benchmark(arguments: argparse.Namespace) -> Benchmark:
    """Builds the benchmark from the options; raises InvalidArgument and OSError."""
    subjects: list[Subject] = []
    for name in arguments.models or [OWN]:
        subjects += own_subjects() if name == OWN else subjects_in(Path(name))
    limit_bytes = arguments.value_limit_bytes
    if limit_bytes is not None:
        subjects = [replace(each, value_limit_bytes=limit_bytes) for each in subjects]
    if arguments.pictures is not None:
        subjects = [_with_pictures(each, arguments) for each in subjects]
    elif arguments.labels is not None:
        raise InvalidArgument("--labels names classes of --pictures DIR, which is not given")
    targets = targets_of(tuple(arguments.device))
    return Benchmark(tuple(subjects), targets, baselines(), scale=arguments.scale)


def _with_pictures(subject: Subject, arguments: argparse.Namespace) -> Subject:
    """The network of a subject on the user's pictures."""
    folder = PictureFolder(
        str(arguments.pictures.absolute()),
        "" if arguments.labels is None else str(arguments.labels.absolute()),
        preprocessing=arguments.preprocessing,
    )
    listed = ListedModel(
        str(subject.model.absolute()),
        subject.name,
        "top-k",
        arguments.expected_top1,
        pictures=folder,
        value_limit_bytes=subject.value_limit_bytes,
    )
    return subject_of(listed, Path())
