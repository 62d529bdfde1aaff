"""Random models with IF and WHILE, nested, over random devices: the very same results as whole.

And the official cases with control flow, in steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from nnasync import hal
from nnasync._core.accuracy import compare, golden_criterion
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.partition import (
    INTERPRETER,
    Assignment,
    CompositeEngine,
    PartitionedModel,
    all_steps,
    find_control_flow,
    split,
)
from nnasync._core.validation import validate_model
from nnasync.conformance.cases import Case, Selection, case_files, read_cases
from nnasync.conformance.random_graphs import RandomGraph, Size, generate
from nnasync.conformance.random_graphs.reference import strict
from nnasync.engine import OutputBuffer, Plan, StopFlag, Target
from nnasync.errors import MissedDeadlineTransient
from nnasync.hal import Array, Model
from tests.engine_device.rig import in_threads
from tests.partition.control_flow_models import (
    RandomNest,
    counting,
    engines,
    in_if,
    in_while,
    interpreted,
    randomly,
)
from tests.partition.models import FAST, row
from tests.rigs import LateStop

NESTS = 75
GRAPHS = 50
FEW = range(6)


def compiled(parts: PartitionedModel) -> Plan:
    engine = CompositeEngine(parts, engines(parts))
    assert all(engine.supported_operations(parts.model))
    return engine.compile(parts.model, FAST)


def inputs_of(model: Model, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    operands = [model.main.operands[index] for index in model.main.input_indexes]
    return [random.uniform(-1, 1, each.dimensions).astype(np.float32) for each in operands]


def targets_of(model: Model) -> list[Array]:
    """Arrays full of a pattern."""
    operands = [model.main.operands[index] for index in model.main.output_indexes]
    return [
        np.full(hal.byte_size(each.type, each.dimensions), 0xA5, np.uint8)
        .view(hal.dtype_of(each.type))
        .reshape(each.dimensions)
        for each in operands
    ]


def expected(model: Model, inputs: Sequence[Array | None]) -> list[bytes]:
    targets = targets_of(model)
    assert ReferenceEngine().compile(model, FAST).bind(inputs, targets).run(StopFlag())
    return [target.tobytes() for target in targets]


def found(targets: Sequence[Array]) -> list[bytes]:
    return [target.tobytes() for target in targets]


@pytest.mark.parametrize("seed", range(NESTS))
def test_a_nest_gives_the_same(seed: int) -> None:
    model = RandomNest(seed).model
    validate_model(model)
    parts = interpreted(model, seed)
    assert any(step.bodies for step in parts.steps)
    for step in all_steps(parts):
        validate_model(step.model)
    inputs, targets = inputs_of(model, seed), targets_of(model)
    call = compiled(parts).bind(inputs, targets)
    for _ in range(2):
        assert call.run(StopFlag())
        assert found(targets) == expected(model, inputs)


def around(graph: RandomGraph, kind: str, seed: int) -> tuple[Model, list[Array]]:
    """A random graph within an IF or a WHILE, and what it reads."""
    if kind == "if":
        return in_if(graph), [np.array([seed % 2 == 0]), *graph.input_values]
    model = in_while(graph)
    main = model.main
    zeros = [
        np.zeros(main.operands[index].dimensions, hal.dtype_of(main.operands[index].type))
        for index in main.input_indexes[: 1 + len(graph.outputs)]
    ]
    return model, [*zeros, *graph.input_values]


@pytest.mark.parametrize("kind", ["if", "while"])
@pytest.mark.parametrize("seed", range(GRAPHS))
def test_a_random_graph_inside_gives_the_same(seed: int, kind: str) -> None:
    """A graph whose output shapes only the run tells cannot be interpreted."""
    size = Size.LARGE if seed % 3 == 0 else Size.SMALL
    model, inputs = around(generate(size, seed), kind, seed)
    validate_model(model)
    with strict():
        parts = interpreted(model, seed)
        for step in all_steps(parts):
            validate_model(step.model)
        if not find_control_flow(model).main:
            assert not any(step.bodies for step in parts.steps)
            return
        assert [step.device for step in parts.steps] == [INTERPRETER]
        targets = targets_of(model)
        assert compiled(parts).bind(inputs, targets).run(StopFlag())
        assert found(targets) == expected(model, inputs)


@pytest.mark.parametrize("seed", FEW)
def test_stopping_everywhere_changes_nothing(seed: int) -> None:
    """A leg is not much longer than the looks that it takes to get back to the inmost step."""
    model = RandomNest(seed).model
    inputs, targets = inputs_of(model, seed), targets_of(model)
    call = compiled(interpreted(model, seed)).bind(inputs, targets)
    stops = 0
    while not call.run(LateStop(9)):
        stops += 1
        assert stops < 10_000
    assert stops
    assert found(targets) == expected(model, inputs)


@pytest.mark.parametrize("seed", FEW)
def test_rewinding_at_every_border_changes_nothing(seed: int) -> None:
    model = RandomNest(seed).model
    inputs, targets = inputs_of(model, seed), targets_of(model)
    call = compiled(interpreted(model, seed)).bind(inputs, targets)
    for looks in range(80):
        if call.run(LateStop(looks)):
            break
        call.rewind()
    assert call.run(StopFlag())
    assert found(targets) == expected(model, inputs)


@pytest.mark.parametrize("seed", FEW)
def test_two_calls_at_once_with_trimming_between(seed: int) -> None:
    model = RandomNest(seed).model
    plan = compiled(interpreted(model, seed))
    inputs = [inputs_of(model, seed + number) for number in range(2)]
    targets = [targets_of(model) for _ in range(2)]
    calls = [plan.bind(inputs[number], targets[number]) for number in range(2)]

    def work(number: int) -> None:
        for _ in range(3):
            while not calls[number].run(LateStop(15)):
                plan.trim()

    assert in_threads(2, work) == []
    for number in range(2):
        assert found(targets[number]) == expected(model, inputs[number])


def test_an_endless_loop_times_out_as_the_reference_does() -> None:
    model = counting(float("inf"))
    for plan in (ReferenceEngine().compile(model, FAST), compiled(interpreted(model, 1))):
        call = plan.bind([row()], targets_of(model))
        with pytest.raises(MissedDeadlineTransient, match=r"operation 0 \(WHILE\): .* 0.001 s"):
            call.run(StopFlag(1_000_000))
        call.rewind()


def test_an_endless_loop_can_be_stopped() -> None:
    model = counting(float("inf"))
    call = compiled(interpreted(model, 1)).bind([row()], targets_of(model))
    for looks in range(0, 100, 7):
        assert not call.run(LateStop(looks))
    call.rewind()


# -- official cases


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[Case]:
    """Those with control flow that are to succeed."""
    return list(_cases(shared))


def _cases(shared: Path) -> Iterator[Case]:
    for path in case_files(shared / "cts"):
        if path.name.startswith("V1_3"):
            for spec in ("if_*", "while_*"):
                yield from (
                    case
                    for case in read_cases(path, Selection(spec=spec))
                    if not case.expect_failure
                )


def target(model: Model, index: int, nbytes: int) -> Target:
    operand = model.main.operands[index]
    dtype = hal.dtype_of(operand.type)
    if hal.is_fully_specified(operand.type, operand.dimensions):
        return np.zeros(operand.dimensions, dtype)
    return OutputBuffer(np.zeros(nbytes, np.uint8), dtype, operand.dimensions)


def test_official_cases_in_steps(cases: Sequence[Case]) -> None:
    """Each operation within is on a device of its own in turn; those of unknown size stay whole."""
    in_steps = 0
    for number, case in enumerate(cases):
        model = case.model
        assignment = randomly(model, number % 20)
        has_flow = bool(find_control_flow(model).main)
        in_steps += has_flow
        assert (INTERPRETER in assignment.main) == has_flow
        check(case, assignment)
    assert len(cases) > 500
    assert in_steps > 300


def check(case: Case, assignment: Assignment) -> None:
    model = case.model
    outputs = [target(model, index, 1 << 12) for index in model.main.output_indexes]
    assert compiled(split(model, assignment)).bind(case.inputs, outputs).run(StopFlag())
    for given, wanted in zip(outputs, case.outputs, strict=True):
        array = given.array(given.shape) if isinstance(given, OutputBuffer) else given
        assert array is not None
        half = model.relax_computation_float32_to_float16
        criterion = golden_criterion(wanted.type, half=half, test=case.name)
        assert compare(array, wanted.value, wanted.type, criterion).fault == "", case.name
