"""Log mel energies: the definition, pieces like the whole, and Whisper's scaling."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.audio import LogMel, hann, mel_filters, whisper_features, whisper_scaled
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

SOUND = np.random.default_rng(1).normal(0, 0.1, 2000).astype(np.float32)


def defined(sound: Array, row: int) -> Array:
    """One row, by a discrete Fourier transform that is written out."""
    padded = np.pad(sound.astype(np.float64), 200, mode="reflect")
    window = padded[row * 160 : row * 160 + 400] * hann(400)
    phases = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    energies = mel_filters(16_000, 400, 80) @ np.abs(phases @ window) ** 2
    found: Array = np.log10(np.maximum(energies, 1e-10))
    return found


def test_rows_are_what_the_definition_says() -> None:
    front = LogMel()
    rows = np.concatenate([front.feed(SOUND), front.finish()])
    assert rows.shape == (2000 // 160, 80)
    for row in (0, 1, 5, 11):
        assert rows[row] == pytest.approx(defined(SOUND, row), abs=1e-4)


@given(st.lists(st.integers(0, 300), min_size=4, max_size=12), st.booleans())
def test_pieces_give_the_rows_of_the_whole(lengths: list[int], centered: bool) -> None:
    ends = [0, 230, *(230 + end for end in itertools.accumulate(lengths) if end <= 1770)]
    pieces, whole = LogMel(centered=centered), LogMel(centered=centered)
    parts = [pieces.feed(SOUND[a:b]) for a, b in itertools.pairwise(ends)]
    found = np.concatenate([*parts, pieces.finish()])
    expected = np.concatenate([whole.feed(SOUND[: ends[-1]]), whole.finish()])
    assert found == pytest.approx(expected, abs=1e-4)
    count = ends[-1] // 160 if centered else max((ends[-1] - 400) // 160 + 1, 0)
    assert len(found) == count


def test_it_begins_anew_after_the_end_and_after_a_gap() -> None:
    front = LogMel()
    first = np.concatenate([front.feed(SOUND), front.finish()])
    front.feed(SOUND[:777])
    front.reset()
    assert np.array_equal(np.concatenate([front.feed(SOUND), front.finish()]), first)


def test_samples_of_16_bits_are_the_same_sound() -> None:
    whole = np.rint(SOUND * 32_768).astype(np.int16)
    one, other = LogMel().feed(whole), LogMel().feed(whole / np.float32(32_768))
    assert np.array_equal(one, other)


def test_whispers_input_is_30_seconds_between_the_loudest_and_8_below() -> None:
    features = whisper_features(SOUND, bands=128)
    assert features.shape == (1, 128, 3000)
    assert features.max() - features.min() == pytest.approx(2.0)
    short = whisper_features(SOUND, seconds=None)
    assert short.shape == (1, 80, 12)
    assert whisper_scaled(np.array([[-20.0, 0.0]])).tolist() == [[-1.0, 1.0]]


def test_what_is_too_short_or_fits_no_spectrum_is_refused() -> None:
    front = LogMel(hop=10)
    front.feed(SOUND[:100])
    with pytest.raises(InvalidArgument, match="at least 201 are needed"):
        front.finish()
    with pytest.raises(InvalidArgument, match="fft_size is at least the window"):
        LogMel(fft_size=256)
