"""Positions in a recording, of items with and without a time in the media."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.streaming import Item, audio_recorder, video_recorder
from nnasync.streaming.sinks.timeline import Timeline, Times

TIMES = st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 10**12)), min_size=1, max_size=9)


@given(captured_ns=st.lists(st.integers(0, 10**15), min_size=5, max_size=5), steps=TIMES)
def test_media_decides_whenever_the_items_were_captured(
    captured_ns: list[int], steps: list[tuple[int, int]]
) -> None:
    first = Item(0, captured_ns[0], None, media_ns=steps[0][0])
    timeline, media_ns = Timeline(first, "media"), first.media_ns
    for captured, (_, step) in zip(captured_ns[1:], steps, strict=False):
        media_ns += step
        assert timeline.position_ns(Item(1, captured, None, media_ns)) == media_ns - first.media_ns


@pytest.mark.parametrize(("times", "media_ns"), [("media", 0), ("captured", 40)])
def test_captures_decide_where_media_says_nothing_or_is_not_wanted(
    times: Times, media_ns: int
) -> None:
    timeline = Timeline(Item(0, 100, None), times)
    assert timeline.position_ns(Item(0, 100, None)) == 0
    assert timeline.position_ns(Item(1, 107, None, media_ns)) == 7


def test_other_times_are_refused() -> None:
    for recorder in (video_recorder, audio_recorder):
        with pytest.raises(InvalidArgument, match=r"times is 'wall', it must be .media. or"):
            recorder("x", times="wall")  # type: ignore[arg-type]  # Refused while running, too.
