"""Random graphs over random devices: the very same results as without partitioning.

Devices are reference engines that say at random what they support; costs are random too. What all
of them refuse, the first one takes, so that every graph has a plan.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.partition import (
    CompositeEngine,
    Group,
    PartitionedModel,
    cut,
    grouped,
    operation_weights_ns,
    segments,
    split,
)
from nnasync._core.partition.assignment import Border, cheapest_way
from nnasync._core.validation import validate_model
from nnasync.conformance.random_graphs import RandomGraph, Size, generate, model_of
from nnasync.conformance.random_graphs.equivalents import Form, in_form
from nnasync.conformance.random_graphs.graph_criteria import difference
from nnasync.conformance.random_graphs.reference import evaluate, outputs_of, strict
from nnasync.engine import BoundCall, OutputBuffer, Plan, StopFlag, Target
from nnasync.errors import OutputInsufficientSize
from nnasync.hal import Array, Model
from tests.engine_device.rig import in_threads
from tests.partition.models import FAST
from tests.rigs import LateStop

SMALL, LARGE = 150, 75
"""Together the number of cases that the official suite has."""
ALWAYS = 40
"""So many of each; the slow suite has the others."""


def cases(size: Size, count: int) -> list[Any]:
    """So many graphs of a size, the later ones for the slow suite."""
    return [
        pytest.param(
            size,
            seed,
            id=f"{size.name.lower()}-{seed}",
            marks=[] if seed < ALWAYS else [pytest.mark.slow],
        )
        for seed in range(count)
    ]


CASES = cases(Size.SMALL, SMALL) + cases(Size.LARGE, LARGE)
FEW = [*CASES[:8], *CASES[SMALL : SMALL + 8]]
FORMS = [pytest.param(form, id=form.value) for form in Form]


def partitioned(model: Model, seed: int) -> PartitionedModel:
    """The model on two to five devices of random abilities and costs."""
    numbers = random.Random(f"devices {seed}")
    count, devices = len(model.main.operations), numbers.randint(2, 5)
    support = [[numbers.random() < 0.6 for _ in range(count)] for _ in range(devices)]
    support[0] = [
        not any(row[index] for row in support[1:]) or mine for index, mine in enumerate(support[0])
    ]
    costs = [[numbers.random() for _ in range(count)] for _ in range(devices)]
    border = Border(numbers.choice([0, 0.1, 1]), 0)
    return split(model, cheapest_way(model, support, costs, border)[0])


def compiled(parts: PartitionedModel) -> Plan:
    devices = 1 + max(step.device for step in parts.steps)
    engine = CompositeEngine(parts, [ReferenceEngine() for _ in range(devices)])
    assert all(engine.supported_operations(parts.model))
    return engine.compile(parts.model, FAST)


def target(graph: RandomGraph, index: int, nbytes: int = 1 << 16) -> Target:
    """Where an output goes: an array full of a pattern, or memory where the shape is unknown."""
    operand = graph.operands[index]
    dtype = hal.dtype_of(operand.type)
    if hal.is_fully_specified(operand.type, operand.shape):
        size = hal.byte_size(operand.type, operand.shape)
        return np.full(size, 0xA5, np.uint8).view(dtype).reshape(operand.shape)
    return OutputBuffer(np.full(nbytes, 0xA5, np.uint8), dtype, operand.shape)


def value(target: Target) -> Array:
    if isinstance(target, OutputBuffer):
        array = target.array(target.shape)
        assert array is not None
        return array
    return target


def check(graph: RandomGraph, targets: Sequence[Target]) -> None:
    expected = outputs_of(graph, evaluate(graph))
    assert difference(graph, [value(each) for each in targets], expected) == ""


@pytest.mark.parametrize(("size", "seed"), CASES)
def test_a_partitioned_graph_gives_the_same(size: Size, seed: int) -> None:
    """In turn with known and unknown shapes, and with constants that come as inputs."""
    form = list(Form)[seed % len(Form)]
    graph = generate(size, seed)
    run, stated = in_form(graph, form)
    with strict():
        parts = partitioned(model_of(stated), seed)
        for step in parts.steps:
            validate_model(step.model)
        targets = [target(stated, index) for index in stated.outputs]
        call = compiled(parts).bind(run.input_values, targets)
        for _ in range(2):
            assert call.run(StopFlag())
            check(graph, targets)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_each_operation_on_a_device_of_its_own(size: Size, seed: int) -> None:
    graph = generate(size, seed)
    model = model_of(graph)
    parts = split(model, range(len(model.main.operations)))
    assert len(parts.steps) == len(model.main.operations)
    targets = [target(graph, index) for index in graph.outputs]
    assert compiled(parts).bind(graph.input_values, targets).run(StopFlag())
    check(graph, targets)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_segments_give_the_same(size: Size, seed: int) -> None:
    graph = generate(size, seed)
    model = model_of(graph)
    weights = operation_weights_ns(model)
    parts = cut(model, segments(model, weights, sum(weights) / 4))
    targets = [target(graph, index) for index in graph.outputs]
    assert compiled(parts).bind(graph.input_values, targets).run(StopFlag())
    check(graph, targets)


class Often(StopFlag):
    """A flag that is up at each third look: a run comes as far as one operation and stops."""

    def __init__(self) -> None:
        self.looks = 0
        super().__init__()

    @property
    def raised(self) -> int:
        self.looks += 1
        return int(self.looks % 3 == 0)

    @raised.setter
    def raised(self, value: int) -> None:
        pass


def runs_in_pieces(call: BoundCall, stop: StopFlag) -> int:
    """Run to the end, however often it is stopped; how often that was."""
    for stopped in range(10_000):
        if call.run(stop):
            return stopped
    raise AssertionError("the run makes no progress")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("size", "seed"), FEW)
def test_stopping_everywhere_changes_nothing(size: Size, seed: int, form: Form) -> None:
    graph = generate(size, seed)
    run, stated = in_form(graph, form)
    parts = partitioned(model_of(stated), seed)
    targets = [target(stated, index) for index in stated.outputs]
    call = compiled(parts).bind(run.input_values, targets)
    assert runs_in_pieces(call, Often()) >= len(parts.steps)
    check(graph, targets)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_rewinding_at_every_border_changes_nothing(size: Size, seed: int) -> None:
    graph = generate(size, seed)
    parts = partitioned(model_of(graph), seed)
    targets = [target(graph, index) for index in graph.outputs]
    call = compiled(parts).bind(graph.input_values, targets)
    for looks in range(40):
        stop = LateStop(looks)
        if call.run(stop):
            break
        call.rewind()
    assert call.run(StopFlag())
    check(graph, targets)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_two_calls_at_once(size: Size, seed: int) -> None:
    """Each in pieces, so that they meet in the midst."""
    graph = generate(size, seed)
    plan = compiled(partitioned(model_of(graph), seed))
    targets = [[target(graph, index) for index in graph.outputs] for _ in range(2)]
    calls = [plan.bind(graph.input_values, each) for each in targets]

    def work(number: int) -> None:
        for _ in range(3):
            runs_in_pieces(calls[number], Often())

    assert in_threads(2, work) == []
    for each in targets:
        check(graph, each)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_trimming_between_runs_changes_nothing(size: Size, seed: int) -> None:
    graph = generate(size, seed)
    plan = compiled(partitioned(model_of(graph), seed))
    targets = [target(graph, index) for index in graph.outputs]
    call = plan.bind(graph.input_values, targets)
    for _ in range(2):
        assert call.run(StopFlag())
        plan.trim()
    assert call.run(StopFlag())
    check(graph, targets)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_outputs_that_are_too_small_fit_at_the_second_try(size: Size, seed: int) -> None:
    graph = generate(size, seed)
    run, stated = in_form(graph, Form.UNKNOWN_SHAPES)
    plan = compiled(partitioned(model_of(stated), seed))
    targets = [target(stated, index, nbytes=1) for index in stated.outputs]
    sizes = [0] * len(targets)
    try:
        assert plan.bind(run.input_values, targets).run(StopFlag())
    except OutputInsufficientSize as error:
        sizes = [int(np.prod(shape.dimensions)) * 4 for shape in error.output_shapes]
        targets = [
            target(stated, index, nbytes=max(1, nbytes))
            for index, nbytes in zip(stated.outputs, sizes, strict=True)
        ]
        assert plan.bind(run.input_values, targets).run(StopFlag())
    check(graph, targets)


@pytest.mark.parametrize(("size", "seed"), FEW)
def test_fewer_steps_than_changes_of_device(size: Size, seed: int) -> None:
    """Grouping never makes more steps than the operations in their order would."""
    model = model_of(generate(size, seed))
    numbers = random.Random(seed)
    assignment = [numbers.randrange(3) for _ in model.main.operations]
    changes = 1 + sum(a != b for a, b in pairwise(assignment))
    groups: tuple[Group, ...] = grouped(model, assignment)
    assert len(groups) <= changes
