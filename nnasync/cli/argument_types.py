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


def positive(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
