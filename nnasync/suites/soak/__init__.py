"""The soak: hours of mixed load on a device, whose process must not grow nor slow down.

`run_soak(plan, done)` gives a row of a `SuiteResult` for each device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync.suites.soak.judging import SoakSample as SoakSample
    from nnasync.suites.soak.judging import judge as judge
    from nnasync.suites.soak.running import SoakPlan as SoakPlan
    from nnasync.suites.soak.running import run_soak as run_soak

__all__ = ["SoakPlan", "SoakSample", "judge", "run_soak"]

__getattr__ = names(
    __name__,
    {
        "SoakPlan": "running",
        "SoakSample": "judging",
        "judge": "judging",
        "run_soak": "running",
    },
)
