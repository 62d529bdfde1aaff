"""Fresh tracks and scenes to judge networks on, through the decoders that the demo uses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nnasync import open_runtime, run, vision
from nnasync.cli import demo_data
from nnasync.cli.recognition import SpokenWord, WordDecoder, word_accuracy
from nnasync.hal import Model
from training import detection_scenes, speech, tracks

__all__ = ["VALIDATION_SEEDS", "scenes", "track", "words"]

VALIDATION_SEEDS = (880_001, 880_002, 880_003, 880_004)


def track(
    seed: int,
    seconds: int = 60,
    voices: speech.Voices = speech.VALIDATION,
    *,
    per_second: float = 1.2,
) -> tracks.Track:
    """A track of spoken digits, each about as often as the others, in random order and voices."""
    rng = np.random.default_rng([seed, 0xA0D10])
    count = -(-int(seconds * per_second) // 10) * 10
    labels = [int(label) for label in rng.permutation(np.arange(count) % 10)]
    spoken = speech.utterances(labels, voices, seed)
    return tracks.compose(spoken, seconds * speech.RATE, [seed, 0x7AC])


def words(
    scores: Callable[[NDArray[np.int16]], NDArray[np.float32]],
    seed: int,
    voices: speech.Voices = speech.VALIDATION,
) -> float:
    """Share of the words of a fresh minute that `scores`, [hops, 11] of its samples, gets right."""
    fresh = track(seed, voices=voices)
    decoder = WordDecoder()
    heard = [decoder.feed(hop, row) for hop, row in enumerate(scores(fresh.samples))]
    return word_accuracy(
        [word for word in heard if word is not None], [SpokenWord(*word) for word in fresh.words]
    )


def scenes(model: Model, seed: int, count: int = 300) -> float:
    """mAP@0.5 of the detector on fresh scenes, on the reference's kernels."""
    fresh = detection_scenes.scenes(seed, count)
    truth = [vision.Boxes.of(scene.boxes, labels=scene.labels) for scene in fresh]

    async def found() -> list[vision.Boxes]:
        async with open_runtime(devices=["nnasync-reference"]) as runtime:
            detect = demo_data.digit_detector(await runtime.compile(model), threshold=0.05)
            return [await detect(scene.image) for scene in fresh]

    return vision.mean_average_precision(run(found), truth)
