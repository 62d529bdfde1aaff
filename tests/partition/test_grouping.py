"""Grouping: each operation once, after what it reads, in as few steps as possible."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.partition import Group, grouped
from nnasync.errors import InvalidArgument
from nnasync.hal import Model
from tests.partition.models import chain, diamond, summed


def parts(model: Model, assignment: list[int]) -> list[tuple[int, ...]]:
    return [group.operations for group in grouped(model, assignment)]


def test_one_device_is_one_step() -> None:
    assert grouped(chain(3), [2, 2, 2]) == (Group(2, (0, 1, 2)),)


def test_a_chain_is_cut_where_the_device_changes() -> None:
    assert parts(chain(5), [0, 0, 1, 1, 0]) == [(0, 1), (2, 3), (4,)]


def test_branches_are_gathered() -> None:
    """In order of execution the devices change four times."""
    assert parts(diamond(), [0, 1, 0, 1, 0]) == [(0, 2), (1, 3), (4,)]


def test_the_better_device_comes_first() -> None:
    """Device 0 first makes three steps: 0, 1 and the rest of 0."""
    model = summed([(0, 0), (0, 0), (1, 2)])
    assert parts(model, [0, 1, 0]) == [(1,), (0, 2)]


def test_an_assignment_of_another_length() -> None:
    with pytest.raises(InvalidArgument, match="2 operations are assigned, expected 3"):
        grouped(chain(3), [0, 0])


@st.composite
def assigned(draw: st.DrawFn, devices: int = 2) -> tuple[Model, list[int]]:
    pairs = []
    for number in range(draw(st.integers(1, 8))):
        before = st.integers(0, number)
        pairs.append((draw(before), draw(before)))
    device = st.integers(0, devices - 1)
    assignment = draw(st.lists(device, min_size=len(pairs), max_size=len(pairs)))
    return summed(pairs), assignment


@given(assigned(devices=4))
def test_each_operation_runs_once_and_after_what_it_reads(case: tuple[Model, list[int]]) -> None:
    model, assignment = case
    groups = grouped(model, assignment)
    order = [index for group in groups for index in group.operations]
    assert sorted(order) == list(range(len(assignment)))
    for group in groups:
        assert {assignment[index] for index in group.operations} == {group.device}
    written = set(model.main.input_indexes)
    for index in order:
        operation = model.main.operations[index]
        read = [i for i in operation.inputs if not is_scalar(model, i)]
        assert written.issuperset(read)
        written.update(operation.outputs)


@given(assigned())
def test_two_devices_take_the_least_possible_number_of_steps(case: tuple[Model, list[int]]) -> None:
    model, assignment = case
    assert len(grouped(model, assignment)) == fewest(model, assignment)


def is_scalar(model: Model, operand: int) -> bool:
    return not model.main.operands[operand].dimensions


def fewest(model: Model, assignment: list[int]) -> int:
    """The least number of steps, by trying every set of operations that can be the next step."""
    operations = model.main.operations
    writer = {i: index for index, each in enumerate(operations) for i in each.outputs}
    needs = [{writer[i] for i in each.inputs if i in writer} for each in operations]
    everything = frozenset(range(len(operations)))
    waiting, seen = deque([(frozenset[int](), 0)]), set[frozenset[int]]()
    while waiting:
        done, steps = waiting.popleft()
        if done == everything:
            return steps
        for device in set(assignment):
            for after in reached(done, device, assignment, needs) - seen:
                seen.add(after)
                waiting.append((after, steps + 1))
    raise AssertionError("the graph has a cycle")


def reached(
    done: frozenset[int], device: int, assignment: list[int], needs: list[set[int]]
) -> set[frozenset[int]]:
    """Every set that one step on a device can lead to."""
    found, pending = set[frozenset[int]](), [done]
    while pending:
        before = pending.pop()
        for index, each in enumerate(assignment):
            if each == device and index not in before and needs[index] <= before:
                after = before | {index}
                if after not in found:
                    found.add(after)
                    pending.append(after)
    return found
