"""What moving work costs: the probes end, and their figures are in order."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.machine import Spread
from nnasync.machine.costs import measured
from nnasync.machine.decisions import USUAL_COSTS, decide
from tests.machine.rig import US, costs

MS = 1000 * US


def test_what_is_measured_is_plausible() -> None:
    found = measured()
    for spread in (found.turn, found.hop, found.cold_hop, found.switch):
        assert 0 < spread.low_ns <= spread.high_ns
    # A hop is two switches and two turns at least, on any machine.
    assert found.hop.low_ns > found.turn.low_ns
    assert found.chill >= 1
    assert 0 <= found.noise <= 1


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    measured()
    assert not [
        each for each in set(threading.enumerate()) - before if each.name != "nnasync-probe"
    ]


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_a_spread_lies_within_its_samples(samples: list[int]) -> None:
    spread = Spread.of(samples)
    assert min(samples) <= spread.low_ns <= spread.high_ns <= max(samples)


@pytest.mark.parametrize(
    ("cold_hop_us", "stall_us", "budget_us"), [(14, 1000, 280), (350, 1000, 1000), (20, 100, 100)]
)
def test_a_run_is_moved_where_the_hop_is_a_twentieth_of_it(
    cold_hop_us: int, stall_us: int, budget_us: int
) -> None:
    found = decide(costs(cold_hop_us=cold_hop_us), stall_us * US)
    assert found.inline_budget_ns == budget_us * US


def test_a_machine_that_is_not_measured_has_the_usual_costs() -> None:
    assert decide(None, 1 * MS) == decide(USUAL_COSTS, 1 * MS)
    assert decide(None, 0).inline_budget_ns == 0


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_what_is_decided_is_in_order_on_any_machine(hop: int, more: int, stall: int) -> None:
    found = decide(costs(hop, hop + more), stall * US)
    assert found.launch_budget_ns <= found.inline_budget_ns <= stall * US
    assert found.window_ns <= found.longest_window_ns
    assert found.hop_ns < found.spread_from_ns


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_margins_are_in_order_and_within_what_calls_may_cost(noise: float, cold_hop: int) -> None:
    found = decide(msgspec.structs.replace(costs(1, cold_hop), noise=noise), 1 * MS)
    margins = found.margins
    assert 1.01 <= margins.tie <= margins.near_enough <= 1.05
    assert margins.near_enough < margins.near < margins.rivals < margins.far
    assert 1 * MS <= found.slice_ns <= 5 * MS


def test_the_usual_noise_gives_the_margins_that_were_found_on_one_machine() -> None:
    found = decide(None, 1 * MS)
    margins = found.margins
    assert msgspec.structs.astuple(margins) == pytest.approx((1.03, 1.05, 1.1, 1.15, 1.3, 1.25))
    assert found.slice_ns == 3 * MS
