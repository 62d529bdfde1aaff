"""LSTM, RNN and UNIDIRECTIONAL_SEQUENCE_LSTM against a float64 transcript of the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import Tensor
from tests.kernels.running import run, scalar, tensor

LSTM, SEQUENCE = OperationType.LSTM, OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM


class Features(NamedTuple):
    cifg: bool
    peephole: bool
    projection: bool
    projection_bias: bool
    norm: bool
    kind: int
    cell_clip: float
    projection_clip: float


FEATURES = st.builds(
    Features,
    *[st.booleans()] * 5,
    st.sampled_from([0, 1, 3, 4, 6]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.2]),
)


ACTIVATIONS: dict[int, Callable[[Array], Array]] = {
    0: lambda x: x,
    1: lambda x: np.maximum(x, 0),
    2: lambda x: x.clip(-1, 1),
    3: lambda x: x.clip(0, 6),
    4: np.tanh,
    6: lambda x: 1 / (1 + np.exp(-x)),
}


def act(kind: int, x: Array) -> Array:
    return ACTIVATIONS[kind](x)


def make(features: Features, sizes: tuple[int, int, int, int], seed: int) -> list[Array | None]:
    """Arrays of inputs 1 to 19 and of the layer norm weights behind them."""
    batches, inputs, units, outputs = sizes
    rng = np.random.default_rng(seed)

    def some(present: bool, *shape: int) -> Array | None:
        return rng.normal(size=shape).astype(np.float32) * 0.7 if present else None

    full = not features.cifg
    arrays = [some(full, units, inputs), *(some(True, units, inputs) for _ in range(3))]
    arrays += [some(full, units, outputs), *(some(True, units, outputs) for _ in range(3))]
    arrays += [some(features.peephole and full, units)]
    arrays += [some(features.peephole, units) for _ in range(2)]
    arrays += [some(full, units), *(some(True, units) for _ in range(3))]
    arrays.append(some(features.projection, outputs, units))
    arrays.append(some(features.projection and features.projection_bias, outputs))
    arrays += [some(True, batches, outputs), some(True, batches, units)]
    arrays += [some(features.norm and full, units)]
    arrays += [some(features.norm, units) for _ in range(3)]
    return arrays


def step(x: Array, w: list[Any], h: Array, c: Array, f: Features) -> tuple[Array, Array]:
    """One time step in float64 as the definition writes it; w[i] is input i."""

    def gate(number: int, cell: Array, peephole: int | None) -> Array:
        z: Array = x @ w[number].T + h @ w[number + 4].T
        if peephole is not None and w[peephole] is not None:
            z = z + w[peephole] * cell
        bias = w[number + 11]
        if f.norm:
            z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-8)
            z = z * w[19 + number]
        biased: Array = z + bias
        return biased

    forget = act(6, gate(2, c, 10))
    update = 1 - forget if f.cifg else act(6, gate(1, c, 9))
    new = forget * c + update * act(f.kind, gate(3, c, None))
    if f.cell_clip:
        new = new.clip(-f.cell_clip, f.cell_clip)
    out = act(6, gate(4, new, 11)) * act(f.kind, new)
    if f.projection:
        out = out @ w[16].T + (0 if w[17] is None else w[17])
        if f.projection_clip:
            out = out.clip(-f.projection_clip, f.projection_clip)
    return out, new


def operands(arrays: list[Array | None]) -> list[Tensor | None]:
    return [None if array is None else tensor(array) for array in arrays]


def scalars(features: Features) -> list[Tensor]:
    clips = scalar(features.cell_clip), scalar(features.projection_clip)
    return [scalar(features.kind), *clips]


@settings(max_examples=80)
@given(FEATURES, st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_lstm(features: Features, batches: int, seed: int) -> None:
    outputs = 3 if features.projection else 4
    arrays = make(features, (batches, 5, 4, outputs), seed)
    x = np.random.default_rng(seed + 1).normal(size=(batches, 5)).astype(np.float32)
    inputs = [tensor(x), *operands(arrays[:19]), *scalars(features)]
    inputs += operands(arrays[19:]) if features.norm else []
    scratch, state, cell, got = run(LSTM, *inputs, runtime=(0, 18, 19))
    w: list[Any] = [None, *(None if a is None else a.astype(np.float64) for a in arrays)]
    out, new = step(x.astype(np.float64), w, w[18], w[19], features)
    np.testing.assert_allclose(got, out, atol=2e-5)
    np.testing.assert_allclose(cell, new, atol=2e-5)
    np.testing.assert_array_equal(state, got)
    assert scratch.shape == (batches, 4 * (3 if features.cifg else 4))


@settings(max_examples=80)
@given(
    FEATURES,
    st.integers(1, 3),
    st.integers(1, 5),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_sequence_lstm(
    features: Features, batches: int, times: int, major: bool, states: bool, seed: int
) -> None:
    outputs = 3 if features.projection else 4
    arrays = make(features, (batches, 5, 4, outputs), seed)
    x = np.random.default_rng(seed + 1).normal(size=(times, batches, 5)).astype(np.float32)
    given = x if major else np.ascontiguousarray(x.transpose(1, 0, 2))
    inputs = [tensor(given), *operands(arrays[:19]), *scalars(features), scalar(major)]
    inputs += operands(arrays[19:])
    types = [OperandType.TENSOR_FLOAT32] * (3 if states else 1)
    results = run(SEQUENCE, *inputs, runtime=(0, 18, 19), output_types=types)
    w: list[Any] = [None, *(None if a is None else a.astype(np.float64) for a in arrays)]
    h, c = w[18], w[19]
    expected = []
    for time in range(times):
        h, c = step(x[time].astype(np.float64), w, h, c, features)
        expected.append(h)
    sequence = np.stack(expected)
    sequence = sequence if major else sequence.transpose(1, 0, 2)
    np.testing.assert_allclose(results[0], sequence, atol=5e-5)
    if states:
        np.testing.assert_allclose(results[1], h, atol=5e-5)
        np.testing.assert_allclose(results[2], c, atol=5e-5)


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 6])
def test_rnn(kind: int) -> None:
    rng = np.random.default_rng(kind)
    shapes = [(2, 5), (3, 5), (3, 3), (3,), (2, 3)]
    x, w, r, b, h = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    inputs = [tensor(array) for array in (x, w, r, b, h)]
    state, got = run(OperationType.RNN, *inputs, scalar(kind), runtime=(0, 4))
    z = x.astype(np.float64) @ w.T + h @ r.T + b
    np.testing.assert_allclose(got, act(kind, z), atol=1e-5)
    np.testing.assert_array_equal(state, got)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (1, r"input 5 \(recurrent_to_input_weights\): must be omitted without"),
        (12, r"input 12 \(input_gate_bias\): must not be omitted with an input gate"),
        (11, r"input 11 \(cell_to_output_weights\): must not be omitted to match"),
        (16, r"input 17 \(projection_bias\): must be omitted without projection_weights"),
        (24, r"input 25 \(cell_layer_norm_weights\): must be omitted to match"),
        (2, r"input 2 \(input_to_forget_weights\) must not be omitted"),
    ],
)
def test_operands_that_belong_together(removed: int, message: str) -> None:
    features = Features(False, True, True, True, removed == 24, 4, 0.0, 0.0)
    arrays = make(features._replace(norm=True), (1, 5, 4, 3), 0)
    x = tensor(np.zeros((1, 5), np.float32))
    inputs = [x, *operands(arrays[:19]), *scalars(features), *operands(arrays[19:])]
    if removed == 24:
        inputs[23] = None
    inputs[removed] = None
    with pytest.raises(ModelError, match="LSTM: " + message):
        run(LSTM, *inputs)


def test_wrong_activation_clip_and_state() -> None:
    features = Features(False, False, False, False, False, 4, 0.0, 0.0)
    arrays = make(features, (1, 5, 4, 4), 0)
    x = tensor(np.zeros((1, 5), np.float32))
    inputs = [x, *operands(arrays[:19]), *scalars(features)]
    for index, value, message in (
        (20, scalar(5), r"input 20 \(activation\): is 5"),
        (21, scalar(-1.0), r"input 21 \(cell_clip\): is -1.0, expected at least 0"),
        (19, tensor(np.zeros((2, 4), np.float32)), r"input 19 \(cell_state_in\): has shape"),
        (3, tensor(np.zeros((4, 6), np.float32)), r"input 3 .*: has shape \(4, 6\), expected"),
    ):
        with pytest.raises(ModelError, match=message):
            run(LSTM, *inputs[:index], value, *inputs[index + 1 :])
