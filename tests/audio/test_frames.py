"""Windows of samples that arrive in pieces, and samples out of windows again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.audio import Framer, OverlapAdd, hann
from nnasync.errors import InvalidArgument

pieces = st.lists(st.integers(0, 40), max_size=12)


@given(pieces, st.integers(1, 25), st.integers(1, 40))
def test_pieces_give_the_windows_of_the_whole(lengths: list[int], size: int, hop: int) -> None:
    whole = np.arange(sum(lengths), dtype=np.float32)
    ends = [0, *itertools.accumulate(lengths)]
    framer = Framer(size, hop)
    found = [framer.feed(whole[a:b]) for a, b in itertools.pairwise(ends)]
    expected = [whole[i : i + size] for i in range(0, len(whole) - size + 1, hop)]
    assert [list(row) for part in found for row in part] == [list(row) for row in expected]


@given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 10))
def test_what_is_added_up_is_the_sum(hop: int, overlap: int, count: int) -> None:
    size = hop * overlap
    windows = np.random.default_rng(count).normal(size=(count, size)).astype(np.float32)
    expected = np.zeros(hop * count + size - hop, np.float32)
    for number, window in enumerate(windows):
        expected[number * hop : number * hop + size] += window
    adder = OverlapAdd(size, hop)
    parts = [adder.feed(window) for window in windows] + [adder.finish()]
    assert np.concatenate(parts) == pytest.approx(expected, abs=1e-5)
    assert not adder.finish().any()


def test_weighted_windows_give_the_sound_back() -> None:
    sound = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    framer, adder = Framer(100, 50), OverlapAdd(100, 50)
    back = adder.feed(framer.feed(sound) * hann(100))
    assert back[50:] == pytest.approx(sound[50 : len(back)], abs=1e-5)


def test_a_gap_is_forgotten_on_demand() -> None:
    framer = Framer(4, 9)
    framer.feed(np.ones(5))
    framer.reset()
    assert framer.pending == 0
    assert framer.feed(np.arange(4)).tolist() == [[0, 1, 2, 3]]


def test_symmetric_windows_end_as_they_begin() -> None:
    assert hann(5, periodic=False) == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert hann(4) == pytest.approx([0, 0.5, 1, 0.5])
    assert hann(1).tolist() == [0.0]


@pytest.mark.parametrize("samples", [np.zeros((2, 8)), np.array(["a"]), np.zeros((2, 1, 2))])
def test_what_is_no_row_of_samples_is_refused(samples: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match="samples are one row"):
        Framer(4, 2).feed(samples)


def test_sizes_that_are_none_are_refused() -> None:
    for size, hop in ((0, 1), (1, 0)):
        with pytest.raises(InvalidArgument, match="is 0, it must be a whole number from 1"):
            Framer(size, hop)
    with pytest.raises(InvalidArgument, match="hop is 5, it must be a whole number from 1 to 4"):
        OverlapAdd(4, 5)
    with pytest.raises(InvalidArgument, match=r"\[n, 4\]"):
        OverlapAdd(4, 2).feed(np.zeros((2, 3)))
    with pytest.raises(InvalidArgument, match="windows is 'text', it must be an array of numbers"):
        OverlapAdd(4, 2).feed("text")
    with pytest.raises(InvalidArgument, match="size is 0"):
        hann(0)
