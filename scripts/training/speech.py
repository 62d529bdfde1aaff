"""Spoken digits from espeak-ng in many voices, as 16 kHz waveforms.

A voice is an accent of English plus a variant (a speaker: formants, pitch, breath). The voices are
split three ways so that what a network is judged on comes from speakers it never heard: `TRAINING`,
`VALIDATION` (to compare networks and choose thresholds) and `DEMO` (the committed clip, and nothing
else). The validation and demo splits also have an accent each that training lacks.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DEMO",
    "OTHER_WORDS",
    "RATE",
    "TRAINING",
    "VALIDATION",
    "WORDS",
    "Utterance",
    "Voices",
    "resample",
    "utterances",
]

RATE = 16_000
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OTHER_WORDS = (
    "hello", "yes", "no", "stop", "music", "window", "people", "water", "garden", "light", "table",
    "morning", "number", "happy", "under", "river", "house", "paper", "always", "mother", "again",
    "picture", "green", "carbon", "open", "follow", "nothing", "later",
)  # fmt: skip
_SILENT = 0.02


class Voices(NamedTuple):
    """Accents and variants; any pair of them is a voice."""

    accents: tuple[str, ...]
    variants: tuple[str, ...]


_TRAINED = (
    "Alex Andy Denis Diogo Gene Gene2 Henrique Jacky Marco Mario Mike Nguyen RicishayMax "
    "RicishayMax2 RicishayMax3 adam anika antonio aunty belinda benjamin boris caleb "
    "david ed edward edward2 f1 f2 f3 f5 grandma grandpa gustave iven iven2 iven3 iven4 "
    "john kaukovalta klatt klatt2 klatt3 klatt4 klatt5 m1 m2 m3 m4 m5 m6 m8 marcelo max "
    "michel miguel norbert pablo pedro rob robert sandro shelby steph steph2 steph3 "
    "travis zac"
)
TRAINING = Voices(
    ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-rp", "en-us-nyc"),
    tuple(_TRAINED.split()),
)
VALIDATION = Voices(
    ("en-gb", "en-us", "en-gb-x-gbcwmd"), ("Alicia", "Lee", "quincy", "victor", "Hugo", "linda")
)
DEMO = Voices(("en-gb", "en-us", "en-029"), ("Annie", "Andrea", "Michael", "f4", "m7", "paul"))


class Utterance(NamedTuple):
    """One spoken word: its place in `WORDS` (or -1), the samples between silences, the voice."""

    label: int
    samples: NDArray[np.float32]
    voice: str


def resample(samples: NDArray[np.floating], ratio: float) -> NDArray[np.float32]:
    """The band-limited waveform with `ratio` times as many samples."""
    padded = 1 << int(np.ceil(np.log2(len(samples) + 256)))
    spectrum = np.fft.rfft(samples, padded)
    length = round(padded * ratio / 2) * 2
    kept = np.zeros(length // 2 + 1, np.complex128)
    count = min(len(kept), len(spectrum))
    kept[:count] = spectrum[:count]
    result = np.fft.irfft(kept, length) * (length / padded)
    return result[: int(len(samples) * length / padded)].astype(np.float32)


def _speak(word: str, voice: str, speed: int, pitch: int) -> tuple[int, NDArray[np.float32]]:
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", word]
    wave = subprocess.run(command, capture_output=True, check=True).stdout
    rate = int.from_bytes(wave[24:28], "little")
    start = wave.index(b"data") + 8
    samples = np.frombuffer(wave[start : start + (len(wave) - start) // 2 * 2], np.int16)
    return rate, samples.astype(np.float32) / np.float32(32768)


def _trim(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    loud = np.flatnonzero(np.abs(samples) > _SILENT * np.abs(samples).max())
    return samples[loud[0] : loud[-1] + 1]


def _utter(label: int, word: str, voices: Voices, rng: np.random.Generator) -> Utterance:
    variant = voices.variants[int(rng.integers(len(voices.variants)))]
    voice = f"{voices.accents[int(rng.integers(len(voices.accents)))]}+{variant}"
    text = word + ("", ".", "?", "!")[int(rng.integers(4))]
    rate, samples = _speak(text, voice, int(rng.integers(115, 205)), int(rng.integers(25, 75)))
    stretched = resample(_trim(samples), RATE / rate * rng.uniform(0.93, 1.08))
    return Utterance(label, stretched / np.abs(stretched).max(), voice)


def utterances(
    labels: Sequence[int], voices: Voices, seed: int, *, workers: int = 2
) -> list[Utterance]:
    """Each label spoken by a random voice at a random speed and pitch; -1 is some other word.

    Raises RuntimeError where espeak-ng is not installed.
    """
    if shutil.which("espeak-ng") is None:
        raise RuntimeError("espeak-ng is not installed; on Debian: apt-get install espeak-ng")

    def one(index: int) -> Utterance:
        rng = np.random.default_rng([seed, 0x59EE, index])
        label = labels[index]
        word = WORDS[label] if label >= 0 else OTHER_WORDS[int(rng.integers(len(OTHER_WORDS)))]
        return _utter(label, word, voices, rng)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, range(len(labels))))
