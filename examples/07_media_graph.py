"""Picture and sound as one graph: each word with the digit that was shown when it was said."""

from __future__ import annotations

import anyio

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.hal import Array
from nnasync.streaming import Graph, Item, Policy, audio_file, video_file

SECONDS = 3
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def prepared(frame: Array) -> Array:
    image: Array = (frame.reshape(1, 64, 64, 1) / 255).astype("float32")
    return image


def best(scores: Array) -> int:
    return int(scores.argmax())


def show(item: Item) -> None:
    word, digit = item.data
    print(f"{item.media_ns / 1e9:6.2f} s  heard {WORDS[word]}, saw {digit}")


async def main() -> None:
    async with nn.open_runtime() as runtime:
        digits = await runtime.compile(demo_data.path("digits.nnm"))
        words = await runtime.compile(demo_data.path("words.nnm"), priority=nn.Priority.HIGH)
        async with words.burst() as listening:  # it carries the network's state
            graph = Graph()
            frames = graph.source(
                video_file(demo_data.path("digits.mp4"), size=(64, 64)),
                name="camera",
                budget_ns=33_000_000,
            )
            hops = graph.source(
                audio_file(demo_data.path("words.flac")),
                name="microphone",
                budget_ns=10_000_000,
                policy=Policy.OLDEST,
            )
            seen = frames.map(prepared).map(digits, name="digits").map(best)
            heard = hops.map(lambda hop: hop.reshape(1, -1)).map(listening, name="words")
            spoken = heard.map(best).filter(lambda word: word < len(WORDS), name="is a word")
            graph.join(spoken.rate(2), seen, mode="latest", name="both").sink(show, name="show")
            async with graph:
                with anyio.move_on_after(SECONDS):
                    await graph.drain()
            print(graph.account())


if __name__ == "__main__":
    nn.run(main)
