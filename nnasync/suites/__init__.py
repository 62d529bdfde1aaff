"""Suites that find out whether a device is right, how fast it is, and what it survives.

Each suite gives a `SuiteResult`: rows of subjects on devices with their standing, figures and
findings. `write_suite` and `read_suite` keep it as JSON.
"""

from nnasync.suites.results import (
    Bars,
    Better,
    Finding,
    Standing,
    SuiteFigure,
    SuiteResult,
    SuiteRow,
    read_suite,
    write_suite,
)

__all__ = [
    "Bars",
    "Better",
    "Finding",
    "Standing",
    "SuiteFigure",
    "SuiteResult",
    "SuiteRow",
    "read_suite",
    "write_suite",
]
