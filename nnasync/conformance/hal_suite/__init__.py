"""The HAL suite: direct tests of a device's contract, beside the cases that test its arithmetic.

`subjects` are the models it works with; `basics`, `models` (with `mutations`), `requests`,
`bursts`, `quality`, `caching` and `domains` are its groups of checks; `suite` runs them on a device
and `suite_report` counts.
"""

from __future__ import annotations

from nnasync.conformance.hal_suite.check import CheckResult as CheckResult
from nnasync.conformance.hal_suite.check import CheckVerdict as CheckVerdict
from nnasync.conformance.hal_suite.suite import GROUPS as GROUPS
from nnasync.conformance.hal_suite.suite import SuitePlan as SuitePlan
from nnasync.conformance.hal_suite.suite import run_on as run_on
from nnasync.conformance.hal_suite.suite import run_suite as run_suite
from nnasync.conformance.hal_suite.suite_report import GroupCounts as GroupCounts
from nnasync.conformance.hal_suite.suite_report import SuiteReport as SuiteReport

__all__ = [
    "GROUPS",
    "CheckResult",
    "GroupCounts",
    "SuitePlan",
    "SuiteReport",
    "CheckVerdict",
    "run_on",
    "run_suite",
]
