"""Fuzzing of devices: changed models, requests, memory, cache files and files of models.

`Campaign` tries the inputs of a `FuzzPlan` on a device, in processes that may be lost. What a
device may do with an input is in `verdicts`, what is a finding of it a `FuzzFinding`; `repeat`
tries findings again.
"""

from nnasync.suites.fuzz.campaign import Campaign, FuzzPlan, Tried, repeat
from nnasync.suites.fuzz.conversation import Setting
from nnasync.suites.fuzz.findings import FuzzFinding, read_finding, write_finding
from nnasync.suites.fuzz.guided import check_guide
from nnasync.suites.fuzz.inputs import FuzzKind, Recipe
from nnasync.suites.fuzz.verdicts import Broken, Ending, InputResult

__all__ = [
    "Broken",
    "Campaign",
    "Ending",
    "FuzzFinding",
    "FuzzKind",
    "FuzzPlan",
    "InputResult",
    "Recipe",
    "Setting",
    "Tried",
    "check_guide",
    "read_finding",
    "repeat",
    "write_finding",
]
