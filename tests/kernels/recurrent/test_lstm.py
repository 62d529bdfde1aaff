"""LSTM against a float64 transcript of the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.recurrent.lstm_oracle import (
    FEATURES,
    PLAIN,
    Features,
    halved,
    make,
    operands,
    scalars,
    sizes_of,
    some_input,
    step,
    wide,
    without_sizes,
)
from tests.kernels.running import run, scalar, tensor

LSTM = OperationType.LSTM


def inputs_of(features: Features, batches: int, seed: int) -> tuple[list[Any], Array, list[Any]]:
    """Operands, the input and the arrays in float64."""
    sizes = sizes_of(features, batches)
    arrays = make(features, sizes, seed)
    x = some_input(seed + 1, batches, sizes.inputs)
    inputs = [tensor(x), *operands(arrays[:19]), *scalars(features)]
    inputs += operands(arrays[19:]) if features.norm else []
    return inputs, x, wide(arrays)


@given(FEATURES, st.integers(1, 3), st.booleans(), st.integers(0, 2**32 - 1))
def test_lstm(features: Features, batches: int, empty: bool, seed: int) -> None:
    inputs, x, w = inputs_of(features, batches, seed)
    if empty:
        inputs = [without_sizes(each) for each in inputs]
    scratch, state, cell, got = run(LSTM, *inputs, runtime=(0, 18, 19))
    out, new = step(x.astype(np.float64), w, w[18], w[19], features)
    np.testing.assert_allclose(got, out, atol=2e-5)
    np.testing.assert_allclose(cell, new, atol=2e-5)
    np.testing.assert_array_equal(state, got)
    assert scratch.shape == (batches, 4 * (3 if features.cifg else 4))


@settings(max_examples=20)
@given(FEATURES, st.integers(0, 2**32 - 1))
def test_all_operands_at_run_time_and_in_halves(features: Features, seed: int) -> None:
    inputs, x, w = inputs_of(features, 2, seed)
    narrow = [halved(each) for each in inputs]
    results = run(LSTM, *narrow, runtime=range(len(inputs)))
    assert {result.dtype for result in results} == {np.dtype(np.float16)}
    out, new = step(x.astype(np.float64), w, w[18], w[19], features)
    np.testing.assert_allclose(results[3], out, atol=1e-2)
    np.testing.assert_allclose(results[2], new, atol=1e-2)


def test_coupled_gates_may_have_the_input_gates_peephole_which_does_not_count() -> None:
    features = PLAIN._replace(cifg=True, peephole=True)
    inputs, *_ = inputs_of(features, 1, 0)
    more = [*inputs[:9], tensor(np.ones(4, np.float32)), *inputs[10:]]
    for one, other in zip(run(LSTM, *inputs), run(LSTM, *more), strict=True):
        np.testing.assert_array_equal(one[:, :4], other[:, :4])


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (1, r"input 5 \(recurrent_to_input_weights\): must be omitted without"),
        (12, r"input 12 \(input_gate_bias\): must not be omitted with an input gate"),
        (9, r"input 9 \(cell_to_input_weights\): must not be omitted to match"),
        (11, r"input 11 \(cell_to_output_weights\): must not be omitted to match"),
        (16, r"input 17 \(projection_bias\): must be omitted without projection_weights"),
        (23, r"input 23 \(input_layer_norm_weights\): must not be omitted to match"),
        (25, r"input 25 \(cell_layer_norm_weights\): must not be omitted to match"),
        (2, r"input 2 \(input_to_forget_weights\) must not be omitted"),
        (19, r"input 19 \(cell_state_in\) must not be omitted"),
    ],
)
def test_operands_that_belong_together(removed: int, message: str) -> None:
    inputs, *_ = inputs_of(Features(False, True, True, True, True, 4, 0.0, 0.0), 1, 0)
    inputs[removed] = None
    with pytest.raises(ModelError, match="LSTM: " + message):
        run(LSTM, *inputs)


@pytest.mark.parametrize("index", [9, 23])
def test_operands_that_do_not_belong_here(index: int) -> None:
    features = PLAIN._replace(cifg=index == 23, norm=index == 23)
    inputs, *_ = inputs_of(features, 1, 0)
    inputs[index] = tensor(np.ones(4, np.float32))
    with pytest.raises(ModelError, match=rf"input {index} .*: must be omitted to match"):
        run(LSTM, *inputs)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (20, scalar(5), r"input 20 \(activation\): is 5"),
        (21, scalar(-1.0), r"input 21 \(cell_clip\): is -1.0, expected at least 0"),
        (22, scalar(float("nan")), r"input 22 \(projection_clip\): is nan"),
        (19, tensor(np.zeros((2, 4), np.float32)), r"input 19 \(cell_state_in\): has shape"),
        (3, tensor(np.zeros((4, 6), np.float32)), r"input 3 .*: has shape \(4, 6\), expected"),
        (0, tensor(np.zeros((1, 6), np.float32)), r"input 0 .*: has 6 features, expected"),
        (0, tensor(np.zeros((1, 1, 5), np.float32)), r"input 0 .*: .*expected rank 2"),
        (0, tensor(np.zeros((0, 5), np.float32)), r"input 0 .*: .*no elements"),
        (6, tensor(np.zeros((4, 3), np.float32)), r"input 6 .*: has 3 columns, expected 4"),
        (13, tensor(np.zeros((5,), np.float32)), r"input 13 .*: has shape \(5,\)"),
    ],
)
def test_what_does_not_fit_is_refused(index: int, value: Tensor, message: str) -> None:
    inputs, *_ = inputs_of(PLAIN, 1, 0)
    inputs[index] = value
    with pytest.raises(ModelError, match=message):
        run(LSTM, *inputs)


def test_versions() -> None:
    for norm, version in ((False, HalVersion.V1_0), (True, HalVersion.V1_2)):
        inputs, *_ = inputs_of(PLAIN._replace(norm=norm), 1, 0)
        outputs = OPERATIONS[LSTM].infer(inputs)
        assert OPERATIONS[LSTM].minimum_version(inputs, outputs) == version
