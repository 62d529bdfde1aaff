"""Counting results."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from nnasync._core.drivers import DRIVERS, Driver, driver_facts
from nnasync.conformance.paths import Path
from nnasync.conformance.result_counts import Counts, Report, _gap_of
from nnasync.conformance.results import CaseOutcome, CaseResult, Run, Variant
from nnasync.errors import InvalidArgument

PASSED = Run(Variant.AS_GIVEN, CaseOutcome.PASSED, Path.SYNC)
FAILED = Run(Variant.DYNAMIC, CaseOutcome.FAILED, Path.BURST, measured=True, reason="it is 3")
MISSING = Run(Variant.AS_GIVEN, CaseOutcome.UNSUPPORTED, reason="SUB: not here", missing=("SUB",))


def result(
    name: str, outcome: CaseOutcome, *runs: Run, operations: tuple[str, ...] = ("ADD",)
) -> CaseResult:
    return CaseResult(name, "spec", "some.jsonl", operations, outcome, 1, runs)


def report(gaps: dict[str, str] | None = None) -> Report:
    made = Report(gaps)
    made.add(result("add_1", CaseOutcome.PASSED, PASSED, PASSED))
    made.add(result("add_2", CaseOutcome.FAILED, PASSED, FAILED, operations=("ADD", "RELU")))
    made.add(result("sub_1", CaseOutcome.UNSUPPORTED, MISSING, operations=("SUB",)))
    return made


def test_counts_of_cases_and_operations() -> None:
    made = report()
    assert made.counts == Counts(passed=1, failed=1, unsupported=1)
    assert made.operations() == {
        "ADD": Counts(passed=1, failed=1),
        "RELU": Counts(failed=1),
        "SUB": Counts(unsupported=1),
    }


def test_counts_of_runs() -> None:
    counted = {(each.variant, each.path, each.measured): each for each in report().runs()}
    as_given = counted["as given", "sync", False]
    assert (as_given.passed, as_given.failed, as_given.unsupported) == (3, 0, 0)
    assert counted["dynamic output shapes", "burst", True].failed == 1
    assert counted["as given", "", False].unsupported == 1


def test_failures_have_their_reasons() -> None:
    (failure,) = report().failures
    assert failure.name == "add_2"
    assert failure.reasons == ("dynamic output shapes, burst, measured: it is 3",)


def test_known_gaps_are_no_failures() -> None:
    made = report({"add_2*": "sums are hard", "add_1": "fixed meanwhile", "other": "not run"})
    assert made.counts == Counts(passed=1, known_gaps=1, unsupported=1)
    assert made.failures == []
    (gap,) = made.gaps
    assert (gap.name, gap.gap) == ("add_2", "sums are hard")
    assert made.closed_gaps() == ["add_1"]


def test_data_is_json() -> None:
    data: dict[str, Any] = json.loads(msgspec.json.encode(report().as_data()))
    assert data["cases"] == {"passed": 1, "failed": 1, "unsupported": 1, "known_gaps": 0}
    assert data["operations"]["RELU"]["failed"] == 1
    missing = {
        "name": "sub_1",
        "source": "some.jsonl",
        "missing": ["SUB"],
        "reason": "SUB: not here",
    }
    assert data["unsupported"] == [missing]
    assert data["failures"][0]["reasons"] == ["dynamic output shapes, burst, measured: it is 3"]
    assert {run["path"] for run in data["runs"]} == {"sync", "burst", ""}


# -- what a driver says


def test_facts_of_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = driver_facts("nnasync-reference")
    assert facts.exact_coupling
    assert facts.known_gaps == {}
    assert not driver_facts("null").exact_coupling
    assert driver_facts("null").known_gaps == {}
    monkeypatch.setitem(DRIVERS, "other", Driver("nowhere:Engine", known_gaps={"a*": "b"}))
    assert driver_facts("other").known_gaps == {"a*": "b"}


def test_unknown_driver() -> None:
    with pytest.raises(InvalidArgument, match="no device 'none'; there are: litert-cpu"):
        driver_facts("none")


def test_first_gap_that_matches() -> None:
    gaps = {"conv*_quant8": "x", "conv*": "y"}
    assert _gap_of("conv2d_quant8", gaps) == "conv*_quant8"
    assert _gap_of("conv2d", gaps) == "conv*"
    assert _gap_of("add", gaps) is None
