"""A recording that is played over and over."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.cli.live.repeated import Repeated
from nnasync.errors import InvalidArgument
from nnasync.streaming import RecordedSource, synthetic

pytestmark = pytest.mark.anyio

RATE_HZ = 100
PERIOD_NS = 10_000_000


def recording(count: int) -> RecordedSource:
    return synthetic(lambda index: np.full(1, index), rate_hz=RATE_HZ, count=count, pace="fast")


async def test_rounds_follow_one_another_with_numbers_and_times_that_go_on() -> None:
    made: list[RecordedSource] = []

    def make() -> RecordedSource:
        made.append(recording(3))
        return made[-1]

    source = Repeated(make, PERIOD_NS, change=lambda data: data * 2)
    items = [await anext(source) for _ in range(7)]
    await source.aclose()
    assert [item.index for item in items] == list(range(7))
    assert [int(item.data[0]) for item in items] == [0, 2, 4, 0, 2, 4, 0]
    steps = np.diff([item.media_ns for item in items])
    assert set(steps.tolist()) == {PERIOD_NS}
    assert len(made) == 3


async def test_a_recording_with_nothing_in_it_is_at_its_end() -> None:
    source = Repeated(lambda: recording(0), PERIOD_NS)
    with pytest.raises(StopAsyncIteration):
        await anext(source)


async def test_what_reading_raises_is_raised() -> None:
    def broken(index: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        raise InvalidArgument(f"item {index} cannot be read")

    source = Repeated(lambda: synthetic(broken, rate_hz=RATE_HZ, pace="fast"), PERIOD_NS)
    with pytest.raises(InvalidArgument, match="item 0 cannot be read"):
        await anext(source)
    await source.aclose()


async def test_what_is_closed_while_it_is_read_begins_no_other_round() -> None:
    made: list[RecordedSource] = []

    def make() -> RecordedSource:
        made.append(recording(1))
        return made[-1]

    source = Repeated(make, PERIOD_NS)
    await anext(source)
    for _ in range(2):
        await source.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(source)
    assert len(made) == 1
