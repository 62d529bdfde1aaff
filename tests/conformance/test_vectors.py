"""The project's own cases, which come with the package, and networks in `tests/vectors`."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers import DRIVERS, is_installed
from nnasync.cli import demo_data
from nnasync.conformance import OWN_CASES, Report, Runner, driver_facts
from nnasync.conformance.cases import Case, parse_case, read_cases
from nnasync.hal import Array, OperandLifeTime, OperationType
from nnasync.kernels import OPERATIONS

FOLDER = Path(__file__).resolve().parent.parent / "vectors"
REFERENCE = "nnasync-reference"
ENGINES = [name for name in DRIVERS if name not in ("null", REFERENCE) and is_installed(name)]
SAMPLE = 30
"""One in so many of the cases that an engine agreed with is put to it again by default."""
CONTROL_FLOW = {OperationType.IF, OperationType.WHILE}


@functools.cache
def cases() -> tuple[Case, ...]:
    return tuple(read_cases(OWN_CASES))


@functools.cache
def agreed() -> dict[str, list[str]]:
    """Which engines agreed with each case when it was made."""
    verdicts = msgspec.json.decode((FOLDER / "verdicts.json").read_bytes())
    found: dict[str, list[str]] = verdicts["agreed"]
    return found


def report_of(name: str, chosen: list[Case]) -> Report:
    facts = driver_facts(name)
    report = Report(facts.known_gaps)

    async def main() -> None:
        async with nn.open_runtime(devices=[name], options=nn.Options(cores=1)) as runtime:
            device = runtime.device(name)
            runner = Runner(runtime, device, exact_coupling=facts.exact_coupling)
            for case in chosen:
                report.add(await runner.run(case))

    nn.run(main)
    return report


# -- operations


def types_of(case: Case) -> tuple[OperationType, tuple[int | None, ...], tuple[int, ...]]:
    """The only operation of a case, the types of its inputs and outputs."""
    main = case.model.main
    (operation,) = main.operations
    operands = [main.operands[index] for index in operation.inputs]
    omitted = OperandLifeTime.NO_VALUE
    return (
        OperationType(operation.type),
        tuple(None if each.lifetime == omitted else each.type for each in operands),
        tuple(main.operands[index].type for index in operation.outputs),
    )


def test_every_signature_has_a_case_and_every_type_two() -> None:
    drawn = [types_of(each) for each in cases() if not CONTROL_FLOW & set(operations_of(each))]
    found = {type: [each for each in drawn if each[0] == type] for type in OPERATIONS}
    for type, operation in OPERATIONS.items():
        for signature in operation.signatures:
            error_text = f"{type.name} {signature}: python -m scripts.make_vectors draws cases anew"
            assert any(signature.accepts(i, o) for _, i, o in found[type]), error_text
    types = Counter((type, inputs[0]) for type, inputs, _ in drawn)
    wanted = {(t, s.inputs[0].type) for t, o in OPERATIONS.items() for s in o.signatures}
    assert {key for key, count in types.items() if count >= 2} >= wanted


def test_control_flow_has_two_cases_each() -> None:
    counts = Counter(type for case in cases() for type in operations_of(case))
    assert {counts[type] for type in CONTROL_FLOW} == {2}


def operations_of(case: Case) -> list[OperationType]:
    return [OperationType(each.type) for each in case.model.main.operations]


def test_the_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000


def test_every_case_has_a_verdict() -> None:
    assert [case.name for case in cases()] == list(agreed())


def test_the_reference_device_computes_all() -> None:
    report = report_of(REFERENCE, list(cases()))
    assert (report.failures, report.unsupported) == ([], [])


@pytest.mark.parametrize("name", ENGINES)
def test_engines_still_agree(name: str) -> None:
    chosen = [case for case in cases() if name in agreed()[case.name]]
    assert report_of(name, chosen[::SAMPLE]).failures == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_engines_agree_with_all_that_they_take(name: str) -> None:
    assert report_of(name, list(cases())).failures == []


# -- networks


def computed(device: str, name: str, inputs: Array) -> Array:
    """The scores of a network of the demo, its state carried from input to input.

    What a device does not take is computed by the reference device.
    """
    devices = list(dict.fromkeys([device, REFERENCE]))

    async def main() -> list[Array]:
        options = nn.Options(cores=1, competition_budget_ms=0)
        async with nn.open_runtime(devices=devices, options=options) as runtime:
            net = await runtime.compile(nn.load(demo_data.path(f"{name}.nnm")))
            try:
                async with net.burst() as burst:
                    return [np.array(await burst(each)).reshape(-1) for each in inputs]
            finally:
                await net.close()

    return np.stack(nn.run(main))


def given(name: str) -> tuple[Array, Array]:
    """Inputs as a network of the demo takes them, and the scores in float64."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
        inputs, outputs = archive["inputs"], archive["outputs"]
    if name == "digits":
        return (inputs / 255.0).astype(np.float32).reshape(-1, 1, 64, 64, 1), outputs
    return (inputs / 32768.0).astype(np.float32)[:, None], outputs


@pytest.mark.parametrize("name", ["digits", "words"])
@pytest.mark.parametrize("device", [REFERENCE, *ENGINES])
def test_networks(device: str, name: str) -> None:
    inputs, expected = given(name)
    assert len(inputs) == len(expected) >= 6
    assert len(set(expected.argmax(axis=1))) > 1
    np.testing.assert_allclose(computed(device, name, inputs), expected, atol=1e-4)


# -- the script that made them


def test_cases_can_be_drawn_anew() -> None:
    """A few of them; which ones, the samplers decide, which change from time to time."""
    drawing = importlib.import_module("scripts.vectors.drawing")
    make = importlib.import_module("scripts.make_vectors")
    lines = [next(drawing.drawn_lines(*each)) for each in [*drawing.wanted()][::SAMPLE]]
    report = report_of(REFERENCE, [parse_case(make.encoded(line)) for line in lines])
    assert (report.failures, report.unsupported) == ([], [])


@pytest.mark.parametrize("name", ["digits", "words"])
def test_outputs_of_networks_are_computed_again_as_they_are(name: str) -> None:
    networks = importlib.import_module("scripts.vectors.networks")
    inputs, outputs = getattr(networks, name)()
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(inputs, archive["inputs"])
        np.testing.assert_allclose(outputs, archive["outputs"], rtol=1e-9)
