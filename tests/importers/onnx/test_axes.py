"""Axes that are treated alike become one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.importers.onnx.axes import broadcast_shape, merged, merged_order
from nnasync.errors import ModelError


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=7), st.integers())
def test_a_transposition_of_fewer_axes_moves_alike(shape: list[int], seed: int) -> None:
    order = sorted(range(len(shape)), key=lambda axis: hash((seed, axis)))
    array = np.arange(math.prod(shape)).reshape(shape)
    try:
        sizes, places = merged_order(tuple(shape), order)
    except ModelError:
        assert len([n for n in shape if n > 1]) > 4
        return
    got = array.reshape(sizes).transpose(places).reshape(-1)
    assert got.tolist() == array.transpose(order).reshape(-1).tolist()


@pytest.mark.parametrize(
    ("shape", "keys", "groups"),
    [
        ((2, 3, 4), "aab", [[0, 1], [2]]),
        ((1, 3, 80, 80, 2), "aaabb", [[0, 1, 2], [3, 4]]),
        ((2, 1, 3), "aba", [[0, 1, 2]]),
        ((1, 1), "ab", [[0, 1]]),
        ((1, 2, 3), "abb", [[0, 1, 2]]),
    ],
)
def test_neighbors_with_equal_keys_are_one(
    shape: tuple[int, ...], keys: Sequence[str], groups: list[list[int]]
) -> None:
    assert merged(shape, list(keys)) == groups


def test_too_many_axes_are_refused() -> None:
    with pytest.raises(ModelError, match="rank 5"):
        merged((2, 2, 2, 2, 2), "abcde")
    with pytest.raises(ModelError, match="transposes 5 axes"):
        merged_order((2, 2, 2, 2, 2), (4, 3, 2, 1, 0))


def test_shapes_broadcast_as_numpy_does_it() -> None:
    assert broadcast_shape([(3, 1), (), (2, 1, 4)]) == np.broadcast_shapes((3, 1), (), (2, 1, 4))
    with pytest.raises(ModelError, match="shapes"):
        broadcast_shape([(2,), (3,)])
