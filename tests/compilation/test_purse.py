"""What a contest in the background will take is foretold before it is spent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.compilation.purse import Purse

MS = 1_000_000


class Spending:
    """A clock of processor time, of which so much is left."""

    def __init__(self, left_ms: float) -> None:
        self.left_ns = left_ms * MS

    def __call__(self) -> float:
        return self.left_ns


def test_an_engine_that_is_not_loaded_takes_that_and_a_plan() -> None:
    left = Spending(500)
    purse = Purse(1000 * MS, left, {"quick": 20.0, "slow": 400.0})
    assert purse.expected_ns(["slow"]) == 400 * MS
    purse.note(["quick"], 30 * MS)
    assert purse.expected_ns(["slow"]) == 430 * MS
    assert purse.expected_ns(["quick"]) == 30 * MS
    assert purse.expected_ns(["quick", "slow"]) == 430 * MS
    assert purse.affords(["quick"])
    assert not purse.affords(["slow"])


def test_what_is_kept_back_follows_from_a_run_of_the_reference() -> None:
    left = Spending(500)
    purse = Purse(1000 * MS, left, {"slow": 400.0})
    assert not purse.affords(["slow"])
    purse.note_reference(1 * MS, 2 * MS, 2)
    assert purse.affords(["slow"])
    purse.note_reference(20 * MS, 2 * MS, 2)
    assert not purse.affords(["slow"])


@given(
    costs=st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), max_size=12),
    run_ms=st.integers(1, 30),
)
def test_what_is_foretold_is_never_exceeded(costs: list[tuple[int, int]], run_ms: int) -> None:
    """Engines that take no longer than they state, for plans that grow no dearer."""
    left = Spending(1000)
    names = [f"engine {number}" for number in range(len(costs))]
    loads = {name: float(load) for name, (_, load) in zip(names, costs, strict=True)}
    purse = Purse(1000 * MS, left, loads)
    dearest = max((plan for plan, _ in costs), default=0)
    purse.note(["reference"], dearest * MS)
    purse.note_reference(run_ms * MS, MS, len(costs))
    taken = 0
    for name, (plan, load) in zip(names, costs, strict=True):
        if purse.affords([name]):
            left.left_ns -= (plan + load) * MS
            purse.note([name], (plan + load) * MS)
            taken += 1
    judging_ns = (8 + 3 * taken) * run_ms * MS + 3 * MS * (taken + 1)
    assert left.left_ns >= judging_ns or not taken
