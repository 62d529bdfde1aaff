"""Make the demo's clips: videos of drawn digits, a track of spoken ones, and their truth.

Needs espeak-ng. The same seed gives the same pictures and samples; the seeds of training are
others, and the voices are ones that training leaves out.
"""

from __future__ import annotations

import argparse
import pathlib
from fractions import Fraction

import av
import msgspec
import numpy as np
from av.video.reformatter import ColorRange
from numpy.typing import NDArray
from training import detection_scenes, judge, scenes, speech

from nnasync import hal
from nnasync.cli import demo_data
from nnasync.cli.recognition import SpokenWord

CLIP_SEED = 20_271_000
SCENE_SEED = 20_271_010
SCENE_S = 8
CLIPS = ("digits.mp4", "scene.mp4", "words.flac")
TARGET = pathlib.Path(__file__).resolve().parents[1] / "nnasync" / "cli" / "demo_data"


def _luma_only(image: scenes.Gray) -> scenes.Gray:
    """A planar picture without color: gray values of full range, chroma in the middle."""
    return np.concatenate([image, np.full((len(image) // 2, image.shape[1]), 128, np.uint8)])


def write_digits(file: pathlib.Path, seed: int, seconds: int, quality: int) -> demo_data.VideoTruth:
    """Write the clip of one digit after another."""
    clip = list(scenes.play(seed, seconds * scenes.FPS))
    write_video(file, [frame.image for frame in clip], quality)
    return demo_data.VideoTruth(scenes.FPS, seed, tuple(frame.label for frame in clip))


def write_scene(file: pathlib.Path, seed: int, seconds: int, quality: int) -> demo_data.SceneTruth:
    """Write the clip of several digits that move."""
    clip = list(detection_scenes.play(seed, seconds * detection_scenes.FPS))
    write_video(file, [frame.image for frame in clip], quality)
    corners = tuple(
        tuple(tuple(round(float(side), 1) for side in box) for box in frame.boxes) for frame in clip
    )
    labels = tuple(int(label) for label in clip[0].labels)
    return demo_data.SceneTruth(detection_scenes.FPS, seed, labels, corners)


def write_video(file: pathlib.Path, pictures: list[scenes.Gray], quality: int) -> None:
    """Write an H.264 clip of gray pictures; lower `quality` numbers are better pictures."""
    with av.open(file, "w") as container:
        stream = container.add_stream("libx264", rate=scenes.FPS)
        stream.height, stream.width = pictures[0].shape
        stream.pix_fmt = "yuvj420p"
        stream.codec_context.color_range = ColorRange.JPEG
        stream.codec_context.time_base = Fraction(1, scenes.FPS)
        stream.options = {"crf": str(quality), "preset": "slow", "threads": "1"}
        for index, image in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(_luma_only(image), format="yuvj420p")
            frame.pts, frame.time_base = index, Fraction(1, scenes.FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_audio(file: pathlib.Path, samples: NDArray[np.int16]) -> None:
    """Write 16 kHz mono samples as FLAC, which loses nothing."""
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=speech.RATE, layout="mono")
        stream.codec_context.format = "s16"
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = speech.RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _write_truth(file: pathlib.Path, truth: hal.Struct) -> None:
    file.write_bytes(msgspec.json.encode(truth) + b"\n")


def main() -> None:
    """Make the clips and say how large they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=CLIP_SEED)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--quality", type=int, default=20, help="of the video: 0 (best) to 51")
    parser.add_argument(
        "--only", nargs="+", choices=CLIPS, default=CLIPS, metavar="CLIP", help="some of the clips"
    )
    parser.add_argument("--output", type=pathlib.Path, default=TARGET)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    for clip in options.only:
        print(f"making {clip} ...", flush=True)
        truth = _make(clip, options)
        truth_file = options.output / f"{clip.partition('.')[0]}.json"
        _write_truth(truth_file, truth)
        for file in (options.output / clip, truth_file):
            print(f"{file.name:12} {file.stat().st_size / 1000:8.0f} kB")


def _make(clip: str, options: argparse.Namespace) -> hal.Struct:
    """Write a clip; returns its truth."""
    file = options.output / clip
    if clip == "digits.mp4":
        return write_digits(file, options.seed, options.seconds, options.quality)
    if clip == "scene.mp4":
        return write_scene(file, SCENE_SEED, SCENE_S, options.quality + 6)
    track = judge.track(options.seed, options.seconds, speech.DEMO)
    write_audio(file, track.samples)
    spoken = tuple(SpokenWord(*word) for word in track.words)
    return demo_data.WordsTruth(speech.RATE, options.seed, speech.WORDS, spoken)


if __name__ == "__main__":
    main()
