"""Sequences at once and in rounds, against a walk step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import Arguments, ArraySpec, Parameter, Signature
from nnasync.kernels.recurrent.walking import Rounds, Stretch, TimeOrder
from nnasync.kernels.steps import Call, copy, sequence
from tests.kernels.running import run, scalar, tensor

F32 = OperandType.TENSOR_FLOAT32
TIMES = (1, 2, 63, 64, 65, 128, 131)
SUM = Signature(
    HalVersion.V1_2, (Parameter("x", F32), Parameter("y", F32), Parameter("total", F32)), ()
)


class Sum:
    """Adds up x and y over time."""

    sources = (0, 1)
    states = (2,)
    features = 3

    def __init__(self, *, backward: bool) -> None:
        self.backward = backward

    def scratch(self, times: int, batches: int) -> list[ArraySpec]:
        return [ArraySpec((times, batches, 3))]

    def calls(self, stretch: Stretch) -> list[Call]:
        both = stretch.scratch[0][: len(stretch.results)]
        calls: list[Call] = [(np.add, (*stretch.sources, both))]
        total = stretch.states[0]
        for time in stretch.order(backward=self.backward):
            calls.append((np.add, (total, both[time], stretch.results[time])))
            total = stretch.results[time]
        return [*calls, copy(stretch.after[0], total)]


def numbers(rng: Any, *shape: int) -> Array:
    return np.asarray(rng.integers(-9, 10, shape), np.float32)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("major", [True, False])
@pytest.mark.parametrize("backward", [True, False])
def test_rounds(times: int, batches: int, major: bool, backward: bool) -> None:
    rng = np.random.default_rng(times)
    shape = (times, batches, 3) if major else (batches, times, 3)
    x, y, before = numbers(rng, *shape), numbers(rng, *shape), numbers(rng, batches, 3)
    timeline = TimeOrder(shape, major=major)
    arguments = Arguments("SUM", [tensor(each) for each in (x, y, before)], SUM)
    turn = slice(None, None, -1 if backward else 1)
    expected = before + np.cumsum(timeline.steps(x + y)[turn], axis=0)
    for direct, wanted in ((True, True), (True, False), (False, True)):
        rounds = Rounds(Sum(backward=backward), arguments, timeline, direct=direct)
        wide = np.zeros((*shape[:2], 6), np.float32)
        output = np.zeros(shape, np.float32) if direct else wide[..., 3:]
        after = [np.zeros_like(before)] if wanted else []
        scratch = [np.full(spec.shape, np.nan, spec.dtype) for spec in rounds.scratch()]
        target = timeline.steps(output)
        step = sequence(rounds.calls([x, y, before], target, after, iter(scratch)))
        for _ in range(2):
            step()
            np.testing.assert_array_equal(target[turn], expected)
            assert not wanted or (after[0] == expected[-1]).all()


def test_long_sequences_need_no_more_calls_than_short_ones() -> None:
    counts = []
    for times in (100_000, 200_000):
        x, before = np.zeros((times, 1, 3), np.float32), np.zeros((1, 3), np.float32)
        arguments = Arguments("SUM", [tensor(each) for each in (x, x, before)], SUM)
        timeline = TimeOrder(x.shape, major=True)
        rounds = Rounds(Sum(backward=False), arguments, timeline)
        counts.append([spec.nbytes for spec in rounds.scratch()])
        scratch = iter([np.zeros(spec.shape, spec.dtype) for spec in rounds.scratch()])
        assert len(rounds.calls([x, x, before], np.zeros_like(x), [], scratch)) == 1
    assert counts[0] == counts[1]


RNN, LSTM = (
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
)
STATE = (2, 4)
PARTS: dict[OperationType, list[tuple[int, ...] | None]] = {
    RNN: [(4, 3), (4, 4), (4,)],
    LSTM: [*[(4, 3)] * 4, *[(4, 4)] * 4, None, None, None, *[(4,)] * 4, None, None],
}
OPTIONS: dict[OperationType, list[Any]] = {
    RNN: [scalar(4), scalar(1)],
    LSTM: [scalar(4), scalar(0.0), scalar(0.0), scalar(True), *[None] * 4],
}


@pytest.mark.parametrize("times", [64, 65, 130])
@pytest.mark.parametrize(("operation", "count"), [(RNN, 1), (LSTM, 2)])
def test_a_long_sequence_is_its_parts(operation: OperationType, count: int, times: int) -> None:
    rng = np.random.default_rng(times)

    def some(*shape: int) -> Array:
        return np.asarray(rng.normal(size=shape) * 0.5, np.float32)

    weights = [None if shape is None else tensor(some(*shape)) for shape in PARTS[operation]]
    x, before = some(times, 2, 3), [some(*STATE) for _ in range(count)]

    def walked(part: Array, states: list[Array]) -> list[Array]:
        inputs = [tensor(part), *weights, *map(tensor, states), *OPTIONS[operation]]
        return run(operation, *inputs, output_types=[F32] * (1 + count))

    whole = walked(x, before)
    head = walked(x[:40], before)
    tail = walked(x[40:], head[1:])
    np.testing.assert_allclose(whole[0], np.concatenate([head[0], tail[0]]), atol=1e-6)
    for one, other in zip(whole[1:], tail[1:], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
