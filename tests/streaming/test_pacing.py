"""Pacing: absolute times, no drift, and nothing early."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.streaming.pacing import Pacer

pytestmark = pytest.mark.anyio


class Time:
    """A clock whose sleeps end early or late, as `errors_ns` says."""

    def __init__(self, errors_ns: list[int]) -> None:
        self.ns = 1_000
        self._errors = itertools.cycle(errors_ns or [0])
        self.sleeps = 0

    def now(self) -> int:
        return self.ns

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.ns += max(round(seconds * 1e9) + next(self._errors), 1)


@given(st.lists(st.integers(-400_000, 3_000_000), max_size=8), st.integers(1, 50))
async def test_times_do_not_drift_and_never_come_early(errors_ns: list[int], count: int) -> None:
    time = Time([*errors_ns, 0])
    pacer = Pacer("real-time", start_ns=5_000, now=time.now, sleep=time.sleep)
    for index in range(count):
        due_ns = await pacer.wait_until(index * 10_000_000)
        assert due_ns == 5_000 + index * 10_000_000
        assert time.ns >= due_ns


async def test_late_consumer_gets_what_is_due_at_once() -> None:
    time = Time([])
    pacer = Pacer(now=time.now, sleep=time.sleep)
    assert await pacer.wait_until(0) == 1_000
    time.ns += 100
    for position in (10, 20, 30):
        assert await pacer.wait_until(position) == 1_000 + position
    assert time.sleeps == 0
    assert await pacer.wait_until(1_000) == 2_000
    assert time.sleeps == 1


async def test_fast_means_now() -> None:
    time = Time([])
    pacer = Pacer("fast", now=time.now, sleep=time.sleep)
    assert await pacer.wait_until(10**15) == time.ns
    assert time.sleeps == 0


async def test_unknown_pace() -> None:
    with pytest.raises(InvalidArgument, match="real-time"):
        Pacer("slow")  # type: ignore[arg-type]
