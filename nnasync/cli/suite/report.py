"""`nnasync suite report`: the result of a suite that ran before, as a table and as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from nnasync.cli.suite.output import add_output_options, exit_code, open_output, write_output
from nnasync.cli.suite.told import told
from nnasync.suites import read_suite

__all__ = ["add_part"]


def add_part(parts: Any) -> None:
    """Add this part to the command."""
    parser = parts.add_parser(
        "report",
        help="show what a suite found out",
        description="Show the result of a suite that ran before. Exit code 1 if something in it "
        "failed.",
    )
    parser.add_argument("result", type=Path, metavar="FILE.json", help="result of a suite")
    add_output_options(parser, is_report=True)
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    result = read_suite(arguments.result)
    output = open_output(result.suite, arguments)
    print(told(result, output.old))
    write_output(result, output)
    return exit_code(result)
