"""Assignment: the cheapest way along the operations, borders included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product
from typing import TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnasync._core.partition.assignment import ORDINARY, Border, cheapest_way
from nnasync._core.partition.crossing import crossing_bytes
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import Model
from tests.partition.models import chain

T = TypeVar("T")
FREE = Border(0, 0)
ALL = [True] * 4


def table(*rows: str) -> list[list[bool]]:
    return [[sign == "x" for sign in row] for row in rows]


def assign(
    model: Model,
    support: Sequence[Sequence[bool]],
    costs: Sequence[Sequence[float]],
    border: Border = ORDINARY,
) -> tuple[int, ...]:
    return cheapest_way(model, support, costs, border)[0]


def test_without_borders_each_operation_goes_where_it_is_cheapest() -> None:
    costs = [[1.0, 5, 1, 5], [5.0, 1, 5, 1]]
    assert assign(chain(4), [ALL, ALL], costs, FREE) == (0, 1, 0, 1)


def test_a_border_is_worth_a_dearer_operation() -> None:
    costs = [[1.0, 5, 1, 1], [9.0, 1, 9, 9]]
    assert assign(chain(4), [ALL, ALL], costs, Border(3, 0)) == (0, 0, 0, 0)
    assert assign(chain(4), [ALL, ALL], costs, Border(1, 0)) == (0, 1, 0, 0)


def test_bytes_that_cross_count() -> None:
    model = chain(4)
    assert crossing_bytes(model) == [0, 16, 16, 16, 0]
    costs = [[1.0, 5, 1, 1], [9.0, 1, 9, 9]]
    assert assign(model, [ALL, ALL], costs, Border(0, 1)) == (0, 0, 0, 0)
    assert assign(model, [ALL, ALL], costs, Border(0, 0.1)) == (0, 1, 0, 0)


def test_what_is_not_supported_is_not_chosen() -> None:
    costs = [[1.0] * 4, [100.0] * 4]
    assert assign(chain(4), table("xx.x", "xxxx"), costs, FREE) == (0, 0, 1, 0)


def test_order_breaks_ties() -> None:
    assert assign(chain(4), [ALL, ALL], [[2.0] * 4, [2.0] * 4]) == (0, 0, 0, 0)


def test_a_device_without_figures_is_the_last_resort() -> None:
    costs = [[math.inf] * 4, [1e9] * 4]
    assert assign(chain(4), table("xxxx", "xx.x"), costs, FREE) == (1, 1, 0, 1)


def test_an_operation_that_nobody_supports_is_named() -> None:
    with pytest.raises(GeneralFailure, match=r"none of the 2 devices supports operation 2 \(ADD\)"):
        assign(chain(4), table("xx.x", "xx.."), [[1.0] * 4] * 2)


@pytest.mark.parametrize(
    ("support", "costs", "text"),
    [
        ([], [], "0 rows"),
        ([ALL], [], "1 rows of support and 0 of costs"),
        ([ALL[:3]], [[1.0] * 4], "3 answers and 4 costs, expected 4"),
        ([ALL], [[1.0] * 5], "4 answers and 5 costs, expected 4"),
        ([ALL], [[1.0, 1, 1, -1]], "below 0"),
        ([ALL], [[1.0, 1, 1, math.nan]], "not a number"),
    ],
)
def test_tables_that_do_not_fit(
    support: list[list[bool]], costs: list[list[float]], text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text):
        assign(chain(4), support, costs)


@given(st.data(), st.integers(1, 3), st.integers(1, 5), st.integers(0, 6))
def test_no_other_way_is_cheaper(
    data: st.DataObject, devices: int, length: int, border: int
) -> None:
    support = data.draw(matrix(devices, length, st.booleans()))
    costs = data.draw(matrix(devices, length, st.integers(0, 9)))
    assume(all(any(answers) for answers in zip(*support, strict=True)))
    found = assign(chain(length), support, costs, Border(border, 0))
    legal = [
        way
        for way in product(range(devices), repeat=length)
        if all(support[device][index] for index, device in enumerate(way))
    ]

    def total(way: tuple[int, ...]) -> float:
        borders = sum(border for a, b in pairwise(way) if a != b)
        return borders + sum(costs[device][index] for index, device in enumerate(way))

    assert found in legal
    assert total(found) == min(map(total, legal))


def matrix(
    rows: int, columns: int, entries: st.SearchStrategy[T]
) -> st.SearchStrategy[list[list[T]]]:
    row = st.lists(entries, min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)
