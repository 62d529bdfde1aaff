"""The conformance cases on every driver, a test for each family of specs: cases x devices.

Known gaps are listed by the driver itself, with reasons. The generator of the official cases writes
each example in up to eight forms, whose names say so: computed in float16, constants as inputs,
inputs from another operation. The default suite gives a device that has to support everything one
form of every third example, in turn; engines, which take longer to compile, get a sample, of which
the slowest to compile gets one case of each kind. The slow suite gives all cases to all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path as FilePath

import pytest

import nnasync as nn
from nnasync._core.drivers import DRIVERS, is_installed
from nnasync.conformance import Path, Report, Runner, driver_facts
from nnasync.conformance.case_lines import decoded_head, read_lines
from nnasync.conformance.cases import Case, case_files, parse_case

FOLDER = FilePath(__file__).resolve().parents[3] / "shared" / "cts"
COMPUTING = [name for name in DRIVERS if DRIVERS[name].computes and is_installed(name)]
"""The null device computes nothing, so it passes nothing."""
COMPLETE = ("nnasync-reference",)
"""Devices to which no case may be unsupported."""
SLOW = ("openvino-cpu",)
"""Engines that take 10 to 30 ms to compile a single operation."""
EXAMPLES = 3
"""One in so many examples of a family goes to a device that has to support everything."""
SAMPLE = 72
"""One in so many cases of each spec goes to an engine by default, and the first one always."""
FORMS = ("_all_inputs_as_internal", "_all_tensors_as_inputs", "_relaxed")
"""What the name of a case says of the form of its example, in this order."""


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


def default_cases(name: str, family: str) -> Iterable[Case]:
    """Those of a family that the default suite gives to a device."""
    if name in COMPLETE:
        return itertools.islice(one_form_of_each_example(family), 0, None, EXAMPLES)
    sample = all_cases(family, every=SAMPLE)
    return one_of_each_kind(sample) if name in SLOW else sample


def all_cases(family: str, *, every: int = 1) -> Iterator[Case]:
    """One in so many cases of each spec, the first one always."""
    for cases in lines_by_family()[family].values():
        for source, line in cases[::every]:
            yield parse_case(line, source)


def one_form_of_each_example(family: str) -> Iterator[Case]:
    """The first form of the first example, the second of the second, and so on."""
    examples: dict[tuple[str, str], list[Case]] = {}
    for case in all_cases(family):
        example = functools.reduce(lambda name, form: name.replace(form, ""), FORMS, case.name)
        examples.setdefault((case.spec, example), []).append(case)
    for number, forms in enumerate(examples.values()):
        yield forms[number % len(forms)]


def one_of_each_kind(cases: Iterable[Case]) -> Iterable[Case]:
    """The first case of each kind."""
    kinds: dict[object, Case] = {}
    for case in cases:
        kinds.setdefault(kind_of(case), case)
    return kinds.values()


def kind_of(case: Case) -> object:
    """What a driver chooses a lowering by, but for sizes and values: operations, types, ranks."""
    operations = []
    for graph in (case.model.main, *case.model.referenced):
        for operation in graph.operations:
            operands = [graph.operands[index] for index in operation.inputs]
            kinds = tuple((each.type, each.lifetime, len(each.dimensions)) for each in operands)
            operations.append((operation.type, kinds))
    return case.expect_failure, tuple(operations)


def parameters() -> list[object]:
    if not FOLDER.is_dir():
        reason = "needs the reference data: there are no cases in ../shared/cts"
        return [pytest.param("", "", marks=pytest.mark.skip(reason), id="no-cases")]
    families = sorted(lines_by_family())
    return [pytest.param(n, family, id=f"{n}-{family}") for n in COMPUTING for family in families]


PARAMETERS = parameters()


def report_of(name: str, cases: Iterable[Case], *, paths: Sequence[Path], timing: bool) -> Report:
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
            for case in cases:
                report.add(await runner.run(case))

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
    cases = default_cases(name, family)
    check(name, report_of(name, cases, paths=[Path.SYNC], timing=False))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), PARAMETERS)
def test_cases_on_every_path(name: str, family: str) -> None:
    check(name, report_of(name, all_cases(family), paths=list(Path), timing=True))
