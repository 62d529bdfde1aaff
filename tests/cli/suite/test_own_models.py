"""The networks that come with nnasync, on their data: what is known to be right is found right."""

from __future__ import annotations

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.execution.ports import ports_of
from nnasync.cli.suite.own_models import own_subjects
from nnasync.suites.benchmark import DataSequence

pytest.importorskip("av", reason="the extra demo is not installed")

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("the loop has no part in it")]
NEEDED = {"digits": 0.9, "digits_large": 0.9, "detector": 0.9, "words": 0.0, "phones": 0.0}
"""The least share that is right, or the largest rate of errors."""
SEQUENCES = 2


async def answers(net: nn.Net, sequence: DataSequence) -> tuple[np.ndarray, ...]:
    async with net.burst() as burst:
        rows = [await burst(*step) for step in zip(*sequence.inputs, strict=True)]
    rows = [row if isinstance(row, tuple) else (row,) for row in rows]
    real = [net.dequantize(row[0] if len(row) == 1 else row) for row in rows]
    steps = [each if isinstance(each, tuple) else (each,) for each in real]
    return tuple(np.stack(arrays) for arrays in zip(*steps, strict=True))


@pytest.mark.parametrize("name", NEEDED)
async def test_what_they_are_made_for_they_do(name: str) -> None:
    [subject] = [each for each in own_subjects() if each.name == name]
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(subject.model)
        sequences = subject.read_data(ports_of(nn.load(subject.model))).sequences[:SEQUENCES]
        given = [await answers(net, each) for each in sequences]
    assert subject.evaluator is not None
    score = subject.evaluator.evaluate(sequences, given).scores[0]
    if NEEDED[name]:
        assert score.value >= NEEDED[name]
    else:
        assert score.value == 0
