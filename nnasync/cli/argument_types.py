"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import os
import sys


def device(text: str) -> str:
    """A device by its name, or by "module:factory", whose module may be in the current folder."""
    here = os.getcwd()
    if ":" in text and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return text


def add_value_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that load a file of a model."""
    parser.add_argument(
        "--value-limit-bytes",
        type=positive,
        metavar="N",
        help="what a value of the network may take (512 MiB and four times the file)",
    )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
