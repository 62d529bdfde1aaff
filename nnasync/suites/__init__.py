"""Suites that find out whether a device is right, how fast it is, and what it survives.

Each suite gives a `SuiteResult`: rows of subjects on devices with their standing, figures and
findings. `write_suite` and `read_suite` keep it as JSON, `write_page` shows it as a page and
`write_junit` as what CI systems read; `compare_suites`
tells what got better or worse. A `Gathering` is the result of a suite that still runs.
"""

from nnasync.suites.comparison import (
    FigureChange,
    SuiteComparison,
    Trend,
    compare_suites,
)
from nnasync.suites.gathering import Gathering
from nnasync.suites.junit import write_junit
from nnasync.suites.page import write_page
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
    "FigureChange",
    "Finding",
    "Gathering",
    "Standing",
    "SuiteComparison",
    "SuiteFigure",
    "SuiteResult",
    "SuiteRow",
    "Trend",
    "compare_suites",
    "read_suite",
    "write_junit",
    "write_page",
    "write_suite",
]
