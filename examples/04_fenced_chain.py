"""A chain of launches: each waits for the fence of the one before, the loop wakes up once."""

from __future__ import annotations

import numpy as np

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.streaming import video_file


def scaling() -> nn.Model:
    """A network that turns bytes between 0 and 255 into values between 0 and 1."""
    builder = nn.ModelBuilder("scaling")
    pixels = builder.input("pixels", (1, 64, 64, 1))
    builder.output("image", builder.mul(pixels, np.full((1, 1, 1, 1), 1 / 255, np.float32)))
    return builder.build()


async def main() -> None:
    async with video_file(demo_data.path("digits.mp4"), size=(64, 64), pace="fast") as video:
        frames = [(await anext(video)).data for _ in range(8)]

    async with nn.open_runtime() as runtime:
        scale = await runtime.compile(scaling())
        recognize = await runtime.compile(demo_data.path("digits.nnm"))
        before = runtime.statistics().wakeups
        for frame in frames:
            first = await scale.launch(frame.reshape(1, 64, 64, 1).astype(np.float32))
            second = await recognize.launch(first.outputs, wait_for=[first.fence])
            await second.fence
            scores = second.outputs[0].array
            info = await second.info()
            print(f"digit {scores.argmax()} ({scores.max():.2f}), {info.status.name}")
        print(f"{runtime.statistics().wakeups - before} wake-ups for {2 * len(frames)} launches")


if __name__ == "__main__":
    nn.run(main)
