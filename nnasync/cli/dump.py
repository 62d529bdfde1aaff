"""`nnasync dump MODEL`: a model as text or as a graph, its memory, and who runs which step."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from nnasync import CompileOptions, Report, describe, load, open_runtime, run
from nnasync.cli.argument_types import add_value_limit, device, runtime_devices
from nnasync.cli.text import HelpFormatter
from nnasync.dump import memory_text, model_dot, model_text, plan_dot, plan_text
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model

_EXAMPLES = """examples:
  nnasync dump model.tflite
  nnasync dump model.tflite --memory
  nnasync dump model.tflite --plan
  nnasync dump model.tflite --plan --device litert-cpu --device nnasync-reference
  nnasync dump model.tflite --format dot | dot -Tsvg -o model.svg
  nnasync dump model.tflite --plan --format dot | dot -Tsvg -o plan.svg
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "dump",
        help="show a model, its memory, or its plan",
        description="Show a model (operands, operations, types, shapes, quantization, who reads "
        "what) and how the reference device lays out the memory of one execution. With --plan "
        "compile it, and show which device runs which step, in which way, and what crosses the "
        "borders.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="file of the model")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--plan", action="store_true", help="compile, and show the plan")
    which.add_argument("--memory", action="store_true", help="show the memory plan only")
    parser.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        type=device,
        help="plan with this device, by its name or module:factory, and others that are named "
        "(default: all)",
    )
    parser.add_argument(
        "--format", choices=("text", "dot"), default="text", help="dot is a Graphviz graph (text)"
    )
    parser.add_argument(
        "--dot", action="store_const", const="dot", dest="format", help="same as --format dot"
    )
    add_value_limit(parser)
    parser.add_argument("--output", metavar="FILE", help="write to a file instead of the terminal")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    as_graph = arguments.format == "dot"
    if arguments.device and not arguments.plan:
        raise InvalidArgument("--device is for --plan: nothing else depends on the devices")
    if arguments.memory and as_graph:
        raise InvalidArgument("--memory has no graph; leave --format dot away")
    limit = arguments.value_limit_bytes
    model = load(arguments.model, value_limit_bytes=limit)
    if arguments.plan:
        text = _plan(model, arguments.device, as_graph=as_graph)
    elif arguments.memory:
        text = memory_text(model)
    else:
        text = model_dot(model) if as_graph else _text(arguments.model, model, limit)
    if arguments.output:
        Path(arguments.output).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def _text(path: str, model: Model, value_limit_bytes: int | None) -> str:
    described = describe(path, value_limit_bytes=value_limit_bytes)
    return f"{described}\n\n{model_text(model)}\n{_memory(model)}"


def _memory(model: Model) -> str:
    try:
        return memory_text(model)
    except ModelError as error:
        return f"memory of one execution: {error}\n"


def _plan(model: Model, devices: list[str], *, as_graph: bool) -> str:
    report: Report = run(_compiled, model, devices)
    return plan_dot(model, report) if as_graph else plan_text(model, report)


async def _compiled(model: Model, devices: list[str]) -> Report:
    of_runtime = runtime_devices(devices)
    async with open_runtime(devices=of_runtime) as runtime:
        options = CompileOptions(wait="best")
        named = None if of_runtime else devices or None
        net = await runtime.compile(model, devices=named, options=options)
        report = net.report()
        await net.close()
        return report
