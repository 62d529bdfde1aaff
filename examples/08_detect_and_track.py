"""Digits in a clip: found, read, followed, and drawn into a recording."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import anyio

import nnasync as nn
from nnasync import vision
from nnasync.cli import demo_data
from nnasync.hal import Array
from nnasync.streaming import Graph, Item, Policy, video_file, video_recorder

SECONDS = 3


async def main(recording: Path) -> None:
    tracker = vision.Tracker()
    seen: Counter[str] = Counter()

    def drawn(item: Item) -> Array:
        """The picture, with the boxes of what is known to be there; frames come in order."""
        picture: Array
        picture, boxes = item.data
        things = tracker.update(boxes, item.captured_ns)
        vision.draw(picture, things, caption=lambda box: f"#{box.identity} {box.name}")
        seen.update(f"#{box.identity} is a {box.name}" for box in things)
        return picture

    async with nn.open_runtime() as runtime:
        net = await runtime.compile(demo_data.path("detector.nnm"))
        detect = demo_data.digit_detector(net)

        async def found(picture: Array) -> tuple[Array, vision.Boxes]:
            return picture, await detect(picture)

        graph = Graph()
        frames = graph.source(video_file(demo_data.path("scene.mp4"), pixels="rgb24"))
        frames.map(found, name="detector").sink(
            video_recorder(recording, draw=drawn), name="recorder", policy=Policy.BLOCK, capacity=30
        )
        async with graph:
            with anyio.move_on_after(SECONDS):
                await graph.drain()
    for thing, frames_seen in sorted(seen.items()):
        print(f"{thing}, in {frames_seen} frames")
    print(graph.account())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        nn.run(main, Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "digits.mp4")
