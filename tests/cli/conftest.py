"""Small clips and untrained networks in place of the demo's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.cli.demo_data import VideoTruth, WordsTruth
from nnasync.cli.recognition import SpokenWord

SECONDS = 2


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the demo needs: two seconds of clips, networks of two layers
    but for the detector."""
    folder = tmp_path_factory.mktemp("toy")
    generator = np.random.default_rng(1)
    for name, hidden in (("digits", 16), ("digits_large", 256)):
        nn.save(picture_network(name, hidden, generator), folder / f"{name}.nnm")
    nn.save(sound_network(generator), folder / "words.nnm")
    write_clips(folder, generator)
    shutil.copy(demo_data.path("detector.nnm"), folder)
    return folder


def picture_network(name: str, hidden: int, generator: np.random.Generator) -> nn.Model:
    builder = nn.ModelBuilder(name)
    image = builder.input("image", (1, 64, 64, 1))
    flat = builder.reshape(image, (1, 4096))
    weights = generator.normal(size=(hidden, 4096)).astype(np.float32)
    middle = builder.fully_connected(flat, weights, np.zeros(hidden, np.float32))
    last = generator.normal(size=(11, hidden)).astype(np.float32)
    scores = builder.fully_connected(middle, last, np.zeros(11, np.float32))
    builder.output("scores", builder.softmax(scores))
    return builder.build()


def sound_network(generator: np.random.Generator) -> nn.Model:
    builder = nn.ModelBuilder("words")
    hop = builder.input("hop", (1, 160))
    before = builder.state("before", (1, 160))
    both = builder.concatenation([before, hop], axis=1)
    weights = generator.normal(size=(11, 320)).astype(np.float32)
    scores = builder.fully_connected(both, weights, np.zeros(11, np.float32))
    builder.update(before, builder.add(hop, np.zeros((1, 160), np.float32)))
    builder.output("scores", builder.softmax(scores))
    return builder.build()


def write_clips(folder: Path, generator: np.random.Generator) -> None:
    with av.open(str(folder / "digits.mp4"), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=30)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(30 * SECONDS):
            pixels = generator.integers(0, 255, (64, 64), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="gray")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    with av.open(str(folder / "words.flac"), "w") as container:
        stream = container.add_stream("flac", rate=16000, layout="mono")
        samples = generator.integers(-3000, 3000, (1, 16000 * SECONDS), np.int16)
        sound = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        sound.sample_rate = 16000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    labels = tuple(frame // 20 for frame in range(30 * SECONDS))
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    spoken = (SpokenWord(1, 4000, 8000), SpokenWord(2, 16000, 20000))
    (folder / "digits.json").write_bytes(msgspec.json.encode(VideoTruth(30, 1, labels)))
    (folder / "words.json").write_bytes(msgspec.json.encode(WordsTruth(16000, 1, names, spoken)))
