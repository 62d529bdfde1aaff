"""How cases and their runs come out, as data."""

from __future__ import annotations

import enum

from nnasync.conformance.paths import Path
from nnasync.hal import Struct


class CaseOutcome(enum.Enum):
    """How a case, or one run of it, came out."""

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


class Variant(enum.Enum):
    """The form of a case that was run."""

    AS_GIVEN = "as given"
    DYNAMIC = "dynamic output shapes"
    TOO_SMALL = "output too small"
    SIGNED = "signed twin"


class Run(Struct, frozen=True):
    """One run of a case; without a path where it did not come to an execution.

    `missing` are the operations of the main subgraph that the device says it cannot run. `lowering`
    is the one that was asked for, if one was.
    """

    variant: Variant
    outcome: CaseOutcome
    path: Path | None = None
    measured: bool = False
    reason: str = ""
    missing: tuple[str, ...] = ()
    lowering: str = ""


class CaseResult(Struct, frozen=True):
    """How a case came out: failed if a run failed, unsupported if it is so as given.

    `operations` are those to count it under: of an unsupported case those that are missing.
    """

    name: str
    spec: str
    source: str
    operations: tuple[str, ...]
    outcome: CaseOutcome
    duration_ns: int
    runs: tuple[Run, ...]
