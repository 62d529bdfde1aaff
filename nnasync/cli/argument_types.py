"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence


def device(text: str) -> str:
    """A device by its name, or by "module:factory", whose module may be in the current folder."""
    here = os.getcwd()
    if ":" in text and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    return text


def runtime_devices(named: Sequence[str]) -> Sequence[str] | None:
    """Returns the devices for a runtime with the named ones; None (all) if they are installed."""
    return named if any(":" in each for each in named) else None


def add_value_limit(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that load a file of a model."""
    parser.add_argument(
        "--value-limit-bytes",
        type=positive,
        metavar="N",
        help="what a value of the network may take (512 MiB and four times the file)",
    )


def port(text: str) -> int:
    """A port of TCP; 0 is any that is free."""
    value = whole(text)
    if not 0 <= value < 2**16:
        raise argparse.ArgumentTypeError(f"{text} is not a port, which is a number from 0 to 65535")
    return value


def number(text: str) -> float:
    """The number; NaN, which lies in no range, for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole(text: str) -> int:
    """The whole number; -1 for what is none."""
    try:
        return int(text)
    except ValueError:
        return -1


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def positive_number(text: str) -> float:
    """A number above 0, such as of seconds, or times as long."""
    value = number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
