"""Every engine behind the border: what passes in process passes in a process of its own."""

from __future__ import annotations

from pathlib import Path as FilePath

import anyio
import pytest

from nnasync._core.drivers import DRIVERS, is_installed
from nnasync.conformance import CaseOutcome, CaseResult, Path, Plan, Selection
from nnasync.conformance.hal_suite import SuitePlan
from nnasync.conformance.hal_suite.check import CheckResult, CheckVerdict
from nnasync.conformance.hal_suite.suite import GROUPS, run_suite
from nnasync.conformance.plan import run_plan

pytestmark = pytest.mark.slow

COMPUTING = [name for name in DRIVERS if DRIVERS[name].computes and is_installed(name)]
PART = 3


def outcomes(
    name: str, place: FilePath, *, isolate: bool, parts: int, paths: tuple[Path, ...]
) -> dict[tuple[str, str], CaseOutcome]:
    """How each case of a part ends."""
    found: dict[tuple[str, str], CaseOutcome] = {}

    def done(result: CaseResult) -> None:
        found[result.source, result.name] = result.outcome

    plan = Plan(str(place), name, Selection(part=PART, parts=parts), paths, isolate=isolate)
    anyio.run(run_plan, plan, done)
    return found


@pytest.mark.parametrize(
    ("parts", "paths"),
    [(50, (Path.SYNC,)), (500, tuple(Path))],
    ids=["synchronously", "every-path"],
)
@pytest.mark.parametrize("name", COMPUTING)
def test_cases_end_as_in_process(
    name: str, parts: int, paths: tuple[Path, ...], shared: FilePath
) -> None:
    here, there = (
        outcomes(name, shared / "cts", isolate=isolate, parts=parts, paths=paths)
        for isolate in (False, True)
    )
    assert len(here) > 5
    assert there == here


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "models"])
@pytest.mark.parametrize("name", COMPUTING)
def test_the_hal_suite(name: str, group: str) -> None:
    results: list[CheckResult] = []
    plan = SuitePlan(name, only=group, every=25, rounds=3, isolate=True)
    anyio.run(run_suite, plan, results.append)
    assert [each for each in results if each.verdict is CheckVerdict.PASSED]
    assert [each for each in results if each.verdict is CheckVerdict.FAILED] == []
