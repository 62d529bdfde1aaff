"""The networks that come with nnasync, as subjects of the benchmark, on the clips of the demo.

The clips were made from seeds and voices that training left out. They are decoded with PyAV (the
extra `media`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from nnasync import Port, vision
from nnasync.cli import demo_data
from nnasync.cli.demo.streams import HOP, image
from nnasync.cli.recognition import WordDecoder
from nnasync.hal import Array
from nnasync.suites.benchmark import (
    DataSequence,
    DataSet,
    DetectionPrecision,
    PhoneErrors,
    Subject,
    TopK,
    WordErrors,
    gray_frames,
    samples_of,
)
from nnasync.suites.data import NETWORK, read_phones

WORDS_PER_SEQUENCE = 3
SETTLING_HOPS = 60
"""Pause that is appended to what is heard, after which the last word is decided."""

_DETECTOR_CELLS = (8, 16, 32)
_DETECTOR_SIZE = (160, 160)


def own_subjects() -> tuple[Subject, ...]:
    """The networks for digits, words, boxes and phones."""
    return (
        Subject("digits", demo_data.path("digits.nnm"), _digits, TopK()),
        Subject("digits_large", demo_data.path("digits_large.nnm"), _digits, TopK()),
        Subject("detector", demo_data.path("detector.nnm"), _scene, DetectionPrecision(_boxes)),
        Subject("words", demo_data.path("words.nnm"), _words, WordErrors(_heard)),
        Subject("phones", NETWORK, _phones, PhoneErrors()),
    )


class _Ports(Protocol):
    """The ports of a network, as far as they are used here."""

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Returns the inputs."""
        ...


def _digits(ports: _Ports) -> DataSet:
    """Returns the frames of the clip with one digit, or none, as data."""
    frames, labels = gray_frames(demo_data.path("digits.mp4")), demo_data.video_truth().labels
    return DataSet(
        tuple(
            DataSequence((image(frame)[None],), truth=np.array([label]))
            for frame, label in zip(frames, labels, strict=True)
        )
    )


def _scene(ports: _Ports) -> DataSet:
    """Returns the frames of the clip with several digits, and their boxes, as data."""
    truth = demo_data.scene_truth()
    sequences = []
    frames = gray_frames(demo_data.path("scene.mp4"))
    for frame, corners in zip(frames, truth.boxes, strict=True):
        prepared = vision.prepare(frame, ports.inputs[0])
        boxes = prepared.placement.to_input(vision.Boxes.of(corners, labels=truth.labels))
        sequences.append(
            DataSequence(
                (prepared.input[None],), truth=np.column_stack([truth.labels, boxes.corners])
            )
        )
    return DataSet(tuple(sequences))


def _boxes(outputs: tuple[Array, ...]) -> vision.Boxes:
    """The boxes in the outputs for a frame, in pixels of the input."""
    head = vision.DistanceHead(cells=_DETECTOR_CELLS)
    found = head.decode(outputs, _DETECTOR_SIZE, 0.05).finite()
    return vision.suppressed(found, overlap=0.5, per_class=False, most=100)


def _words(ports: _Ports) -> DataSet:
    """Three words after one another, cut out of the clip in the middle of pauses."""
    samples, words = samples_of(demo_data.path("words.flac")), demo_data.words_truth().words
    sequences = []
    for first in range(0, len(words), WORDS_PER_SEQUENCE):
        spoken = words[first : first + WORDS_PER_SEQUENCE]
        begin = 0 if not first else (words[first - 1].end + spoken[0].start) // 2
        after = words[first + len(spoken)].start if first + len(spoken) < len(words) else None
        end = len(samples) if after is None else (spoken[-1].end + after) // 2
        piece = samples[begin // HOP * HOP : end // HOP * HOP].reshape(-1, 1, HOP)
        sequences.append(DataSequence((piece,), truth=np.array([word.label for word in spoken])))
    return DataSet(tuple(sequences))


def _heard(scores: Array) -> Sequence[int]:
    """The words in the scores of all hops."""
    decoder = WordDecoder()
    quiet = np.zeros((SETTLING_HOPS, scores[0].size), np.float32)
    hops = np.concatenate([scores.reshape(len(scores), -1), quiet])
    words = [decoder.feed(number, hop) for number, hop in enumerate(hops)]
    return [word.label for word in words if word is not None]


def _phones(ports: _Ports) -> DataSet:
    """Sentences, with the phones that the reference hears."""
    return DataSet(
        tuple(DataSequence((each.inputs[:, None, :],), truth=each.golden) for each in read_phones())
    )
