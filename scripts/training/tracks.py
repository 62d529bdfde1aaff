"""Audio tracks of spoken words with pauses, rooms, microphones and noise, and their truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.speech import RATE, Utterance

__all__ = ["HOP", "IGNORED", "NONE", "Spoken", "Track", "compose", "noise", "targets"]

HOP = 160
NONE = 10
IGNORED = -1
SPEECH_LEVEL = 0.12

Wave = NDArray[np.floating]


class Spoken(NamedTuple):
    """A word of a track: its label, and its first sample and the one after its last."""

    label: int
    start: int
    end: int
    voice: str


class Track(NamedTuple):
    """Samples int16 at 16 kHz, and the words among them."""

    samples: NDArray[np.int16]
    words: tuple[Spoken, ...]


def _shaped_noise(length: int, gains: Wave, rng: np.random.Generator) -> Wave:
    spectrum = np.fft.rfft(rng.normal(0, 1, length))
    spectrum *= np.interp(np.linspace(0, 1, len(spectrum)), np.linspace(0, 1, len(gains)), gains)
    return np.fft.irfft(spectrum, length)


def noise(length: int, rng: np.random.Generator) -> Wave:
    """White, pink, hum or colored noise of unit power, with a slow swell."""
    kind = int(rng.integers(4))
    time = np.arange(length) / RATE
    if kind == 0:
        wave: Wave = rng.normal(0, 1, length)
    elif kind == 1:
        wave = _shaped_noise(length, 1 / np.sqrt(np.linspace(0.003, 1, 512)), rng)
    elif kind == 2:
        base = float(rng.choice([50, 60])) * rng.uniform(0.99, 1.01)
        parts = [np.sin(2 * np.pi * (n * base * time + rng.random())) / n for n in (1, 2, 3, 4, 6)]
        wave = np.sum(parts, axis=0) + rng.normal(0, 0.3, length)
    else:
        wave = _shaped_noise(length, np.exp(rng.normal(0, 0.9, 12)), rng)
    wave = wave * (
        1 + rng.uniform(0, 0.3) * np.sin(2 * np.pi * (rng.uniform(0.2, 2) * time + rng.random()))
    )
    return np.asarray(wave / np.sqrt((wave**2).mean()))


def _noise_track(length: int, rng: np.random.Generator) -> Wave:
    """Noise that changes its kind and level (10 to 25 dB below speech) every 3 to 10 s."""
    track = np.zeros(length)
    start, fade = 0, RATE // 50
    while start < length:
        part = min(int(rng.uniform(3, 10) * RATE), length - start + fade)
        level = SPEECH_LEVEL * 10 ** (-rng.uniform(10, 25) / 20)
        wave = noise(max(part, 2 * fade + 2), rng) * level
        wave[:fade] *= np.linspace(0, 1, fade)
        wave[-fade:] *= np.linspace(1, 0, fade)
        room = min(len(wave), length - start)
        track[start : start + room] += wave[:room]
        start += len(wave) - fade
    return track


def _microphone(samples: Wave, rng: np.random.Generator) -> Wave:
    """Random smooth frequency response of some 6 dB up and down, and a falling or rising tilt."""
    padded = 1 << int(np.ceil(np.log2(len(samples) + 1024)))
    bands = rng.normal(0, 0.35, 10) + rng.uniform(-0.8, 0.8) * np.linspace(-0.5, 0.5, 10)
    spectrum = np.fft.rfft(samples, padded)
    gain = np.exp(np.interp(np.linspace(0, 1, len(spectrum)), np.linspace(0, 1, 10), bands))
    return np.fft.irfft(spectrum * gain, padded)[: len(samples)]


def _room(samples: Wave, rng: np.random.Generator) -> Wave:
    """A short reverberation: the wave plus an exponentially decaying tail of echoes."""
    decay = rng.uniform(0.015, 0.06)
    tail = rng.normal(0, 1, int(0.25 * RATE)) * np.exp(
        -np.arange(int(0.25 * RATE)) / (decay * RATE)
    )
    tail *= rng.uniform(0.05, 0.35) / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    padded = 1 << int(np.ceil(np.log2(len(samples) + len(tail))))
    wet = np.fft.irfft(np.fft.rfft(samples, padded) * np.fft.rfft(tail, padded), padded)
    return wet[: len(samples)]


def compose(
    words: Sequence[Utterance],
    length: int,
    seed: int | Sequence[int],
    *,
    pause_s: tuple[float, float] = (0.35, 1.1),
) -> Track:
    """Lay words one after another, with pauses, into `length` samples; as many as fit in order."""
    rng = np.random.default_rng(seed)
    dry = np.zeros(length)
    spoken: list[Spoken] = []
    at = int(rng.uniform(0.2, 0.8) * RATE)
    for word in words:
        end = at + len(word.samples)
        if end + RATE // 4 > length:
            break
        wave = _microphone(word.samples, rng)
        loudness = SPEECH_LEVEL * 10 ** (rng.uniform(-4, 4) / 20) / np.sqrt((wave**2).mean())
        dry[at:end] += wave * loudness
        if word.label >= 0:
            spoken.append(Spoken(word.label, at, end, word.voice))
        at = end + int(rng.uniform(*pause_s) * RATE)
    wet = _room(dry, rng) + _noise_track(length, rng)
    wet *= 10 ** (rng.uniform(-10, 3) / 20)
    return Track(np.clip(np.rint(wet * 32767), -32768, 32767).astype(np.int16), tuple(spoken))


def targets(track: Track) -> NDArray[np.int8]:
    """What a network should say after each hop, int8 [hops]: a word near its end, else `NONE`.

    The last 50 ms of a word and 150 ms after it are the word; the 150 ms before may be either.
    """
    hops = len(track.samples) // HOP
    wanted = np.full(hops, NONE, np.int8)
    for word in track.words:
        end = word.end // HOP
        wanted[max(end - 20, 0) : end + 22] = IGNORED
        wanted[max(end - 5, 0) : end + 15] = word.label
    return wanted
