"""Whether joining pays: what is tried, and what follows."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

from nnasync.batching import Batcher, Trial
from nnasync.batching import trial as trials
from nnasync.batching.joining import agree, sample_of
from nnasync.batching.trial import sizes, verdict
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import Array
from tests.batching.test_batcher import Net, port
from tests.rigs import GUARD_S

pytestmark = pytest.mark.anyio


class Clock:
    """Time that passes when a network computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(trials, "now_ns", lambda: self.now_ns)


class Costly(Net):
    """A call takes a fixed time, and a time for each row, one after the other."""

    def __init__(self, clock: Clock, fixed_ns: int, row_ns: int) -> None:
        super().__init__()
        self.may_go.set()
        self._clock = clock
        self._price = fixed_ns, row_ns

    async def __call__(self, *arrays: Any, **options: Any) -> Any:
        self._clock.now_ns += self._price[0] + self._price[1] * len(arrays[0])
        return await super().__call__(*arrays, **options)


async def entered(net: Net, **options: Any) -> Batcher:
    with anyio.fail_after(GUARD_S):
        async with Batcher(net, **options) as batcher:
            return batcher


async def test_what_costs_little_for_each_row_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher = await entered(Costly(Clock(monkeypatch), 1000, 10), max_rows=6)
    assert batcher.report.most_rows == 6
    assert [trial.rows for trial in batcher.report.trials] == [2, 4, 6]
    assert batcher.report.trials[1] == Trial(4, 4040, 1040)
    assert "ratio 0.26" in str(batcher.report)


async def test_what_costs_as_much_for_each_row_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Costly(Clock(monkeypatch), 10, 1000)
    batcher = await entered(net, max_rows=8)
    assert batcher.report.most_rows == 1
    assert batcher.report.reason.startswith("does not pay")


async def test_rows_that_are_not_independent_are_not_joined() -> None:
    class Normalized(Net):
        def answer(self, rows: Array) -> Any:
            return rows / rows.sum()

    net = Normalized()
    net.may_go.set()
    assert "other answers" in (await entered(net)).report.reason


async def test_answers_without_a_row_for_each_are_not_joined() -> None:
    class Sum(Net):
        def answer(self, rows: Array) -> Any:
            return rows.sum(0)

    net = Sum()
    net.may_go.set()
    assert "not a row" in (await entered(net)).report.reason


async def test_a_network_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    net.may_go.set()
    net.error = GeneralFailure("broken")
    with pytest.raises(GeneralFailure, match="broken"):
        await entered(net)

    class FailsJoined(Net):
        async def __call__(self, *arrays: Any, **options: Any) -> Any:
            if len(arrays[0]) > 2:
                raise GeneralFailure("too many")
            return await super().__call__(*arrays, **options)

    net = FailsJoined()
    net.may_go.set()
    with pytest.raises(GeneralFailure, match="too many"):
        await entered(net)


async def test_shapes_that_are_open_need_a_sample() -> None:
    net = Net()
    net.may_go.set()
    net.inputs = (port("x", 0, 0),)
    with pytest.raises(InvalidArgument, match="sample"):
        await entered(net)
    sample = [np.ones((1, 7), np.float32)]
    assert (await entered(net, sample=sample)).report.trials


def test_sizes_are_powers_of_two_and_the_last() -> None:
    assert sizes(2) == [2]
    assert sizes(8) == [2, 4, 8]
    assert sizes(12) == [2, 4, 8, 12]


def test_the_verdict_takes_what_saves_most_for_each_row() -> None:
    found = verdict([Trial(2, 200, 150), Trial(4, 400, 200), Trial(8, 800, 700)])
    assert found.most_rows == 4
    assert verdict([Trial(2, 200, 190), Trial(4, 400, 390)]).most_rows == 1


def test_samples_are_of_the_right_type() -> None:
    found = sample_of((port("x", 0, 3),))
    assert found is not None
    assert (found[0].shape, found[0].dtype) == ((1, 3), np.dtype(np.float32))


def test_answers_agree_as_near_as_engines_compute() -> None:
    one = np.array([1.0, 1000.0], np.float32)
    assert agree(one, one + 0.5)
    assert not agree(one, one * 1.1)
    assert agree(np.array([5], np.uint8), np.array([6], np.uint8))
    assert not agree((one,), (one, one))
