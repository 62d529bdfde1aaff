"""A burst is a stream: it carries the state of a network from one hop of sound to the next."""

from __future__ import annotations

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.cli.recognition import WordDecoder
from nnasync.streaming import audio_file

SECONDS = 10


async def main() -> None:
    names = demo_data.words_truth().names
    decoder = WordDecoder()
    missed = 0
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(demo_data.path("words.nnm"), priority=nn.Priority.HIGH)
        async with (
            net.burst() as burst,
            audio_file(demo_data.path("words.flac"), pace="fast") as sound,
        ):
            async for hop in sound:
                if hop.media_ns > SECONDS * 1e9:
                    break
                try:
                    scores = await burst(hop.data.reshape(1, 160), deadline=nn.within(ms=100))
                except nn.MissedDeadline:  # The state is as it was before.
                    missed += 1
                    continue
                word = decoder.feed(hop.index, scores)
                if word is not None:
                    print(f"{hop.media_ns / 1e9:6.2f} s  {names[word.label]}")
            sizes = {name: array.shape for name, array in (await burst.state()).items()}
            print(f"{burst.statistics()}, {missed} missed\nstate {sizes}")


if __name__ == "__main__":
    nn.run(main)
