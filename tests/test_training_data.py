"""The generators that the demo's clips and networks come from: reproducible, labeled, disjoint."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync import vision

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture(autouse=True)
def importable_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.fixture
def scenes() -> Any:
    return importlib.import_module("training.scenes")


@pytest.fixture
def detection_scenes() -> Any:
    return importlib.import_module("training.detection_scenes")


@pytest.fixture
def strokes() -> Any:
    return importlib.import_module("training.strokes")


@pytest.fixture
def tracks() -> Any:
    return importlib.import_module("training.tracks")


@pytest.fixture
def speech() -> Any:
    return importlib.import_module("training.speech")


def tone(speech: Any, label: int, samples: int, hertz: float) -> Any:
    wave = np.sin(2 * np.pi * hertz * np.arange(samples) / speech.RATE).astype(np.float32)
    return speech.Utterance(label, wave, "tone")


def test_a_seed_gives_one_clip_and_its_beginning(scenes: Any) -> None:
    long, short, other = (list(scenes.play(seed, n)) for seed, n in ((5, 40), (5, 20), (6, 20)))
    for one, same in zip(long, short, strict=False):
        assert one.label == same.label
        assert np.array_equal(one.image, same.image)
    assert any(not np.array_equal(a.image, b.image) for a, b in zip(short, other, strict=True))


def test_a_clip_shows_every_digit_for_half_a_second_to_one(scenes: Any) -> None:
    labels = [frame.label for frame in scenes.play(3, 1500)]
    runs = [(label, len(list(group))) for label, group in itertools.groupby(labels)]
    assert {label for label, _ in runs} == set(range(11))
    assert all(15 <= length <= 30 for _, length in runs[1:-1])


@pytest.mark.parametrize("digit", range(10))
def test_a_digit_is_inside_the_frame_as_a_whole(scenes: Any, digit: int) -> None:
    for seed in range(6):
        glyph = scenes.Glyph(digit, np.random.default_rng(seed))
        for time in (0.0, 0.5, 1.0):
            ink = glyph.ink(time)
            assert ink.max() > 0.8
            border = np.concatenate([ink[0], ink[-1], ink[:, 0], ink[:, -1]])
            assert border.max() == 0


def test_an_empty_frame_has_no_ink(scenes: Any) -> None:
    glyph = scenes.Glyph(scenes.NONE, np.random.default_rng(0))
    assert glyph.ink(0.3).max() == 0


def test_a_seed_gives_the_same_scenes(detection_scenes: Any) -> None:
    one, same, other = (detection_scenes.scenes(seed, 3) for seed in (5, 5, 6))
    for a, b, c in zip(one, same, other, strict=True):
        assert np.array_equal(a.image, b.image)
        assert np.array_equal(a.boxes, b.boxes)
        assert not np.array_equal(a.image, c.image)


def test_digits_of_a_scene_are_inside_it_and_apart(detection_scenes: Any) -> None:
    drawn = detection_scenes.scenes(1, 60)
    assert {int(label) for scene in drawn for label in scene.labels} == set(range(10))
    assert {len(scene.labels) for scene in drawn} >= {0, 1, 5}
    heights = np.concatenate([scene.boxes[:, 3] - scene.boxes[:, 1] for scene in drawn])
    assert heights.min() < 24
    assert heights.max() > 90
    for scene in drawn:
        assert scene.image.shape == (detection_scenes.SIDE,) * 2
        assert len(scene.boxes) == len(scene.labels)
        assert (scene.boxes >= 0).all()
        assert (scene.boxes <= detection_scenes.SIDE).all()
        together = vision.overlaps(scene.boxes, scene.boxes)
        assert (together[~np.eye(len(together), dtype=bool)] < 0.35).all()


def test_the_box_of_a_digit_holds_its_ink(detection_scenes: Any, strokes: Any) -> None:
    for seed in range(20):
        digit = detection_scenes._digit(40.0, np.random.default_rng(seed))
        moved = detection_scenes._moved(digit, np.array([50.0, 50.0]))
        ink = strokes.cover(moved.lines, moved.widths, (100, 100)) > 0.5
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        left, top, right, bottom = moved.box
        margin = 40 * detection_scenes.MARGIN
        assert [columns[0] - left, rows[0] - top] == pytest.approx([margin] * 2, abs=3.5)
        assert [right - columns[-1], bottom - rows[-1]] == pytest.approx([margin] * 2, abs=3.5)


def test_covered_area_of_a_line_is_length_times_width(strokes: Any) -> None:
    line = np.array([[10.0, 20.0], [50.0, 20.0]])
    area = strokes.cover([line], [(4.0, 4.0)], (40, 64)).sum()
    round_ends = np.pi * 2.0**2
    assert area == pytest.approx(40 * 4 + round_ends, rel=0.03)


def test_ink_outside_of_the_image_is_cut_off(strokes: Any) -> None:
    line = np.array([[-500.0, -500.0], [-400.0, -450.0]])
    assert strokes.cover([line], [(3.0, 3.0)], (8, 8)).max() == 0


def test_a_smooth_stroke_passes_through_its_points(strokes: Any) -> None:
    points = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0], [4.0, 4.0]])
    curve = strokes.spline(points, smooth=True)
    for point in points:
        assert np.abs(curve - point).sum(axis=1).min() < 1e-9


def test_voices_of_training_validation_and_demo_are_disjoint(speech: Any) -> None:
    splits = [set(v.variants) for v in (speech.TRAINING, speech.VALIDATION, speech.DEMO)]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(splits, 2))
    assert set(speech.DEMO.accents) - set(speech.TRAINING.accents)


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3])
def test_resampling_keeps_a_tone_and_changes_its_length(speech: Any, ratio: float) -> None:
    wave = tone(speech, 0, 4000, 440.0).samples
    result = speech.resample(wave, ratio)
    assert len(result) == pytest.approx(4000 * ratio, abs=2)
    spectrum = np.abs(np.fft.rfft(result * np.hanning(len(result))))
    hertz = spectrum.argmax() * speech.RATE / len(result)
    assert hertz == pytest.approx(440 / ratio, abs=5)


def test_a_track_has_the_words_where_its_truth_says(tracks: Any, speech: Any) -> None:
    words = [tone(speech, label, 6000, 700.0) for label in (3, 1, 4)]
    track = tracks.compose(words, 4 * speech.RATE, 11)
    assert [word.label for word in track.words] == [3, 1, 4]
    assert all(word.end - word.start == 6000 for word in track.words)
    wave = track.samples.astype(float)
    inside = np.concatenate([wave[w.start : w.end] for w in track.words])
    mask = np.ones(len(wave), bool)
    for word in track.words:
        mask[word.start : word.end + 1600] = False
    assert (inside**2).mean() > 5 * (wave[mask] ** 2).mean()
    again = tracks.compose(words, 4 * speech.RATE, 11)
    assert np.array_equal(again.samples, track.samples)


def test_words_that_do_not_fit_are_left_out_and_others_have_no_truth(
    tracks: Any, speech: Any
) -> None:
    words = [tone(speech, label, 8000, 500.0) for label in (-1, 2, 5, 7)]
    track = tracks.compose(words, 2 * speech.RATE, 3, pause_s=(0.2, 0.3))
    assert [word.label for word in track.words] == [2]


def test_targets_name_a_word_only_around_its_end(tracks: Any) -> None:
    word = tracks.Spoken(6, 16_000, 24_000, "tone")
    wanted = tracks.targets(tracks.Track(np.zeros(48_000, np.int16), (word,)))
    assert len(wanted) == 300
    assert set(wanted[145:165]) == {6}
    assert set(wanted[130:145]) == {tracks.IGNORED}
    assert set(wanted[:130]) == {tracks.NONE}
    assert set(wanted[172:]) == {tracks.NONE}


def test_log_mel_of_a_tone_peaks_in_its_band_and_rises_with_its_level() -> None:
    features = importlib.import_module("training.features")
    wave = np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)
    loud, soft = (features.log_mel((wave * level).astype(np.int16)) for level in (8000, 800))
    assert loud.shape == (100, features.BANDS)
    peak = features.mel_matrix()[loud[50].argmax(), :199].argmax()
    assert (peak + 1) * 40 == pytest.approx(1000, abs=80)
    assert loud[50].max() - soft[50].max() == pytest.approx(np.log(100), abs=0.01)


def test_log_mel_of_silence_is_its_floor() -> None:
    features = importlib.import_module("training.features")
    silence = features.log_mel(np.zeros(1600, np.int16))
    assert silence == pytest.approx(np.full((10, features.BANDS), np.log(features.FLOOR)))


def test_every_mel_band_hears_something() -> None:
    features = importlib.import_module("training.features")
    assert (features.mel_matrix().max(axis=1) > 0).all()
