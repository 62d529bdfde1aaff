"""Make the demo's clips: a video of drawn digits, a track of spoken ones, and their truth.

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
from training import judge, scenes, speech

from nnasync import hal
from nnasync.cli import demo_data
from nnasync.cli.recognition import SpokenWord

CLIP_SEED = 20_271_000
TARGET = pathlib.Path(__file__).resolve().parents[1] / "nnasync" / "cli" / "demo_data"


def _luma_only(image: scenes.Gray) -> scenes.Gray:
    """A planar picture without color: gray values of full range, chroma in the middle."""
    return np.concatenate([image, np.full((scenes.SIDE // 2, scenes.SIDE), 128, np.uint8)])


def write_video(file: pathlib.Path, seed: int, seconds: int, quality: int) -> demo_data.VideoTruth:
    """Write an H.264 clip of 64x64 gray pictures; lower `quality` numbers are better pictures."""
    labels = []
    with av.open(file, "w") as container:
        stream = container.add_stream("libx264", rate=scenes.FPS)
        stream.width = stream.height = scenes.SIDE
        stream.pix_fmt = "yuvj420p"
        stream.codec_context.color_range = ColorRange.JPEG
        stream.codec_context.time_base = Fraction(1, scenes.FPS)
        stream.options = {"crf": str(quality), "preset": "slow", "threads": "1"}
        for index, (image, label) in enumerate(scenes.play(seed, seconds * scenes.FPS)):
            frame = av.VideoFrame.from_ndarray(_luma_only(image), format="yuvj420p")
            frame.pts, frame.time_base = index, Fraction(1, scenes.FPS)
            container.mux(stream.encode(frame))
            labels.append(label)
        container.mux(stream.encode(None))
    return demo_data.VideoTruth(scenes.FPS, seed, tuple(labels))


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
    """Make both clips and say what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=CLIP_SEED)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--quality", type=int, default=20, help="of the video: 0 (best) to 51")
    parser.add_argument("--output", type=pathlib.Path, default=TARGET)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)

    print("drawing and encoding the video ...", flush=True)
    video = write_video(
        options.output / "digits.mp4", options.seed, options.seconds, options.quality
    )
    _write_truth(options.output / "digits.json", video)

    print("speaking the words ...", flush=True)
    track = judge.track(options.seed, options.seconds, speech.DEMO)
    write_audio(options.output / "words.flac", track.samples)
    spoken = tuple(SpokenWord(*word) for word in track.words)
    truth = demo_data.WordsTruth(speech.RATE, options.seed, speech.WORDS, spoken)
    _write_truth(options.output / "words.json", truth)

    voices = len({word.voice for word in track.words})
    print(f"{len(video.labels)} frames; {len(spoken)} words in {voices} voices")
    for name in ("digits.mp4", "digits.json", "words.flac", "words.json"):
        print(f"{name:12} {(options.output / name).stat().st_size / 1000:8.0f} kB")


if __name__ == "__main__":
    main()
