"""SVDF against a transcript of the definition, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import Tensor
from tests.kernels.recurrent.lstm_oracle import act, halved, some_input, without_sizes
from tests.kernels.running import run, scalar, tensor

SVDF = OperationType.SVDF


def layer(seed: int, batches: int, units: int, rank: int, memory: int) -> list[Array]:
    """Input, feature weights, time weights, bias and state."""
    filters = units * rank
    shapes: list[tuple[int, ...]] = [
        (batches, 3),
        (filters, 3),
        (filters, memory),
        (units,),
        (batches, memory * filters),
    ]
    return [some_input(seed + n, *shape) for n, shape in enumerate(shapes)]


def expected(arrays: list[Any], rank: int, kind: int) -> tuple[Array, Array]:
    """The new state and the output."""
    x, by_feature, by_time, bias, state = arrays
    batches, filters, memory = len(x), len(by_feature), by_time.shape[1]
    after = state.astype(np.float64).reshape(batches, filters, memory)
    output = np.zeros((batches, filters // rank))
    for batch in range(batches):
        for filter in range(filters):
            after[batch, filter, -1] = by_feature[filter].astype(np.float64) @ x[batch]
            output[batch, filter // rank] += by_time[filter] @ after[batch, filter]
    if bias is not None:
        output = output + bias
    moved = np.zeros_like(after)
    moved[..., :-1] = after[..., 1:]
    return moved.reshape(state.shape), act(kind, output)


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([0, 1, 3, 4, 6]),
    st.sampled_from(["bias", "omitted", "empty"]),
    st.integers(0, 2**32 - 1),
)
def test_a_step(
    batches: int, units: int, rank: int, memory: int, kind: int, bias: str, seed: int
) -> None:
    arrays: list[Any] = layer(seed, batches, units, rank, memory)
    inputs: list[Tensor | None] = [*map(tensor, arrays), scalar(rank), scalar(kind)]
    if bias != "bias":
        arrays[3] = None
        inputs[3] = None if bias == "omitted" else without_sizes(None)
    state, output = run(SVDF, *inputs, runtime=(0, 4))
    new_state, wanted = expected(arrays, rank, kind)
    np.testing.assert_allclose(output, wanted, atol=2e-5)
    np.testing.assert_allclose(state, new_state, atol=1e-5)


def test_a_step_in_halves_with_weights_at_run_time() -> None:
    arrays = layer(1, 2, 3, 2, 4)
    inputs = [halved(each) for each in (*map(tensor, arrays), scalar(2), scalar(0))]
    state, output = run(SVDF, *inputs, runtime=range(7))
    new_state, wanted = expected(arrays, 2, 0)
    assert output.dtype == np.float16
    np.testing.assert_allclose(output, wanted, atol=5e-2)
    np.testing.assert_allclose(state, new_state, atol=1e-2)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (1, (6, 4), r"input 1 \(weights_feature\): has 4 columns, expected the input's 3"),
        (2, (5, 4), r"input 2 \(weights_time\): has 5 rows, expected one per filter, 6"),
        (3, (6,), r"input 3 \(bias\): has shape \(6,\), expected \(3,\)"),
        (4, (2, 23), r"input 4 \(state_in\): has shape \(2, 23\), expected \(2, 24\)"),
        (1, (5, 3), r"input 1 .*: has 5 filters, expected a multiple of the rank 2"),
    ],
)
def test_shapes_that_do_not_fit(index: int, value: tuple[int, ...], message: str) -> None:
    inputs = [*map(tensor, layer(0, 2, 3, 2, 4)), scalar(2), scalar(0)]
    inputs[index] = tensor(np.zeros(value, np.float32))
    with pytest.raises(ModelError, match=message):
        run(SVDF, *inputs)


def test_options_that_do_not_fit() -> None:
    inputs = [*map(tensor, layer(0, 2, 3, 2, 4))]
    with pytest.raises(ModelError, match=r"input 5 \(rank\): is 0, expected at least 1"):
        run(SVDF, *inputs, scalar(0), scalar(0))
    with pytest.raises(ModelError, match=r"input 6 \(activation\): is 7"):
        run(SVDF, *inputs, scalar(2), scalar(7))
