"""Media times mapped to the monotonic clock: whatever a sender's clock does, ours goes on."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.streaming.sources.media_clock import JUMP_NS, MOST_DELAY_NS, MediaClock

MS = 1_000_000
S = 1_000_000_000
START = 1000 * S
FRAME = 33 * MS

steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 50 * MS), st.integers(-(2**62), 2**62), st.none()),
        st.integers(0, 3 * S),
    ),
    max_size=60,
)


@given(steps, st.booleans(), st.sampled_from([0, 2**33 * 100_000 // 9]))
def test_times_rise_strictly_whatever_comes(
    steps: list[tuple[int | None, int]], is_live: bool, wrap_ns: int
) -> None:
    clock = MediaClock(is_live=is_live, wrap_ns=wrap_ns)
    media, arrived, last = 0, START, None
    for step, wait in steps:
        arrived += wait
        media += step or 0
        captured = clock.captured_ns(None if step is None else media, arrived)
        assert last is None or captured > last
        if is_live:
            assert captured <= arrived or (last is not None and captured == last + 1)
        last = captured


def test_jitter_of_arrivals_is_taken_out() -> None:
    clock = MediaClock()
    delays = [0, 20, 5, 40, 0, 13, 27]
    captured = [
        clock.captured_ns(index * FRAME, START + index * FRAME + delay * MS)
        for index, delay in enumerate(delays)
    ]
    steps = [b - a for a, b in itertools.pairwise(captured)]
    assert all(abs(step - FRAME) < MS // 10 for step in steps)
    assert clock.mended == 0


@pytest.mark.parametrize("drift", [0.999, 1.001], ids=["slow", "quick"])
def test_a_clock_that_drifts_is_followed(drift: float) -> None:
    clock = MediaClock()
    for index in range(20_000):
        arrived = START + index * FRAME
        captured = clock.captured_ns(round(index * FRAME * drift), arrived)
    assert 0 <= arrived - captured < 50 * MS
    assert clock.mended == 0


@pytest.mark.parametrize(
    "jump", [100 * S, -100 * S, -2 * FRAME, JUMP_NS + FRAME], ids=["on", "back", "little", "least"]
)
def test_a_jump_is_mended_and_counted(jump: int) -> None:
    clock = MediaClock()
    clock.captured_ns(500 * S, START)
    assert clock.captured_ns(500 * S + jump + FRAME, START + FRAME) == START + FRAME
    assert clock.captured_ns(500 * S + jump + 2 * FRAME, START + 2 * FRAME) == START + 2 * FRAME
    assert clock.mended == 1


def test_times_that_stand_still_are_counted() -> None:
    clock = MediaClock()
    captured = [clock.captured_ns(7, START + index * FRAME) for index in range(4)]
    assert captured == [START + index * FRAME for index in range(4)]
    assert clock.mended == 3


def test_a_wrap_around_is_no_jump() -> None:
    wrap_ns = 2**33 * 100_000 // 9
    clock = MediaClock(wrap_ns=wrap_ns)
    first = clock.captured_ns(wrap_ns - FRAME, START)
    assert clock.captured_ns(FRAME, START + 2 * FRAME) == first + 2 * FRAME
    assert clock.captured_ns(3 * FRAME, START + 4 * FRAME) == first + 4 * FRAME
    assert clock.mended == 0


def test_what_waited_in_the_network_keeps_its_time() -> None:
    clock = MediaClock()
    clock.captured_ns(0, START)
    late = clock.captured_ns(FRAME, START + FRAME + 5 * S)
    assert abs(late - (START + FRAME)) < 10 * MS


def test_times_that_would_be_too_long_ago_are_not_believed() -> None:
    clock = MediaClock()
    clock.captured_ns(0, START)
    arrived = START + MOST_DELAY_NS + 2 * FRAME
    assert clock.captured_ns(FRAME, arrived) == arrived
    assert clock.mended == 1


def test_what_is_read_faster_than_it_plays_is_due_later() -> None:
    clock = MediaClock(is_live=False)
    due = [clock.captured_ns(index * FRAME, START + index) for index in range(5)]
    assert due == [START + index * FRAME for index in range(5)]
