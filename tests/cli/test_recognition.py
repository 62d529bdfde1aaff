"""Decoding of scores into words and digits, and the shares that are right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.cli.recognition import (
    NONE,
    DigitVote,
    SpokenWord,
    Word,
    WordDecoder,
    digit_accuracy,
    word_accuracy,
)
from nnasync.hal import Array


def scores(label: int, certainty: float = 0.9) -> Array:
    row = np.full((1, NONE + 1), (1 - certainty) / NONE, np.float32)
    row[0, label] = certainty
    return row


def heard(labels: Sequence[int], decoder: WordDecoder | None = None) -> list[Word]:
    decoder = decoder or WordDecoder()
    events = [decoder.feed(hop, scores(label)) for hop, label in enumerate(labels)]
    return [event for event in events if event is not None]


def spoken(label: int, start_hop: int, end_hop: int) -> SpokenWord:
    return SpokenWord(label, start_hop * 160, end_hop * 160)


def test_one_bump_of_scores_is_one_word() -> None:
    (event,) = heard([NONE] * 30 + [7] * 20 + [NONE] * 30)
    assert event.label == 7
    assert 50 < event.hop <= 50 + 10 + 12
    assert event.score > 0.8


def test_silence_and_a_single_stray_hop_are_no_word() -> None:
    assert heard([NONE] * 40 + [3] + [NONE] * 40) == []


def test_words_follow_one_another() -> None:
    track = [NONE] * 30 + [1] * 20 + [NONE] * 30 + [1] * 20 + [NONE] * 30 + [2] * 20 + [NONE] * 30
    assert [event.label for event in heard(track)] == [1, 1, 2]


def test_a_short_dip_does_not_end_a_word() -> None:
    track = [NONE] * 30 + [4] * 10 + [NONE] * 6 + [4] * 6 + [NONE] * 30
    assert [event.label for event in heard(track)] == [4]


def test_the_strongest_word_of_a_sound_is_decided() -> None:
    rows = [scores(NONE)] * 20 + [scores(8, 0.6)] * 8 + [scores(6, 0.95)] * 12 + [scores(NONE)] * 20
    decoder = WordDecoder()
    events = [decoder.feed(hop, row) for hop, row in enumerate(rows)]
    assert [event.label for event in events if event is not None] == [6]


def test_a_weak_score_is_no_word() -> None:
    decoder = WordDecoder(threshold=0.5)
    rows = [scores(NONE)] * 20 + [scores(2, 0.45)] * 30 + [scores(NONE)] * 30
    assert {decoder.feed(hop, row) for hop, row in enumerate(rows)} == {None}


def test_a_word_that_never_ends_is_decided_once_after_patience() -> None:
    (event,) = heard([NONE] * 20 + [5] * 200, WordDecoder(smooth=6, patience=40))
    assert 20 + 40 <= event.hop < 20 + 6 + 40


def test_scores_from_before_a_gap_are_forgotten() -> None:
    decoder = WordDecoder()
    hops = [*range(20), *range(60, 80), *range(200, 240)]
    labels = [6] * 20 + [NONE] * 20 + [8] * 20 + [NONE] * 20
    events = [decoder.feed(hop, scores(label)) for hop, label in zip(hops, labels, strict=True)]
    assert [event.label for event in events if event is not None] == [6, 8]


@given(st.lists(st.integers(0, NONE), max_size=300))
def test_words_are_apart_by_more_than_the_settling_time(labels: list[int]) -> None:
    hops = [event.hop for event in heard(labels, WordDecoder(settle=6))]
    assert all(later - earlier > 6 for earlier, later in itertools.pairwise(hops))


@pytest.mark.parametrize(
    ("events", "share"),
    [
        ([Word(1, 55, 0.9), Word(2, 155, 0.9)], 1.0),
        ([Word(1, 55, 0.9)], 0.5),
        ([Word(1, 55, 0.9), Word(3, 155, 0.9)], 0.5),
        ([Word(1, 55, 0.9), Word(2, 155, 0.9), Word(2, 170, 0.9)], 2 / 3),
        ([Word(9, 2, 0.9), Word(1, 55, 0.9), Word(2, 155, 0.9)], 2 / 3),
        ([], 0.0),
    ],
    ids=["all", "one missed", "one mistaken", "one twice", "one false alarm", "none"],
)
def test_word_accuracy_counts_misses_mistakes_and_false_alarms(
    events: list[Word], share: float
) -> None:
    truth = [spoken(1, 20, 50), spoken(2, 120, 150)]
    assert word_accuracy(events, truth) == pytest.approx(share)


def test_an_answer_that_comes_too_late_is_a_miss_and_a_false_alarm() -> None:
    assert word_accuracy([Word(1, 101, 0.9)], [spoken(1, 20, 50)], grace_hops=50) == 0.0
    assert word_accuracy([Word(1, 100, 0.9)], [spoken(1, 20, 50)], grace_hops=50) == 1.0


def test_nothing_spoken_and_nothing_heard_is_right() -> None:
    assert word_accuracy([], []) == 1.0
    assert word_accuracy([Word(1, 1, 0.9)], []) == 0.0


def test_digit_accuracy_counts_missing_frames_as_wrong() -> None:
    assert digit_accuracy({0: 5, 1: 5, 3: 5}, [5, 5, 5, 4]) == 0.5
    assert digit_accuracy({}, []) == 1.0


def test_vote_shows_the_commonest_label_and_the_newest_on_a_tie() -> None:
    vote = DigitVote(span=3)
    assert [vote.feed(label) for label in (1, 1, 2, 2, 3)] == [1, 1, 1, 2, 2]
    assert DigitVote(span=2).feed(4) == 4
    vote = DigitVote(span=2)
    assert [vote.feed(label) for label in (1, 2)] == [1, 2]
