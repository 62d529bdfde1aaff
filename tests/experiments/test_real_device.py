"""The device that takes as long as it is told, and stops where its steps end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.clock import now_ns
from nnasync.engine import BoundCall, StopFlag
from nnasync.experiments.real_device import (
    Borders,
    CostEngine,
    at_multiples,
    at_shares,
    pass_time,
    whole,
)
from nnasync.hal import ExecutionPreference
from tests.rigs import LateStop, doubler

MS = 1_000_000


@given(st.integers(1, 10**9), st.integers(10**5, 10**8))
def test_multiples_end_with_the_cost(cost_ns: int, step_ns: int) -> None:
    ends = at_multiples(step_ns)(cost_ns)
    assert ends[-1] == cost_ns
    lengths = np.diff([0, *ends])
    assert all(lengths[:-1] == step_ns)
    assert 0 < lengths[-1] <= step_ns


def test_other_borders() -> None:
    assert at_shares((0.25, 0.5, 1.0))(200) == [50, 100, 200]
    assert list(whole(7)) == [7]


@pytest.mark.parametrize("spins", [False, True])
def test_time_passes_to_the_moment(spins: bool) -> None:
    until_ns = now_ns() + 3 * MS
    pass_time(until_ns, spins=spins)
    assert now_ns() >= until_ns
    pass_time(now_ns() - MS, spins=spins)


def bound(borders: Borders, cost_ns: float) -> BoundCall:
    engine = CostEngine("costs", borders, spins=False)
    plan = engine.compile(doubler(), ExecutionPreference.FAST_SINGLE_ANSWER)
    told, done = np.array([[cost_ns]], np.float32), np.ones((1, 1), np.float32)
    return plan.bind([told], [done])


def test_a_run_that_is_stopped_goes_on_from_its_border() -> None:
    call = bound(at_multiples(MS), 4 * MS)
    started_ns = now_ns()
    assert not call.run(LateStop(3))
    first_ns = now_ns() - started_ns
    assert first_ns >= 3 * MS
    started_ns = now_ns()
    assert call.run(StopFlag())
    second_ns = now_ns() - started_ns
    # What the stop was late by has been done, and is not done again.
    assert first_ns + second_ns >= 4 * MS


def test_a_run_that_is_given_up_begins_anew() -> None:
    call = bound(at_multiples(MS), 2 * MS)
    assert not call.run(LateStop(1))
    call.rewind()
    started_ns = now_ns()
    assert call.run(StopFlag())
    assert now_ns() - started_ns >= 2 * MS
