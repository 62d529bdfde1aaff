"""Sequences of LSTM steps, in one direction and in both, against the definition."""

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

ONE_WAY = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
BOTH_WAYS = OperationType.BIDIRECTIONAL_SEQUENCE_LSTM
F32 = OperandType.TENSOR_FLOAT32
SEEDS = st.integers(0, 2**32 - 1)


def ordered(sequence: Array, major: bool) -> Array:
    """A sequence [times, batches, features] as the operation takes and gives it."""
    return sequence if major else np.ascontiguousarray(sequence.transpose(1, 0, 2))


def walk(
    x: Array, arrays: Sequence[Array | None], features: Features, aux: Sequence[Array] = ()
) -> tuple[Array, Array, Array]:
    """The outputs of all steps, and the last states; `aux` holds sums [times, ...] of each gate."""
    w = wide(arrays)
    h, c = w[18], w[19]
    outputs = []
    for time, values in enumerate(x.astype(np.float64)):
        h, c = step(values, w, h, c, features, [gate[time] for gate in aux])
        outputs.append(h)
    return np.stack(outputs), h, c


@given(FEATURES, st.integers(1, 3), st.integers(1, 5), st.booleans(), st.booleans(), SEEDS)
def test_one_way(
    features: Features, batches: int, times: int, major: bool, states: bool, seed: int
) -> None:
    sizes = sizes_of(features, batches)
    arrays = make(features, sizes, seed)
    x = some_input(seed + 1, times, batches, sizes.inputs)
    inputs = [tensor(ordered(x, major)), *operands(arrays[:19]), *scalars(features)]
    inputs += [scalar(major), *operands(arrays[19:])]
    results = run(ONE_WAY, *inputs, runtime=(0, 18, 19), output_types=[F32] * (3 if states else 1))
    expected, h, c = walk(x, arrays, features)
    np.testing.assert_allclose(results[0], ordered(expected, major), atol=5e-5)
    if states:
        np.testing.assert_allclose(results[1], h, atol=5e-5)
        np.testing.assert_allclose(results[2], c, atol=5e-5)


class Both:
    """A bidirectional LSTM with random operands, and what it must give."""

    def __init__(self, features: Features, link: str, major: bool, merged: bool, seed: int) -> None:
        times, batches = 3, 2
        self.major, self.merged = major, merged
        self.x = some_input(seed, times, batches, 5)
        self.aux = some_input(seed + 1, times, batches, 6)
        fw, bw = sizes_of(features, batches), sizes_of(features, batches)
        if link == "parallel":
            bw = sizes_of(features, batches, 6)
        self.features, self.link = features, link
        self.arrays = make(features, fw, seed + 2), make(features, bw, seed + 3)
        self.aux_weights = [
            [some_input(seed + 10 * way + gate, 4, 6) for gate in range(4)] for way in (0, 1)
        ]

    def inputs(self) -> list[Tensor | None]:
        fw, bw = (operands(arrays) for arrays in self.arrays)
        aux = [tensor(ordered(self.aux, self.major)) if self.link else None]
        weights: list[Tensor | None] = [None] * 8
        if self.link == "cross":
            weights = [tensor(each) for way in self.aux_weights for each in way]
            if self.features.cifg:
                weights[0] = weights[4] = None
        return [
            tensor(ordered(self.x, self.major)),
            *fw[:17],
            *bw[:17],
            *fw[17:19],
            *bw[17:19],
            *aux,
            *weights,
            *scalars(self.features),
            scalar(self.merged),
            scalar(self.major),
            *fw[19:],
            *bw[19:],
        ]

    def expected(self) -> list[Array]:
        """Outputs and states, not merged."""
        outputs, states = [], []
        for way, arrays in enumerate(self.arrays):
            source = self.aux if way and self.link == "parallel" else self.x
            sums = []
            if self.link == "cross":
                aux = self.aux[:: -1 if way else 1].astype(np.float64)
                sums = [aux @ each.T for each in self.aux_weights[way]]
            found, h, c = walk(source[:: -1 if way else 1], arrays, self.features, sums)
            outputs.append(ordered(found[:: -1 if way else 1], self.major))
            states += [h, c]
        return [*outputs, *states]


@given(
    FEATURES,
    st.sampled_from(["", "cross", "parallel"]),
    *[st.booleans()] * 4,
    SEEDS,
)
def test_both_ways(
    features: Features,
    link: str,
    major: bool,
    merged: bool,
    states: bool,
    empty: bool,
    seed: int,
) -> None:
    case = Both(features, link, major, merged, seed)
    inputs = case.inputs()
    if empty:
        inputs = [without_sizes(each) for each in inputs]
    count = (1 if merged else 2) + (4 if states else 0)
    runtime = (0, 35, 36, 37, 38, 39)
    results = run(BOTH_WAYS, *inputs, runtime=runtime, output_types=[F32] * count)
    fw, bw, *after = case.expected()
    expected = [np.concatenate([fw, bw], -1)] if merged else [fw, bw]
    for got, wanted in zip(results, [*expected, *(after if states else [])], strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4)


@pytest.mark.parametrize("link", ["", "cross", "parallel"])
def test_both_ways_in_halves(link: str) -> None:
    case = Both(PLAIN, link, True, False, 7)
    inputs: list[Any] = [halved(each) for each in case.inputs()]
    results = run(BOTH_WAYS, *inputs, runtime=range(len(inputs)))
    for got, wanted in zip(results, case.expected()[:2], strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, wanted, atol=2e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({39: None}, r"input 39 \(aux_input\): must not be omitted"),
        ({44: None, 45: None, 46: None, 47: None}, r"input 45 \(bw_.*\): must not be omitted"),
        ({40: None, 41: None, 42: None, 43: None}, r"input 41 \(fw_.*\): must not be omitted"),
        ({42: None}, r"input 42 \(fw_aux_input_to_cell_weights\): must not be omitted to match"),
        ({41: (4, 5)}, r"input 41 .*: has shape \(4, 5\), expected \(4, 6\)"),
        ({39: (3, 1, 6)}, r"input 39 \(aux_input\): has shape \(3, 1, 6\), the input"),
        ({38: (3, 4)}, r"input 38 \(bw_cell_state_in\): has shape"),
        ({26: (4,), 27: (4,), 28: (4,)}, "both directions must have"),
    ],
)
def test_directions_that_do_not_fit(
    changes: dict[int, tuple[int, ...] | None], message: str
) -> None:
    inputs = Both(PLAIN, "cross", True, False, 0).inputs()
    for index, shape in changes.items():
        inputs[index] = None if shape is None else tensor(np.ones(shape, np.float32))
    with pytest.raises(ModelError, match=message):
        run(BOTH_WAYS, *inputs, output_types=[F32] * 2)


@pytest.mark.parametrize(("merged", "count"), [(True, 2), (True, 6), (False, 1), (False, 5)])
def test_the_number_of_outputs_fits_the_flag(merged: bool, count: int) -> None:
    inputs = Both(PLAIN, "", True, merged, 0).inputs()
    with pytest.raises(ModelError, match=r"input 51 \(merge_outputs\): is .* there must be"):
        run(BOTH_WAYS, *inputs, output_types=[F32] * count)


def test_states_came_with_version_1_3() -> None:
    inputs = Both(PLAIN, "parallel", True, False, 0).inputs()
    for count, version in ((2, HalVersion.V1_2), (6, HalVersion.V1_3)):
        outputs = OPERATIONS[BOTH_WAYS].infer(inputs, [F32] * count)
        assert OPERATIONS[BOTH_WAYS].minimum_version(inputs, outputs) == version
