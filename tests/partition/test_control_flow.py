"""IF and WHILE in steps: what can be interpreted, who gets what, and the models of the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync._core.model.graph import Value
from nnasync._core.partition import (
    INTERPRETER,
    Assignment,
    CompositeEngine,
    Group,
    Support,
    all_bodies,
    all_steps,
    as_much_as_possible,
    assignment_of,
    body_model,
    cut,
    distribute,
    find_control_flow,
    grouped,
    reported_costs,
    split,
)
from nnasync._core.partition.assignment import Border
from nnasync._core.validation import validate_model
from nnasync.engine import Engine, Lowering, Plan
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import (
    Capabilities,
    ExecutionPreference,
    Model,
    OperandType,
    OperationType,
    PerformanceInfo,
    uniform_performance,
)
from tests.partition.control_flow_models import (
    BOOL8,
    RandomNest,
    branching,
    counting,
    engines,
    everything,
    number,
)
from tests.partition.models import FAST, SHAPE, chain, on_reference, row, run
from tests.validation.models import branching as one_if
from tests.validation.models import changed, looping, replace

FREE = Border(0, 0)


def tower(height: int, *, double: bool = False) -> Model:
    """IF in IF in IF: each subgraph refers to the next, from both branches if `double`."""

    def level(left: int) -> Any:
        def build(g: Any, flag: Value, x: Value) -> Value:
            if not left:
                return g.add(x, x)  # type: ignore[no-any-return]
            other = level(left - 1) if double else lambda h, f, v: h.mul(v, v)
            return g.cond(flag, level(left - 1), other, flag, x)  # type: ignore[no-any-return]

        return build

    builder = nn.ModelBuilder("tower")
    flag = builder.input("flag", (1,), type=BOOL8)
    x = builder.input("x", SHAPE)
    builder.output("y", level(height)(builder, flag, x))
    return builder.build()


# -- what can be interpreted


def test_control_flow_of_known_sizes_can_be_interpreted() -> None:
    found = find_control_flow(branching())
    assert found.main == {1}
    assert dict(found.bodies) == {0: frozenset(), 1: frozenset()}
    assert find_control_flow(chain(2)).main == frozenset()


def test_bodies_come_after_what_they_run() -> None:
    found = find_control_flow(tower(3))
    (index,) = found.main
    assert index == 0
    order = list(found.bodies)
    model = tower(3)
    for each in order:
        validate_model(body_model(model, each))
    with_flow = [each for each in order if found.bodies[each]]
    assert len(with_flow) == 2
    assert order.index(with_flow[0]) > 0


@pytest.mark.parametrize(
    "model",
    [
        one_if((2, 0), (2, 3)),
        one_if((2, 3), (2, 0)),
        one_if((), (2, 3)),
        looping((0,)),
    ],
    ids=["outer dimension", "inner dimension", "rank", "while"],
)
def test_unknown_sizes_keep_it_whole(model: Model) -> None:
    validate_model(model)
    found = find_control_flow(model)
    assert (found.main, dict(found.bodies)) == (frozenset(), {})
    with pytest.raises(InvalidArgument, match="operation 0 cannot be interpreted"):
        split(model, Assignment((INTERPRETER,), {0: (0,), 1: (0,)}))


def test_a_size_that_follows_from_others_is_known() -> None:
    model = branching()
    between = model.main.operations[0].outputs[0]
    open_shape = changed(model, between, dimensions=(0, 0))
    validate_model(open_shape)
    assert find_control_flow(open_shape).main == {1}


def test_what_grows_too_large_or_too_deep_stays_whole() -> None:
    assert find_control_flow(tower(8, double=True)).main == {0}
    assert find_control_flow(tower(16)).main == {0}
    huge = find_control_flow(tower(10, double=True))
    assert huge.main == {0}
    assert not any(huge.bodies.values())
    assert find_control_flow(tower(17)).main == frozenset()


def test_a_body_has_only_what_it_refers_to() -> None:
    model = tower(2)
    numbers = find_control_flow(model).bodies
    sizes = [len(body_model(model, each).referenced) for each in numbers]
    assert sorted(sizes) == [0, 0, 0, 2]
    assert body_model(model, 0).operand_values is model.operand_values


# -- who gets what


def flat(model: Model, devices: int, prices: Sequence[float] | None = None) -> Any:
    """Each operation costs the same on a device."""

    def rate(place: Model) -> list[list[float]]:
        each = prices or [1.0] * devices
        return [[each[device]] * len(place.main.operations) for device in range(devices)]

    return rate


def plain(model: Model, *numbers: int) -> Support:
    """A device that takes operations, but no IF or WHILE; of bodies only these."""
    found = everything(model)
    return Support(found.main, {n: row for n, row in found.bodies.items() if n in numbers})


def test_without_a_device_for_the_whole_it_is_interpreted() -> None:
    model = branching()
    found = distribute(model, [plain(model, 0), plain(model, 1)], flat(model, 2))
    assert found == Assignment((0, INTERPRETER, 0), {0: (0, 0), 1: (1, 1)})
    assert found.devices == (0, 1)


def test_the_reference_gives_up_the_whole_where_another_takes_a_part() -> None:
    model = branching()
    support = [everything(model, flow=True), plain(model, 1)]
    prices = [10.0, 1.0]
    found = distribute(model, support, flat(model, 2, prices), reference=0, border=FREE)
    assert found == Assignment((1, INTERPRETER, 1), {0: (0, 0), 1: (1, 1)})


def test_the_reference_keeps_what_would_all_be_its_own() -> None:
    model = branching()
    support = [everything(model, flow=True), plain(model)]
    found = distribute(model, support, flat(model, 2, [10.0, 1.0]), reference=0, border=FREE)
    assert found == Assignment((1, 0, 1))


def test_a_better_device_for_the_whole_keeps_it_whole() -> None:
    model = branching()
    support = [everything(model, flow=True), everything(model, flow=True)]
    found = distribute(model, support, flat(model, 2, [2.0, 1.0]), reference=0, border=FREE)
    assert found == Assignment((1, 1, 1))


def test_an_operation_in_a_body_that_nobody_takes() -> None:
    model = branching()
    with pytest.raises(GeneralFailure, match=r"2 devices supports operation 1 \(IF\), nor all"):
        distribute(model, [plain(model, 0), plain(model)], flat(model, 2))
    unknown = one_if((2, 0), (2, 3))
    with pytest.raises(GeneralFailure, match="a size that is not known keeps it whole"):
        distribute(unknown, [Support((False,))], flat(unknown, 1))


def test_as_much_as_possible() -> None:
    model = branching()
    found = as_much_as_possible(model, plain(model, 1))
    assert found == Assignment((0, INTERPRETER, 0), {0: (1, 1), 1: (0, 0)})
    assert as_much_as_possible(model, plain(model)) == Assignment((0, 1, 0))
    whole = as_much_as_possible(model, everything(model, flow=True))
    assert whole == Assignment((0, 0, 0))


def test_as_much_as_possible_looks_into_all_depths() -> None:
    model = tower(2)
    last = next(n for n, inner in find_control_flow(model).bodies.items() if not inner)
    found = as_much_as_possible(model, plain(model, last))
    assert found.main == (INTERPRETER,)
    assert set(found.devices) == {0, 1}


# -- costs


def figures(time: float, flow: float) -> Capabilities:
    info, control = PerformanceInfo(time, time), PerformanceInfo(flow, flow)
    return Capabilities(info, info, uniform_performance(info), control, control)


def test_costs_of_control_flow() -> None:
    """IF: its own and the mean of its branches; WHILE: its own and three turns."""
    devices = [figures(1, 2), figures(3, 4)]
    own = 500.0
    model = branching()
    inner = [reported_costs(body_model(model, each), devices) for each in (0, 1)]
    found = reported_costs(model, devices)
    for device, flow in enumerate((2, 4)):
        branches = sum(sum(rows[device]) for rows in inner)
        assert found[device][1] == pytest.approx(flow * own + branches / 2)
    model = counting()
    inner = [reported_costs(body_model(model, each), devices) for each in (0, 1)]
    found = reported_costs(model, devices)
    for device, flow in enumerate((2, 4)):
        turn = sum(sum(rows[device]) for rows in inner)
        assert found[device][0] == pytest.approx(flow * own + 3 * turn)


def test_a_device_without_a_figure_for_it_is_the_last_resort() -> None:
    ((_, cost, _),) = reported_costs(branching(), [figures(1, math.inf)])
    assert cost == math.inf


# -- steps


def test_an_interpreted_operation_is_a_step_by_itself() -> None:
    model = branching()
    assert grouped(model, (0, INTERPRETER, 0)) == (
        Group(0, (0,)),
        Group(INTERPRETER, (1,)),
        Group(0, (2,)),
    )
    assert grouped(counting(), (INTERPRETER,)) == (Group(INTERPRETER, (0,)),)
    with pytest.raises(InvalidArgument, match="no device -2"):
        grouped(model, (0, -2, 0))


def test_steps_within_bodies() -> None:
    model = branching()
    wanted = Assignment((0, INTERPRETER, 0), {0: (0, 1), 1: (1, 1)})
    parts = split(model, wanted)
    assert [len(step.bodies) for step in parts.steps] == [0, 2, 0]
    then, otherwise = parts.steps[1].bodies
    assert [step.device for step in then.steps] == [0, 1]
    assert [step.operations for step in otherwise.steps] == [(0, 1)]
    assert (then.subgraph, otherwise.subgraph, parts.subgraph) == (0, 1, -1)
    assert all_bodies(parts) == (then, otherwise)
    assert all_steps(parts) == (*parts.steps, *then.steps, *otherwise.steps)
    assert assignment_of(parts) == wanted


def test_a_body_that_is_run_twice_is_split_once() -> None:
    model = tower(3, double=True)
    parts = split(model, distribute(model, [plain(model, *range(99))], flat(model, 1)))
    numbers = [each.subgraph for each in all_bodies(parts)]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("seed", range(6))
def test_steps_are_legal_models_without_foreign_subgraphs(seed: int) -> None:
    model = RandomNest(seed).model
    support = [everything(model)] * 2
    prices = iter(range(10_000))

    def rate(place: Model) -> list[list[float]]:
        count = len(place.main.operations)
        return [[float(next(prices) % 7) for _ in range(count)] for _ in range(2)]

    parts = split(model, distribute(model, support, rate, border=FREE))
    for step in all_steps(parts):
        validate_model(step.model)
        assert step.model.operand_values is model.operand_values
        assert bool(step.model.referenced) == bool(step.bodies)
    for body in all_bodies(parts):
        validate_model(body.model)


@pytest.mark.parametrize(
    ("assignment", "text"),
    [
        (Assignment((INTERPRETER, 0, 0)), "operation 0 cannot be interpreted"),
        (Assignment((0, INTERPRETER, 0)), "nothing is said of its subgraph 0"),
        (Assignment((0, INTERPRETER, 0), {0: (0, 0)}), "nothing is said of its subgraph 1"),
        (
            Assignment((0, INTERPRETER, 0), {0: (0, INTERPRETER), 1: (0, 0)}),
            "subgraph 0: operation 1 cannot be interpreted",
        ),
        (Assignment((0, INTERPRETER, 0), {0: (0,), 1: (0, 0)}), "1 operations are assigned"),
    ],
)
def test_an_assignment_that_makes_no_sense(assignment: Assignment, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        split(branching(), assignment)


def test_cutting_needs_bodies() -> None:
    with pytest.raises(InvalidArgument, match="nothing is said of its subgraph 0"):
        cut(counting(), [Group(INTERPRETER, (0,))])


# -- as an engine


class Lowered(ReferenceEngine):
    """Notes what it compiles, with which lowering."""

    name = "lowered"

    def __init__(self) -> None:
        super().__init__()
        self.cores = 1
        self.compiled: list[tuple[int, str | None]] = []

    def lowerings(self, model: Model, preference: ExecutionPreference) -> Sequence[Lowering]:
        return [Lowering("plain"), Lowering("fast")]

    def compile(  # type: ignore[override]
        self, model: Model, preference: ExecutionPreference, lowering: Lowering | None = None
    ) -> Plan:
        name = None if lowering is None else lowering.name
        self.compiled.append((len(model.main.operations), name))
        return super().compile(model, preference)


def test_each_body_is_compiled_once_with_the_lowering_of_its_step() -> None:
    model, engine = branching(), Lowered()
    parts = split(model, Assignment((0, INTERPRETER, 0), {0: (0, 0), 1: (1, 1)}))
    others: list[Engine] = [engine, ReferenceEngine()]
    composite = CompositeEngine(parts, others, {0: Lowering("fast"), 3: Lowering("plain")})
    assert composite.name == "lowered+nnasync-reference"
    plan = composite.compile(model, FAST)
    assert engine.compiled == [(1, "fast"), (2, "plain"), (1, None)]
    inputs = [np.array([True]), row()]
    assert (run(plan, model, inputs)[0] == on_reference(model, inputs)[0]).all()
    with pytest.raises(InvalidArgument, match="lowering for step 1, which is not there"):
        CompositeEngine(parts, others, {1: Lowering("fast")})


def test_the_interpreter_supports_what_its_steps_do() -> None:
    class Picky(ReferenceEngine):
        def supported_operations(self, model: Model) -> list[bool]:
            return [each.type != OperationType.MUL for each in model.main.operations]

    model = branching()
    parts = split(model, Assignment((0, INTERPRETER, 0), {0: (0, 1), 1: (1, 1)}))
    assert CompositeEngine(parts, engines(parts)).supported_operations(model) == [True] * 3
    refusing = CompositeEngine(parts, [ReferenceEngine(), Picky()])
    assert refusing.supported_operations(model) == [True, False, True]


def test_an_engine_that_fails_in_a_body_is_named() -> None:
    class Broken(NullEngine):
        def compile(self, model: Model, preference: ExecutionPreference) -> Any:
            raise RuntimeError("out of order")

    model = branching()
    parts = split(model, Assignment((0, INTERPRETER, 0), {0: (0, 0), 1: (1, 1)}))
    with pytest.raises(
        GeneralFailure, match=r"step 4 \(2 operations from 0 to 1\) on null failed: .*out"
    ):
        CompositeEngine(parts, [ReferenceEngine(), Broken()]).compile(model, FAST)


def test_outputs_that_nobody_reads_and_branches_that_are_the_same() -> None:
    """The count of the loop is dropped; both branches are one subgraph."""
    builder = nn.ModelBuilder("dead")
    x = builder.input("x", SHAPE)

    def goes_on(g: Any, count: Value, total: Value) -> Value:
        return g.operation(OperationType.LESS, count, number(3))  # type: ignore[no-any-return]

    def turn(g: Any, count: Value, total: Value) -> tuple[Value, Value]:
        return g.add(count, number(1)), g.add(total, total)

    _, total = builder.while_loop(goes_on, turn, np.zeros(1, np.float32), x)
    builder.output("y", builder.add(total, x))
    model = builder.build()
    parts = split(model, distribute(model, [everything(model)], flat(model, 1)))
    plan = CompositeEngine(parts, engines(parts)).compile(model, FAST)
    assert run(plan, model, [row()])[0].tolist() == [[9, 18, 27, 36]]


def test_a_relaxed_model_stays_relaxed_inside() -> None:
    model = replace(branching(), relax_computation_float32_to_float16=True)
    parts = split(model, distribute(model, [everything(model)], flat(model, 1)))
    assert all(step.model.relax_computation_float32_to_float16 for step in all_steps(parts))


def test_scalars_and_constants_of_the_outer_model_are_inputs_of_a_branch() -> None:
    builder = nn.ModelBuilder("constants")
    which = builder.input("which", (1,), type=OperandType.TENSOR_BOOL8)
    table = builder.constant(np.arange(4, dtype=np.float32).reshape(SHAPE))
    y = builder.cond(which, lambda g, t: g.add(t, t), lambda g, t: g.mul(t, number(5)), table)
    builder.output("y", y)
    model = builder.build()
    parts = split(model, distribute(model, [everything(model)], flat(model, 1)))
    plan = CompositeEngine(parts, engines(parts)).compile(model, FAST)
    assert run(plan, model, [np.array([True])])[0].tolist() == [[0, 2, 4, 6]]
    assert run(plan, model, [np.array([False])])[0].tolist() == [[0, 5, 10, 15]]
