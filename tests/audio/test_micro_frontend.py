"""TensorFlow's micro front end: its published values, and the words that a network hears by it."""

from __future__ import annotations

import itertools
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.audio import MicroFrontend, MicroFrontendConfig, micro_features
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from tests import rigs

SMALL = MicroFrontendConfig(
    rate_hz=1000, window_ms=25, step_ms=10, channels=2, low_hz=8.0, high_hz=450.0
)
TONE = np.tile(np.array([0, 32_767, 0, -32_768], np.int16), 9)


def test_values_are_those_of_the_library_in_c() -> None:
    """What the tests of TensorFlow's library expect of this sound and configuration."""
    assert MicroFrontend(SMALL).feed(TONE).tolist() == [[479, 425], [436, 378]]


@given(st.lists(st.integers(0, 900), max_size=8))
def test_pieces_give_the_rows_of_the_whole(lengths: list[int]) -> None:
    sound = np.random.default_rng(3).integers(-3000, 3000, 2000).astype(np.int16)
    ends = [end for end in [0, *itertools.accumulate(lengths)] if end <= 2000]
    front = MicroFrontend()
    parts = [front.feed(sound[a:b]) for a, b in itertools.pairwise([*ends, 2000])]
    assert np.array_equal(np.concatenate(parts), MicroFrontend().feed(sound))


def test_steady_noise_is_subtracted_and_a_tone_stands_out() -> None:
    time = np.arange(32_000) / 16_000
    noise = np.random.default_rng(0).normal(0, 300, 32_000)
    tone = 4000 * np.sin(2 * np.pi * 1000 * time) * (time > 1.9)
    rows = MicroFrontend().feed((noise + tone).astype(np.int16)).astype(int)
    before, during = rows[90].mean(), rows[-2]
    assert during.max() > before + 100
    assert 10 <= during.argmax() <= 16


def test_silence_has_no_features_and_reset_forgets_the_noise() -> None:
    front = MicroFrontend()
    assert not front.feed(np.zeros(1600, np.int16)).any()
    front.reset()
    first = front.feed(TONE.repeat(40))
    assert first.any()
    assert not np.array_equal(front.feed(TONE.repeat(40))[: len(first)], first)
    front.reset()
    assert np.array_equal(front.feed(TONE.repeat(40)), first)


def test_floats_are_the_same_sound() -> None:
    assert MicroFrontend(SMALL).feed(TONE / 32_768).tolist() == [[479, 425], [436, 378]]


def test_features_of_8_bits_use_the_whole_range() -> None:
    rows = np.array([0, 333, 666, 9999], np.uint16)
    assert micro_features(rows).tolist() == [-128, 0, 127, 127]


@pytest.mark.parametrize(
    "config",
    [
        MicroFrontendConfig(high_hz=9000.0),
        MicroFrontendConfig(window_ms=0),
        MicroFrontendConfig(channels=0),
    ],
)
def test_configurations_that_fit_no_spectrum_are_refused(config: MicroFrontendConfig) -> None:
    with pytest.raises(InvalidArgument):
        MicroFrontend(config)


def test_samples_that_are_no_numbers_are_refused_and_forgotten() -> None:
    front = MicroFrontend(SMALL)
    for wrong in (np.nan, -np.inf):
        with pytest.raises(InvalidArgument, match="finite"):
            front.feed(np.full(100, wrong))
    assert front.feed(TONE).tolist() == [[479, 425], [436, 378]]


def test_features_are_finite_numbers_of_any_size() -> None:
    assert micro_features(np.array([[-5, 0, 333, 666, 1e30]])).tolist() == [
        [-128, -128, 0, 127, 127]
    ]
    for wrong in (np.array([np.nan]), np.array(["a"])):
        with pytest.raises(InvalidArgument, match="finite numbers|array of numbers"):
            micro_features(wrong)


def test_samples_of_32_bits_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="int16, or floats"):
        MicroFrontend().feed(np.zeros(480, np.int32))


def recording(shared: Path, name: str) -> Array:
    with wave.open(str(shared / "models" / "audio" / f"{name}_1000ms.wav")) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


@pytest.mark.anyio
@pytest.mark.one_loop("the numbers are the same on each")
async def test_micro_speech_hears_yes_and_no(shared: Path) -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(shared / "models" / "micro_speech_quantized.tflite")
        heard = {}
        for name in ("yes", "no", "noise", "silence"):
            rows = MicroFrontend().feed(recording(shared, name))
            scores = net.dequantize(await net(micro_features(rows).reshape(1, -1)))
            heard[name] = (int(scores.argmax()), float(scores.max()))
    assert [label for label, _ in heard.values()] == [2, 3, 0, 0]
    assert min(heard["yes"][1], heard["no"][1], heard["noise"][1]) > 0.9
