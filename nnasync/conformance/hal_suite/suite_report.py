"""Counts of the HAL suite's checks per group, what failed, and why others were skipped."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nnasync.conformance.hal_suite.check import CheckResult, CheckVerdict
from nnasync.hal import Struct


class GroupCounts(Struct, frozen=True):
    """Numbers of checks by verdict."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


class SuiteReport:
    """Collects results."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._skipped: dict[str, Counter[str]] = {}
        self.failures: list[CheckResult] = []

    def add(self, result: CheckResult) -> None:
        """Count a result."""
        self._counts.setdefault(result.group, Counter())[result.verdict.value] += 1
        if result.verdict is CheckVerdict.FAILED:
            self.failures.append(result)
        elif result.verdict is CheckVerdict.SKIPPED:
            self._skipped.setdefault(result.group, Counter())[result.reason] += 1

    @property
    def counts(self) -> GroupCounts:
        """Returns the counts of all checks."""
        return GroupCounts(**sum(self._counts.values(), Counter()))

    def groups(self) -> dict[str, GroupCounts]:
        """Per group, in the order in which they were run."""
        return {group: GroupCounts(**counts) for group, counts in self._counts.items()}

    def skipped(self) -> dict[str, dict[str, int]]:
        """Per group, how many checks were skipped for each reason."""
        return {group: dict(reasons) for group, reasons in self._skipped.items()}

    def as_data(self) -> dict[str, Any]:
        """Returns the whole report as plain data, for JSON."""
        return {
            "checks": self.counts,
            "groups": self.groups(),
            "failures": self.failures,
            "skipped": self.skipped(),
        }
