"""The conformance cases on every driver, a test for each family of specs: cases x devices.

Known gaps are listed by the driver itself, with reasons. Engines take long to compile, so that the
default suite gives them a sample of the cases; the slow one gives them all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

import pytest

import nnasync as nn
from nnasync._core.drivers import DRIVERS, is_installed
from nnasync.conformance import Path, Report, Runner, driver_facts
from nnasync.conformance.case_lines import decoded_head, read_lines
from nnasync.conformance.cases import case_files, parse_case

FOLDER = FilePath(__file__).resolve().parents[3] / "shared" / "cts"
COMPUTING = [name for name in DRIVERS if DRIVERS[name].computes and is_installed(name)]
"""The null device computes nothing, so it passes nothing."""
SAMPLE = 24
"""One in so many cases of each spec goes to an engine by default, and the first one always."""
COMPLETE = ("nnasync-reference",)
"""Devices to which no case may be unsupported."""


def lines() -> Iterator[tuple[str, str, bytes]]:
    """Spec, file and text of each case."""
    for path in case_files(FOLDER):
        for number, line in read_lines(path):
            yield decoded_head(line, f"{path.name}:{number}").spec, path.name, line


def family_of(spec: str) -> str:
    """Specs of one operation mostly begin alike: a device is opened once for all of them."""
    return spec.partition("_")[0]


@functools.cache
def lines_by_family() -> dict[str, dict[str, list[tuple[str, bytes]]]]:
    """All of them, family by family and spec by spec, to be parsed by the test of their family."""
    found: dict[str, dict[str, list[tuple[str, bytes]]]] = {}
    for spec, source, line in lines():
        found.setdefault(family_of(spec), {}).setdefault(spec, []).append((source, line))
    return found


def parameters() -> list[object]:
    if not FOLDER.is_dir():
        reason = "needs the reference data: there are no cases in ../shared/cts"
        return [pytest.param("", "", marks=pytest.mark.skip(reason), id="no-cases")]
    families = sorted(lines_by_family())
    return [pytest.param(n, family, id=f"{n}-{family}") for n in COMPUTING for family in families]


PARAMETERS = parameters()


def report_of(
    name: str, family: str, *, paths: Sequence[Path], timing: bool, every: int = 1
) -> Report:
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
            for cases in lines_by_family()[family].values():
                for source, line in cases[::every]:
                    report.add(await runner.run(parse_case(line, source)))

    nn.run(main)
    return report


def check(name: str, report: Report) -> None:
    told = [
        f"{failure.name}: {reason}" for failure in report.failures for reason in failure.reasons
    ]
    assert told == []
    if name in COMPLETE:
        assert report.unsupported == []
        assert [run.variant for run in report.runs() if run.unsupported] == []


@pytest.mark.parametrize(("name", "family"), PARAMETERS)
def test_cases(name: str, family: str) -> None:
    """As given, with dynamic output shapes, with a too small output, and as signed twins."""
    every = 1 if name in COMPLETE else SAMPLE
    check(name, report_of(name, family, paths=[Path.SYNC], timing=False, every=every))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), PARAMETERS)
def test_cases_on_every_path(name: str, family: str) -> None:
    check(name, report_of(name, family, paths=list(Path), timing=True))
