"""Running sums against sums of parts, and rounding to even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.extensions import COMMON, CommonOperation
from nnasync.hal import Array
from nnasync.kernels import EXTENSION_OPERATIONS
from tests.kernels.running import run, scalar, tensor

CUMSUM = EXTENSION_OPERATIONS[COMMON.name, CommonOperation.CUMSUM]
ROUND = EXTENSION_OPERATIONS[COMMON.name, CommonOperation.ROUND]


def part(x: Array, axis: int, place: int, *, exclusive: bool, reverse: bool) -> Array:
    """The sum up to a place, or from there on."""
    if reverse:
        places = range(place + exclusive, x.shape[axis])
    else:
        places = range(place + (not exclusive))
    return np.asarray(x.take(places, axis).sum(axis))


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(-4, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([np.float32, np.int32]),
)
def test_each_place_has_the_sum_of_its_part(
    shape: list[int], axis: int, exclusive: bool, reverse: bool, dtype: type
) -> None:
    axis = max(-len(shape), min(axis, len(shape) - 1))
    x: Array = np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(dtype)
    (got,) = run(CUMSUM, tensor(x), scalar(axis), scalar(exclusive), scalar(reverse))
    parts = [
        part(x, axis, place, exclusive=exclusive, reverse=reverse) for place in range(x.shape[axis])
    ]
    np.testing.assert_array_equal(got, np.stack(parts, axis))


def test_an_axis_that_is_none() -> None:
    x = tensor(np.zeros((2, 3), np.float32))
    with pytest.raises(ModelError, match=r"input 1 \(axis\): is axis 2, expected within"):
        run(CUMSUM, x, scalar(2), scalar(False), scalar(False))


def test_halves_are_rounded_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4999], np.float32)
    (got,) = run(ROUND, tensor(x))
    assert got.tolist() == [-2, -2, 0, 0, 2, 2, 2]
