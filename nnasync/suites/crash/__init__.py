"""The crash suite: what a device survives, and what it takes with it when it does not.

`run_crash(plan, done)` stresses each device in each mode of `MODES` and gives rows of a
`SuiteResult`; `expected_rows(plan)` says how many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync.suites.crash.coordinator import CrashPlan as CrashPlan
    from nnasync.suites.crash.coordinator import expected_rows as expected_rows
    from nnasync.suites.crash.coordinator import run_crash as run_crash
    from nnasync.suites.crash.modes import MODES as MODES
    from nnasync.suites.crash.modes import CrashMode as CrashMode
    from nnasync.suites.crash.modes import StressKind as StressKind

__all__ = ["MODES", "CrashMode", "CrashPlan", "StressKind", "expected_rows", "run_crash"]

__getattr__ = names(
    __name__,
    {
        "MODES": "modes",
        "CrashMode": "modes",
        "CrashPlan": "coordinator",
        "StressKind": "modes",
        "expected_rows": "coordinator",
        "run_crash": "coordinator",
    },
)
