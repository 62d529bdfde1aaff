"""A conclusion that is slow to come."""

from __future__ import annotations

from nnasync._core.workers.belief import Belief


def looks_until(belief: Belief, *, speaks_for: bool) -> int:
    count = 1
    while not belief.note(speaks_for=speaks_for):
        count += 1
    return count


def test_it_takes_looks_in_a_row() -> None:
    belief = Belief(proof=3, most_proof=12, doubts=2)
    assert not belief.note(speaks_for=True)
    assert not belief.note(speaks_for=False)
    assert (looks_until(belief, speaks_for=True), belief.holds) == (3, True)
    assert not belief.note(speaks_for=False)
    assert not belief.note(speaks_for=True)
    assert (looks_until(belief, speaks_for=False), belief.holds) == (2, False)


def test_each_mistake_makes_it_slower_up_to_a_limit_and_time_makes_it_quicker_again() -> None:
    belief = Belief(proof=3, most_proof=12, doubts=1)
    found = []
    for _ in range(4):
        found.append(looks_until(belief, speaks_for=True))
        belief.note(speaks_for=False)
    assert found == [3, 6, 12, 12]
    assert looks_until(belief, speaks_for=True) == 12
    for _ in range(20):
        belief.note(speaks_for=True)
    belief.disappoint()
    assert not belief.holds
    assert looks_until(belief, speaks_for=True) == 6
