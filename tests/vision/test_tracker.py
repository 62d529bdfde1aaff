"""The tracker: identities over time, lost and found things, labels that flicker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.vision import Boxes, Tracker
from nnasync.vision.tracker import _best_first

FRAME_NS = 33_000_000


def square(x: float, y: float, side: float = 20) -> tuple[float, float, float, float]:
    return (x - side / 2, y - side / 2, x + side / 2, y + side / 2)


def identities(boxes: Boxes) -> list[int]:
    assert boxes.identities is not None
    return [int(each) for each in boxes.identities]


def follow(tracker: Tracker, paths: list[list[tuple[float, float]]]) -> list[Boxes]:
    """Paths of centers, one list for each picture."""
    return [
        tracker.update(Boxes.of([square(*place) for place in places]), number * FRAME_NS)
        for number, places in enumerate(paths)
    ]


@given(st.floats(-300, 300), st.floats(-300, 300), st.integers(0, 2**31))
def test_two_things_that_move_keep_their_identities(vx: float, vy: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.5, (20, 4))
    seconds = FRAME_NS / 1e9
    paths = [
        [
            (100 + vx * n * seconds + jitter[0], 100 + vy * n * seconds + jitter[1]),
            (600 - vx * n * seconds + jitter[2], 400 + vy * n * seconds + jitter[3]),
        ]
        for n, jitter in enumerate(noise)
    ]
    seen = follow(Tracker(confirmations=1), paths)
    assert [identities(boxes) for boxes in seen] == [[0, 1]] * 20
    centers: Array = (seen[-1].corners[:, :2] + seen[-1].corners[:, 2:]) / 2
    assert centers == pytest.approx(np.array(paths[-1]), abs=3)


def test_things_that_cross_are_told_apart_by_their_motion() -> None:
    paths = [[(50.0 + 8 * n, 100.0), (210.0 - 8 * n, 104.0)] for n in range(20)]
    seen = follow(Tracker(confirmations=1), paths)
    assert identities(seen[-1]) == [0, 1]


def test_a_thing_is_told_of_when_it_is_confirmed_and_kept_while_it_is_hidden() -> None:
    tracker = Tracker(confirmations=2, patience_ns=5 * FRAME_NS)
    here, gone = Boxes.of([square(50, 50)]), Boxes.of()
    counts = [len(tracker.update(here, n * FRAME_NS)) for n in range(3)]
    assert counts == [0, 1, 1]
    for n in range(3, 6):
        assert len(tracker.update(gone, n * FRAME_NS)) == 0
        assert identities(tracker.expected(n * FRAME_NS)) == [0]
    assert identities(tracker.update(here, 6 * FRAME_NS)) == [0]
    tracker.update(gone, 20 * FRAME_NS)
    assert len(tracker.expected(20 * FRAME_NS)) == 0
    tracker.update(here, 21 * FRAME_NS)
    assert identities(tracker.update(here, 22 * FRAME_NS)) == [1]


def test_a_hidden_thing_is_expected_where_its_speed_carries_it() -> None:
    tracker = Tracker(confirmations=1)
    follow(tracker, [[(100.0 + 10 * n, 50.0)] for n in range(12)])
    (box,) = tracker.expected(16 * FRAME_NS)
    assert (box.left + box.right) / 2 == pytest.approx(100 + 10 * 16, abs=4)


def test_a_small_quick_thing_is_found_nearby() -> None:
    seen = follow(Tracker(confirmations=1), [[(100.0, 50.0)], [(119.0, 50.0)], [(138.0, 50.0)]])
    assert [identities(boxes) for boxes in seen] == [[0]] * 3


def test_a_label_that_flickers_stays() -> None:
    tracker = Tracker(confirmations=1)
    labels = []
    for number, label in enumerate([7, 7, 1, 7, 1, 7, 7]):
        found = Boxes.of([square(50, 50)], [0.9], [label], names=tuple("0123456789"))
        (box,) = tracker.update(found, number * FRAME_NS)
        labels.append(box.name)
    assert labels == ["7"] * 7


def test_times_that_stand_still_or_jump_back_lose_nothing() -> None:
    tracker = Tracker(confirmations=1)
    for now_ns in (10, 10, 5, 10**12, 10**12 + 1):
        (box,) = tracker.update(Boxes.of([square(50, 50)]), now_ns)
        assert np.isfinite([box.left, box.top, box.right, box.bottom]).all()


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(0, 6), st.integers(0, 6)),
        elements=st.integers(-1, 4).map(float),
    )
)
def test_the_best_pair_is_taken_first_and_what_it_has_is_gone(table: Array) -> None:
    left, expected = table.copy(), []
    while left.size and left.max() > 0:
        row, column = divmod(int(left.argmax()), left.shape[1])
        left[row], left[:, column] = 0, 0
        expected.append((row, column))
    assert list(_best_first(table)) == expected


def test_a_box_that_is_not_finite_is_none() -> None:
    tracker = Tracker(confirmations=1)
    wrong = Boxes.of([[np.nan, 0, 5, 5], square(50, 50), square(90, 90)], [1, 1, np.inf])
    for now_ns in (0, FRAME_NS):
        assert identities(tracker.update(wrong, now_ns)) == [0]


def test_a_crowd_keeps_its_identities() -> None:
    crowd = Boxes.of(np.repeat([[0, 0, 5, 5]], 1500, 0) + np.arange(1500)[:, None] * 7)
    tracker = Tracker(confirmations=1)
    for now_ns in (0, FRAME_NS):
        assert identities(tracker.update(crowd, now_ns)) == list(range(1500))


@pytest.mark.parametrize(
    "options", [{"overlap": 0}, {"overlap": 2}, {"patience_ns": -1}, {"confirmations": 0}]
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        Tracker(**options)


def test_places_and_speeds_beyond_measure_raise_nothing() -> None:
    tracker = Tracker(confirmations=1)
    wild = Boxes.of([[-3e38, 0, 3e38, 9e5], square(50, 50)], [1, 1])
    near, away = (Boxes.of([[x, 0, x + 9e5, 9e5]], [1]) for x in (-9e5, 0))
    assert identities(tracker.update(wild, 0)) == [0]
    for now_ns in range(1, 9):
        found = tracker.update(near if now_ns % 2 else away, now_ns)
        assert np.isfinite(found.corners).all()
