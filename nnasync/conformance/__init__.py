"""Conformance cases as data, run against any device.

`cases` reads case files, `variants` derives further forms of a case, `paths` are the ways of an
execution to the device, `runner` runs one case, `plan` many of them, `parallel` in several
processes, `result_counts` counts.
"""

from __future__ import annotations

from nnasync._core.drivers import driver_facts as driver_facts
from nnasync.conformance.cases import OWN_CASES as OWN_CASES
from nnasync.conformance.cases import Case as Case
from nnasync.conformance.cases import Selection as Selection
from nnasync.conformance.cases import case_files as case_files
from nnasync.conformance.cases import read_cases as read_cases
from nnasync.conformance.parallel import run_parallel as run_parallel
from nnasync.conformance.paths import Path as Path
from nnasync.conformance.plan import Plan as Plan
from nnasync.conformance.plan import run_plan as run_plan
from nnasync.conformance.result_counts import Report as Report
from nnasync.conformance.results import CaseOutcome as CaseOutcome
from nnasync.conformance.results import CaseResult as CaseResult
from nnasync.conformance.results import Variant as Variant
from nnasync.conformance.runner import Runner as Runner

__all__ = [
    "OWN_CASES",
    "Case",
    "CaseResult",
    "CaseOutcome",
    "Path",
    "Plan",
    "Report",
    "Runner",
    "Selection",
    "Variant",
    "case_files",
    "driver_facts",
    "read_cases",
    "run_parallel",
    "run_plan",
]
