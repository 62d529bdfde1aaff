"""How many messages a page may send."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nnasync.cli.live.flood import Allowance

SECOND = 1_000_000_000


def test_a_burst_and_then_a_rate() -> None:
    allowance = Allowance(10, burst=3)
    assert [allowance.take(0) for _ in range(4)] == [True, True, True, False]
    assert [allowance.take(SECOND // 10), allowance.take(SECOND // 10)] == [True, False]
    assert [allowance.take(100 * SECOND) for _ in range(4)] == [True, True, True, False]


@given(st.lists(st.integers(0, SECOND), min_size=1, max_size=300))
def test_never_more_than_the_rate_allows(pauses: list[int]) -> None:
    allowance = Allowance(20, burst=5)
    now = taken = 0
    for pause in pauses:
        now += pause
        taken += allowance.take(now)
    assert taken <= 5 + now * 20 / SECOND + 1e-6
