"""RNN and its sequences, in one direction and in both, against the definition in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.recurrent.lstm_oracle import act, halved, some_input, without_sizes
from tests.kernels.running import run, scalar, tensor

RNN = OperationType.RNN
ONE_WAY, BOTH_WAYS = (
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
)
F32 = OperandType.TENSOR_FLOAT32
KINDS = st.sampled_from([0, 1, 2, 3, 4, 6])
SEEDS = st.integers(0, 2**32 - 1)


def cell(seed: int, batches: int, inputs: int, units: int) -> list[Array]:
    """Weights, recurrent weights, bias and hidden state."""
    shapes: list[tuple[int, ...]] = [(units, inputs), (units, units), (units,), (batches, units)]
    return [some_input(seed + n, *shape) * 0.5 for n, shape in enumerate(shapes)]


def walk(
    x: Array, operands: Sequence[Array], kind: int, aux: Array | None = None
) -> tuple[Array, Array]:
    """The outputs [times, batches, units] and the last; `aux` adds to each step."""
    w, r, b, h = (each.astype(np.float64) for each in operands)
    outputs = []
    for time, values in enumerate(x.astype(np.float64)):
        h = act(kind, values @ w.T + h @ r.T + b + (0 if aux is None else aux[time]))
        outputs.append(h)
    return np.stack(outputs), h


def ordered(sequence: Array, major: bool) -> Array:
    return sequence if major else np.ascontiguousarray(sequence.transpose(1, 0, 2))


@given(KINDS, st.integers(1, 3), st.booleans(), SEEDS)
def test_one_step(kind: int, batches: int, late: bool, seed: int) -> None:
    x, operands = some_input(seed, batches, 5), cell(seed + 1, batches, 5, 3)
    inputs = [tensor(x), *map(tensor, operands), scalar(kind)]
    state, got = run(RNN, *inputs, runtime=range(6) if late else (0, 4))
    np.testing.assert_allclose(got, walk(x[None], operands, kind)[1], atol=1e-5)
    np.testing.assert_array_equal(state, got)


@given(KINDS, st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans(), SEEDS)
def test_one_way(kind: int, batches: int, times: int, major: bool, state: bool, seed: int) -> None:
    x, operands = some_input(seed, times, batches, 5), cell(seed + 1, batches, 5, 3)
    inputs = [tensor(ordered(x, major)), *map(tensor, operands), scalar(kind), scalar(int(major))]
    results = run(ONE_WAY, *inputs, runtime=(0, 4), output_types=[F32] * (1 + state))
    outputs, last = walk(x, operands, kind)
    np.testing.assert_allclose(results[0], ordered(outputs, major), atol=2e-5)
    if state:
        np.testing.assert_allclose(results[1], last, atol=2e-5)


class Both:
    """A bidirectional RNN with random operands, and what it must give."""

    def __init__(self, link: str, major: bool, merged: bool, kind: int, seed: int) -> None:
        self.link, self.major, self.merged, self.kind = link, major, merged, kind
        self.x, self.aux = some_input(seed, 3, 2, 5), some_input(seed + 1, 3, 2, 6)
        backward = 6 if link == "parallel" else 5
        self.cells = cell(seed + 2, 2, 5, 3), cell(seed + 7, 2, backward, 4)
        self.aux_weights = some_input(seed + 12, 3, 6), some_input(seed + 13, 4, 6)

    def inputs(self) -> list[Tensor | None]:
        cells = [tensor(each) for operands in self.cells for each in operands]
        weights: list[Tensor | None] = [None, None]
        if self.link == "cross":
            weights = [tensor(each) for each in self.aux_weights]
        aux = tensor(ordered(self.aux, self.major)) if self.link else None
        flags = scalar(self.kind), scalar(self.major), scalar(self.merged)
        return [tensor(ordered(self.x, self.major)), *cells, aux, *weights, *flags]

    def expected(self) -> list[Array]:
        """Outputs and states, not merged."""
        outputs, states = [], []
        for way, operands in enumerate(self.cells):
            turn = slice(None, None, -1 if way else 1)
            source = self.aux if way and self.link == "parallel" else self.x
            aux = None
            if self.link == "cross":
                aux = self.aux[turn].astype(np.float64) @ self.aux_weights[way].T
            found, last = walk(source[turn], operands, self.kind, aux)
            outputs.append(ordered(found[turn], self.major))
            states.append(last)
        return [*outputs, *states]


@given(
    st.sampled_from(["", "cross", "parallel"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    KINDS,
    SEEDS,
)
def test_both_ways(
    link: str, major: bool, merged: bool, states: bool, empty: bool, kind: int, seed: int
) -> None:
    case = Both(link, major, merged, kind, seed)
    inputs = case.inputs()
    if empty:
        inputs = [without_sizes(each) for each in inputs]
    count = (1 if merged else 2) + (2 if states else 0)
    results = run(BOTH_WAYS, *inputs, runtime=(0, 4, 8, 9), output_types=[F32] * count)
    fw, bw, *after = case.expected()
    expected = [np.concatenate([fw, bw], -1)] if merged else [fw, bw]
    for got, wanted in zip(results, [*expected, *(after if states else [])], strict=True):
        np.testing.assert_allclose(got, wanted, atol=5e-5)


@pytest.mark.parametrize("link", ["", "cross", "parallel"])
def test_both_ways_in_halves(link: str) -> None:
    case = Both(link, False, True, 4, 3)
    inputs: list[Any] = [halved(each) for each in case.inputs()]
    types = [OperandType.TENSOR_FLOAT16] * 3
    fw, bw, *after = case.expected()
    results = run(BOTH_WAYS, *inputs, runtime=range(len(inputs)), output_types=types)
    for got, wanted in zip(results, [np.concatenate([fw, bw], -1), *after], strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, wanted, atol=2e-2)


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (9, None, r"input 9 \(aux_input\): must not be omitted where it has weights"),
        (10, None, r"input 10 \(fw_aux_input_weights\): must not be omitted where input 11"),
        (11, (4, 5), r"input 11 .*: has shape \(4, 5\), expected \(4, 6\)"),
        (9, (2, 3, 6), r"input 9 \(aux_input\): has shape"),
        (8, (2, 3), r"input 8 \(bw_hidden_state_in\): has shape \(2, 3\), expected \(2, 4\)"),
        (3, (4,), r"input 3 \(fw_bias\): has shape"),
        (0, (0, 2, 5), r"input 0 \(input\): .*no elements"),
    ],
)
def test_what_does_not_fit_is_refused(
    index: int, value: tuple[int, ...] | None, message: str
) -> None:
    inputs = Both("cross", True, False, 4, 0).inputs()
    inputs[index] = None if value is None else tensor(np.zeros(value, np.float32))
    with pytest.raises(ModelError, match=message):
        run(BOTH_WAYS, *inputs, output_types=[F32] * 2)


def test_numbers_that_are_no_option_are_refused() -> None:
    x, operands = some_input(0, 2, 2, 5), cell(1, 2, 5, 3)
    inputs = [tensor(x), *map(tensor, operands)]
    with pytest.raises(ModelError, match=r"input 6 \(is_time_major\): is 2, expected 0 or 1"):
        run(ONE_WAY, *inputs, scalar(4), scalar(2))
    with pytest.raises(ModelError, match=r"input 5 \(activation\): is 5"):
        run(ONE_WAY, *inputs, scalar(5), scalar(1))


@pytest.mark.parametrize(("merged", "count"), [(True, 2), (True, 4), (False, 1), (False, 3)])
def test_the_number_of_outputs_fits_the_flag(merged: bool, count: int) -> None:
    inputs = Both("", True, merged, 4, 0).inputs()
    with pytest.raises(ModelError, match=r"input 14 \(merge_outputs\): is .* there must be"):
        run(BOTH_WAYS, *inputs, output_types=[F32] * count)


def test_states_came_with_version_1_3() -> None:
    inputs = Both("parallel", True, False, 4, 0).inputs()
    for count, version in ((2, HalVersion.V1_2), (4, HalVersion.V1_3)):
        outputs = OPERATIONS[BOTH_WAYS].infer(inputs, [F32] * count)
        assert OPERATIONS[BOTH_WAYS].minimum_version(inputs, outputs) == version
