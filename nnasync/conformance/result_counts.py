"""Counts of conformance results: per operation, per form and path; what failed, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from nnasync.conformance.results import CaseOutcome, CaseResult
from nnasync.hal import Struct


class Counts(Struct, frozen=True):
    """Numbers of cases by outcome; `known_gaps` failed as the driver says they do."""

    passed: int = 0
    failed: int = 0
    unsupported: int = 0
    known_gaps: int = 0


class RunCounts(Struct, frozen=True):
    """Numbers of runs by outcome, of one form of the cases over one path."""

    variant: str
    path: str
    measured: bool
    passed: int
    failed: int
    unsupported: int
    lowering: str = ""


class Failure(Struct, frozen=True):
    """A case that failed, and how its failed runs did, as "form, path: reason"."""

    name: str
    source: str
    operations: tuple[str, ...]
    reasons: tuple[str, ...]
    gap: str = ""


class Unsupported(Struct, frozen=True):
    """A case that the device does not take, the operations that are missing, and why."""

    name: str
    source: str
    missing: tuple[str, ...]
    reason: str = ""


class Report:
    """Collects results; a failed case that a known gap of the driver names is counted as that."""

    def __init__(self, known_gaps: Mapping[str, str] | None = None) -> None:
        self._gaps = known_gaps or {}
        self._total: Counter[str] = Counter()
        self._operations: dict[str, Counter[str]] = {}
        self._runs: dict[tuple[str, str, bool, str], Counter[str]] = {}
        self._matched: Counter[str] = Counter()
        self.failures: list[Failure] = []
        self.gaps: list[Failure] = []
        self.unsupported: list[Unsupported] = []

    def add(self, result: CaseResult) -> None:
        """Count a result."""
        gap = _gap_of(result.name, self._gaps)
        outcome = result.outcome.value
        if gap is not None and result.outcome is CaseOutcome.PASSED:
            self._matched[gap] += 0
        if result.outcome is CaseOutcome.FAILED:
            self._add_failure(result, gap)
            outcome = outcome if gap is None else "known_gaps"
        elif result.outcome is CaseOutcome.UNSUPPORTED:
            run = result.runs[0]
            self.unsupported.append(
                Unsupported(result.name, result.source, run.missing, run.reason)
            )
        self._total[outcome] += 1
        for operation in result.operations:
            self._operations.setdefault(operation, Counter())[outcome] += 1
        for run in result.runs:
            path = run.path.value if run.path else ""
            key = (run.variant.value, path, run.measured, run.lowering)
            self._runs.setdefault(key, Counter())[run.outcome.value] += 1

    @property
    def counts(self) -> Counts:
        """Returns the counts of all cases."""
        return Counts(**self._total)

    def operations(self) -> dict[str, Counts]:
        """Per operation, by name; a case of several operations counts under each."""
        return {name: Counts(**self._operations[name]) for name in sorted(self._operations)}

    def runs(self) -> list[RunCounts]:
        """Per form and path."""
        return [
            RunCounts(
                variant,
                path,
                measured,
                count["passed"],
                count["failed"],
                count["unsupported"],
                lowering,
            )
            for (variant, path, measured, lowering), count in self._runs.items()
        ]

    def reasons(self) -> list[tuple[str, int]]:
        """Returns why cases are unsupported, with the count of each reason, most frequent first."""
        return Counter(each.reason for each in self.unsupported if each.reason).most_common()

    def closed_gaps(self) -> list[str]:
        """Globs of known gaps all of whose cases pass by now."""
        return [gap for gap, failed in self._matched.items() if not failed]

    def as_data(self) -> dict[str, Any]:
        """Returns the whole report as plain data, for JSON."""
        return {
            "cases": self.counts,
            "operations": self.operations(),
            "runs": self.runs(),
            "failures": self.failures,
            "known_gaps": self.gaps,
            "closed_gaps": self.closed_gaps(),
            "unsupported": self.unsupported,
        }

    def _add_failure(self, result: CaseResult, gap: str | None) -> None:
        reasons = []
        for run in result.runs:
            if run.outcome is CaseOutcome.FAILED:
                way = f", {run.path.value}" if run.path else ""
                way += ", measured" if run.measured else ""
                way += f", in {run.lowering}" if run.lowering else ""
                reasons.append(f"{run.variant.value}{way}: {run.reason}")
        failure = Failure(
            result.name,
            result.source,
            result.operations,
            tuple(reasons),
            "" if gap is None else self._gaps[gap],
        )
        (self.failures if gap is None else self.gaps).append(failure)
        if gap is not None:
            self._matched[gap] += 1


def _gap_of(name: str, gaps: Mapping[str, str]) -> str | None:
    """The first glob among the known gaps that matches a case; None if it is to pass."""
    return next((glob for glob in gaps if fnmatchcase(name, glob)), None)
