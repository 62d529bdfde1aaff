"""Scores of sound and pictures: synthesized speech, cleaned signals, boxes.

Synthesized speech (Android's tts network): a step gives 4 frames of 49 values each, 40 amplitudes
of mel cepstrum, 7 aperiodicities, the logarithm of F0 and the voicing. Distortion is the root of
the mean square difference of amplitudes 1 to 39 from the golden ones; the error of log F0 is that
of frames which are voiced in both. Means and deviations denormalize both first, if they are known.

Signal to noise: 10 log10 of the energy of the right signal over that of the difference, in dB.

Detection: mean average precision over all pictures is the score; each picture's own is its value
for pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.suites.benchmark.data import DataSequence, Outputs
from nnasync.suites.benchmark.evaluators import Evaluation, Score
from nnasync.suites.results import Better
from nnasync.vision import Boxes, mean_average_precision

MOST_DISTORTION = 4.0
MOST_LOG_F0_ERROR = 0.01
BEST_DB = 200.0
"""What a signal without any noise gets."""

_FRAMES, _VALUES = 4, 49
_AMPLITUDES = slice(1, 40)
_LOG_F0, _VOICING = 47, 48


class SpeechDistortion(msgspec.Struct, frozen=True):
    """How far synthesized speech is from golden outputs; `scales` are (mean, deviation) pairs.

    There is one pair for each of the 196 values of a step, or none.
    """

    scales: tuple[tuple[float, float], ...] = ()

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """Scores of distortion and log F0: the largest, and means for pairs; see `Evaluator`."""
        pairs = [
            speech_errors(self._real(given[0]), self._real(sequence.golden[0]))
            for sequence, given in zip(sequences, outputs, strict=True)
            if sequence.golden
        ]
        if not pairs:
            return Evaluation()
        distortions, errors = (tuple(column) for column in zip(*pairs, strict=True))
        faults = [
            f"sequence {n}: mel cepstral distortion {distortion:.3g} is above {MOST_DISTORTION:g}"
            for n, distortion in enumerate(distortions)
            if not distortion <= MOST_DISTORTION
        ]
        faults += [
            f"sequence {n}: error of log F0 {error:.3g} is above {MOST_LOG_F0_ERROR:g}"
            for n, error in enumerate(errors)
            if not error <= MOST_LOG_F0_ERROR
        ]
        return Evaluation(
            (
                _largest("largest mel cepstral distortion", distortions, MOST_DISTORTION / 100),
                _largest("largest error of log F0", errors, MOST_LOG_F0_ERROR / 10),
            ),
            tuple(faults),
        )

    def _real(self, values: Array) -> Array:
        flat = values.reshape(len(values), -1).astype(np.float64)
        if flat.shape[1] != _FRAMES * _VALUES:
            raise InvalidArgument(
                f"a step of speech has {_FRAMES * _VALUES} values, this one {flat.shape[1]}"
            )
        if self.scales:
            mean, deviation = np.array(self.scales).T
            flat = flat * deviation + mean
        return flat.reshape(-1, _VALUES)


class SignalToNoise(msgspec.Struct, frozen=True):
    """How well a signal is met; the right one is the truth, or without it golden output 0."""

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """Score "signal to noise", the mean in dB; see `Evaluator`."""
        found: list[float] = []
        for sequence, given in zip(sequences, outputs, strict=True):
            right = sequence.golden[0] if sequence.truth is None and sequence.golden else None
            right = sequence.truth if right is None else right
            if right is not None:
                found.append(signal_to_noise(given[0], right))
        if not found:
            return Evaluation()
        return Evaluation((_score("signal to noise", found, "dB", 1.0),))


class DetectionPrecision(msgspec.Struct, frozen=True):
    """Mean average precision; `decode` gives the boxes in the outputs of one picture."""

    decode: Callable[[Outputs], Boxes]
    overlap: float = 0.5

    def evaluate(self, sequences: Sequence[DataSequence], outputs: Sequence[Outputs]) -> Evaluation:
        """Score "mAP@0.5", or with another overlap; see `Evaluator`."""
        found, truth = [], []
        for sequence, given in zip(sequences, outputs, strict=True):
            if sequence.truth is not None:
                found.append(self.decode(tuple(array[0] for array in given)))
                truth.append(Boxes.of(sequence.truth[:, 1:], labels=sequence.truth[:, 0]))
        if not found:
            return Evaluation()
        overlap = self.overlap
        items = tuple(
            mean_average_precision([mine], [right], overlap=overlap)
            for mine, right in zip(found, truth, strict=True)
        )
        whole = mean_average_precision(found, truth, overlap=overlap)
        return Evaluation((Score(f"mAP@{overlap:g}", whole, items, margin=0.01),))


def speech_errors(actual: Array, golden: Array) -> tuple[float, float]:
    """Distortion and error of log F0 of frames [n, 49]; 0 where no frame is voiced in both."""
    if actual.shape != golden.shape:
        raise InvalidArgument(f"{len(actual)} frames are compared with {len(golden)} golden ones")
    difference = actual - golden
    distortion = math.sqrt(float(np.square(difference[:, _AMPLITUDES]).mean()))
    voiced = (actual[:, _VOICING] > 0) & (golden[:, _VOICING] > 0)
    squares = np.square(difference[voiced, _LOG_F0])
    return distortion, math.sqrt(float(squares.mean())) if squares.size else 0.0


def signal_to_noise(actual: Array, right: Array) -> float:
    """Returns the ratio in dB, at most BEST_DB; raises InvalidArgument for other lengths."""
    mine, wanted = (each.reshape(-1).astype(np.float64) for each in (actual, right))
    if len(mine) != len(wanted):
        raise InvalidArgument(f"a signal of {len(mine)} values is compared with {len(wanted)}")
    signal, noise = float(np.square(wanted).sum()), float(np.square(mine - wanted).sum())
    if noise == 0:
        return BEST_DB
    if not (signal and math.isfinite(noise)):
        return -BEST_DB
    return min(BEST_DB, max(-BEST_DB, 10 * math.log10(signal / noise)))


def _score(name: str, items: Sequence[float], unit: str, margin: float) -> Score:
    return Score(name, math.fsum(items) / len(items), tuple(items), unit, margin=margin)


def _largest(name: str, items: Sequence[float], margin: float) -> Score:
    return Score(name, max(items), tuple(items), "", Better.LESS, margin)
