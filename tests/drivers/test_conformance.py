"""The conformance cases on every driver, one test for each spec: cases x devices.

Known gaps are listed by the driver itself, with reasons; one that is closed must be taken off.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Sequence
from pathlib import Path as FilePath

import pytest

import nnasync as nn
from nnasync.conformance import Path, Report, Runner, driver_facts
from nnasync.conformance.cases import parse_case
from nnasync.drivers import DRIVERS

FOLDER = FilePath(__file__).resolve().parents[3] / "shared" / "cts"
COMPUTING = [name for name in DRIVERS if name != "null"]
"""The null device computes nothing, so it passes nothing."""
COMPLETE = ("nnasync-reference",)
"""Devices to which no case may be unsupported."""


@functools.cache
def lines_by_spec() -> dict[str, list[tuple[str, bytes]]]:
    """The lines of all case files, with the names of their files."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for path in sorted(FOLDER.glob("*.jsonl.gz")):
        with gzip.open(path) as file:
            for line in file:
                head = line[: line.index(b'"main"')].rstrip(b", ") + b"}"
                found.setdefault(json.loads(head)["spec"], []).append((path.name, line))
    return found


def parameters() -> list[object]:
    specs = sorted(lines_by_spec())
    if not specs:
        reason = "needs the reference data: there are no cases in ../shared/cts"
        return [pytest.param("", "", marks=pytest.mark.skip(reason), id="no-cases")]
    return [pytest.param(name, spec, id=f"{name}-{spec}") for name in COMPUTING for spec in specs]


def report_of(name: str, spec: str, *, paths: Sequence[Path], timing: bool) -> Report:
    facts = driver_facts(name)
    report = Report(facts.known_gaps)

    async def main() -> None:
        async with nn.open_runtime(devices=[name], options=nn.Options(cores=1)) as runtime:
            runner = Runner(
                runtime,
                runtime.device(name),
                paths=paths,
                timing=timing,
                exact_coupling=facts.exact_coupling,
            )
            for source, line in lines_by_spec()[spec]:
                report.add(await runner.run(parse_case(line, source)))

    nn.run(main)
    return report


def check(name: str, report: Report) -> None:
    told = [
        f"{failure.name}: {reason}" for failure in report.failures for reason in failure.reasons
    ]
    assert told == []
    assert report.closed_gaps() == []
    assert report.counts.passed or name not in COMPLETE
    if name in COMPLETE:
        assert [each.variant for each in report.runs() if each.unsupported] == []


@pytest.mark.parametrize(("name", "spec"), parameters())
def test_cases(name: str, spec: str) -> None:
    """As given, with dynamic output shapes, with a too small output, and as signed twins."""
    check(name, report_of(name, spec, paths=[Path.SYNC], timing=False))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "spec"), parameters())
def test_cases_on_every_path(name: str, spec: str) -> None:
    check(name, report_of(name, spec, paths=list(Path), timing=True))
