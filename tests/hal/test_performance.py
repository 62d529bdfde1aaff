"""Performance figures of types and of whole operations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import hal
from nnasync.hal import (
    Capabilities,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandPerformance,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    Subgraph,
)

T = OperandType
NONE = PerformanceInfo()


def info(value: float) -> PerformanceInfo:
    return PerformanceInfo(value, value / 2)


def table(*types: OperandType) -> tuple[OperandPerformance, ...]:
    """Figures that are one more than the number of the type."""
    return tuple(OperandPerformance(type, info(type + 1)) for type in types)


def test_lookup_states_nothing_for_what_the_table_lacks() -> None:
    known = table(T.INT32, T.TENSOR_INT32, T.OEM)
    assert hal.lookup(known, T.INT32) == info(2)
    assert hal.lookup(known, T.FLOAT32) == NONE
    assert hal.lookup(known, T.TENSOR_QUANT8_ASYMM) == NONE
    assert hal.lookup(known, T.OEM) == info(10001)
    assert hal.lookup(known, T.TENSOR_OEM_BYTE) == NONE
    assert hal.lookup((), T.FLOAT32) == NONE
    assert NONE.exec_time == NONE.power_usage == math.inf


@given(st.sets(st.sampled_from(T)), st.sampled_from(T))
def test_lookup_finds_what_is_there_alone(types: set[OperandType], wanted: OperandType) -> None:
    found = hal.lookup(table(*sorted(types)), wanted)
    assert found == (info(wanted + 1) if wanted in types else NONE)


@given(st.lists(st.sampled_from(T)))
def test_update_keeps_the_table_sorted_and_its_types_once(types: list[OperandType]) -> None:
    known: tuple[OperandPerformance, ...] = ()
    for number, type in enumerate(types):
        known = hal.update(known, type, info(number))
        assert hal.lookup(known, type) == info(number)
    assert [entry.type for entry in known] == sorted(set(types))


def test_uniform_figures_are_those_of_all_types_but_subgraph() -> None:
    known = hal.uniform_performance(info(1))
    assert [entry.type for entry in known] == sorted(set(T) - {T.SUBGRAPH})
    assert {entry.info for entry in known} == {info(1)}
    assert [e.type for e in hal.uniform_performance(info(1), [T.INT32, T.FLOAT32])] == [0, 1]


CAPABILITIES = Capabilities(
    relaxed_float32_to_float16_performance_scalar=info(0.25),
    relaxed_float32_to_float16_performance_tensor=info(0.5),
    operand_performance=table(T.FLOAT32, T.TENSOR_FLOAT32, T.TENSOR_INT32, T.TENSOR_QUANT8_ASYMM),
    if_performance=info(100),
    while_performance=info(1000),
)


def test_relaxed_figures_are_those_of_float32() -> None:
    for type, relaxed in ((T.FLOAT32, info(0.25)), (T.TENSOR_FLOAT32, info(0.5))):
        assert hal.type_performance(CAPABILITIES, type) == info(type + 1)
        assert hal.type_performance(CAPABILITIES, type, relaxed=True) == relaxed
    assert hal.type_performance(CAPABILITIES, T.TENSOR_INT32, relaxed=True) == info(5)


def graph(*operations: tuple[int, ...]) -> Subgraph:
    """Operations on operands 0 float32, 1 quant8, 2... subgraphs 0...; (type, inputs...)."""
    operands = [Operand(T.TENSOR_FLOAT32), Operand(T.TENSOR_QUANT8_ASYMM)]
    operands += [
        Operand(T.SUBGRAPH, lifetime=OperandLifeTime.SUBGRAPH, location=DataLocation(offset=index))
        for index in range(8)
    ]
    done = tuple(Operation(type, inputs, ()) for type, *inputs in operations)  # type: ignore[arg-type]
    return Subgraph(tuple(operands), done, (), ())


RELU, IF, WHILE = OperationType.RELU, OperationType.IF, OperationType.WHILE


def rating(model: Model) -> float:
    (operation,) = model.main.operations
    found = hal.operation_performance(CAPABILITIES, model, operation)
    assert found.power_usage == found.exec_time / 2
    return found.exec_time


def test_operations_have_the_figures_of_their_first_input() -> None:
    assert rating(Model(graph((RELU, 0)))) == 4
    assert rating(Model(graph((RELU, 1, 0)))) == 6
    relaxed = Model(graph((RELU, 0)), relax_computation_float32_to_float16=True)
    assert rating(relaxed) == 0.5
    model = Model(graph((0x10001,)))
    found = hal.operation_performance(CAPABILITIES, model, model.main.operations[0])
    assert found == PerformanceInfo(1.0, 1.0)


def test_control_flow_adds_what_it_runs() -> None:
    branches = (graph((RELU, 0)), graph((RELU, 1), (RELU, 1)))
    assert rating(Model(graph((IF, 1, 2, 3, 0)), branches)) == 100 + (4 + 12) / 2
    assert rating(Model(graph((WHILE, 2, 3, 0)), branches)) == 1000 + 4 + 12
    nested = (graph((IF, 1, 3, 3, 0), (RELU, 0)), graph((RELU, 1)))
    assert rating(Model(graph((WHILE, 2, 3, 0)), nested)) == 1000 + (100 + 6 + 4) + 6


def test_subgraphs_are_the_sum_of_their_operations() -> None:
    model = Model(graph((RELU, 0), (RELU, 1), (IF, 1, 2, 2)), (graph((RELU, 0)),))
    found = hal.subgraph_performance(CAPABILITIES, model, model.main)
    assert found.exec_time == 4 + 6 + 104


def test_deep_and_shared_subgraphs_cost_no_stack_and_little_time() -> None:
    """Each level is run twice by the one above it: as a tree there would be 2 ** 2000 of them."""
    count = 2000
    levels = []
    for level in range(count - 1):
        inner = graph((IF, 1, 2, 2))
        target = Operand(
            T.SUBGRAPH,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(offset=level + 1),
        )
        operands = (*inner.operands[:2], target)
        levels.append(Subgraph(operands, inner.operations, (), ()))
    model = Model(graph((IF, 1, 2, 2)), (*levels, graph((RELU, 0))))
    assert rating(model) == pytest.approx(100 * count + 4)
