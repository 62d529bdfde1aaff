"""The demo's clips, what they hold, and the networks that hear and see it, as files.

`digits.mp4` shows one handwritten-looking digit after another, `scene.mp4` several that move;
`words.flac` has spoken ones; a JSON file beside each has the truth. Scripts of the project make all
of it; README.md beside this file says how.
"""

from __future__ import annotations

import importlib.resources
import pathlib

import msgspec

from nnasync import Net, hal, vision
from nnasync.cli.recognition import SpokenWord

__all__ = [
    "SceneTruth",
    "VideoTruth",
    "WordsTruth",
    "digit_detector",
    "path",
    "scene_truth",
    "video_truth",
    "words_truth",
]


class VideoTruth(hal.Struct):
    """Truth of the video clip: frames a second, and each frame's digit, 10 where it shows none."""

    fps: int
    seed: int
    labels: tuple[int, ...]


class SceneTruth(hal.Struct):
    """Truth of the clip with several digits: their labels, and in each frame the box of each."""

    fps: int
    seed: int
    labels: tuple[int, ...]
    boxes: tuple[tuple[tuple[float, float, float, float], ...], ...]


class WordsTruth(hal.Struct):
    """Truth of the audio clip: samples a second, the words' names by class, and what was spoken."""

    rate: int
    seed: int
    names: tuple[str, ...]
    words: tuple[SpokenWord, ...]


def path(name: str) -> pathlib.Path:
    """Returns the path of the file `name` of this package; raises FileNotFoundError."""
    here = pathlib.Path(str(importlib.resources.files(__name__)))
    file = here / name
    if not file.is_file():
        known = ", ".join(
            sorted(p.name for p in here.iterdir() if p.suffix != ".py" and p.is_file())
        )
        raise FileNotFoundError(f"no demo file {name!r}; there are {known}")
    return file


def video_truth() -> VideoTruth:
    """Returns the digits that each frame of `digits.mp4` shows."""
    return msgspec.json.decode(path("digits.json").read_bytes(), type=VideoTruth)


def scene_truth() -> SceneTruth:
    """Returns the digits that each frame of `scene.mp4` shows, and where."""
    return msgspec.json.decode(path("scene.json").read_bytes(), type=SceneTruth)


def words_truth() -> WordsTruth:
    """Returns the words that are spoken in `words.flac`, and when."""
    return msgspec.json.decode(path("words.json").read_bytes(), type=WordsTruth)


def digit_detector(net: Net, *, threshold: float = 0.35) -> vision.Detector:
    """Returns a detector that reads all digits in a picture; `net` is `detector.nnm`, compiled.

    `await digit_detector(net)(picture)` gives boxes with the names "0" to "9".
    """
    return vision.Detector(
        net,
        vision.DistanceHead(cells=(8, 16, 32)),
        threshold=threshold,
        per_class=False,
    )
