"""Compile a network, and await an answer: which digit the first frame shows."""

from __future__ import annotations

import numpy as np

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.streaming import video_file


async def main() -> None:
    async with video_file(demo_data.path("digits.mp4"), size=(64, 64)) as video:
        frame = (await anext(video)).data

    async with nn.open_runtime() as runtime:
        net = await runtime.compile(demo_data.path("digits.nnm"))
        image = net.inputs[0]
        print(f"{net.model.name} takes {image.name} {image.shape} {image.dtype}")
        pixels = frame.reshape(image.shape) / np.float32(255)
        scores, timing = await net.measured(pixels)
        device = net.report().partitions[0].device

    print(f"digit {scores.argmax()} with a score of {scores.max():.2f}")
    print(f"{timing.time_on_device_ns / 1e6:.2f} ms on {device}")


if __name__ == "__main__":
    nn.run(main)
