"""`nnasync dump MODEL`: a model as text or as a graph, and the memory that it takes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from nnasync.drivers.cpu import memory_plan
from nnasync.dump import model_dot, model_text, plan_text
from nnasync.errors import ModelError
from nnasync.hal import Model
from nnasync.importers import load

__all__ = ["add_parser"]

_EXAMPLES = """examples:
  nnasync dump model.tflite
  nnasync dump model.tflite --plan
  nnasync dump model.tflite --dot | dot -Tsvg -o model.svg
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "dump",
        help="show a model and its memory plan",
        description="Show a model (operands, operations, types, shapes, quantisation, who reads "
        "what) and how the reference device lays out the memory of one execution.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="file of the model")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dot", action="store_true", help="write a Graphviz graph instead")
    which.add_argument("--plan", action="store_true", help="show the memory plan only")
    parser.add_argument("--output", metavar="FILE", help="write to a file instead of the terminal")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    model = load(arguments.model)
    if arguments.dot:
        text = model_dot(model)
    elif arguments.plan:
        text = plan_text(memory_plan(model))
    else:
        text = f"{model_text(model)}\n{_plan(model)}"
    if arguments.output:
        Path(arguments.output).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def _plan(model: Model) -> str:
    try:
        return plan_text(memory_plan(model))
    except ModelError as error:
        return f"memory of one execution: {error}\n"
