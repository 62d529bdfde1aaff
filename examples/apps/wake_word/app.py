"""A wake-word listener: prints when a word is said into the microphone, or in a recording.

python app.py seven
python app.py seven --source words.flac --fast
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import nnasync as nn
from nnasync.cli import demo_data
from nnasync.cli.recognition import HOP_SAMPLES, WordDecoder
from nnasync.hal import Array
from nnasync.streaming import Account, Graph, Item, Policy, audio_file, microphone

NAMES = demo_data.words_truth().names
LATE_NS = 10_000_000


class Ear:
    """Hears one word in the scores of hop after hop."""

    def __init__(self, word: str, heard: Callable[[float, float], object]) -> None:
        """`heard` is called with the second of the stream and the score."""
        self._label = NAMES.index(word)
        self._heard = heard
        self._decoder = WordDecoder()

    def __call__(self, item: Item) -> None:
        """Take the scores of a hop; hops come in order, and some may be missing."""
        word = self._decoder.feed(item.index, item.data)
        if word is not None and word.label == self._label:
            self._heard(item.media_ns / 1e9, word.score)


def as_row(hop: Array) -> Array:
    """The samples of a hop as the network takes them."""
    return hop.reshape(1, HOP_SAMPLES)


async def listen(
    source: Any,
    word: str,
    heard: Callable[[float, float], object],
    *,
    budget_ns: int | None = LATE_NS,
    runtime: Callable[[], Any] = nn.open_runtime,
) -> Account:
    """Listen until the source ends; where each hop went, from the source to the ear."""
    async with runtime() as rt:
        net = await rt.compile(demo_data.path("words.nnm"), priority=nn.Priority.HIGH)
        await net.warm_up()
        async with net.burst() as burst:
            graph = Graph()
            hops = graph.source(source, budget_ns=budget_ns, policy=Policy.BLOCK)
            scores = hops.map(as_row, name="row").map(burst, name="words", capacity=8)
            scores.sink(Ear(word, heard), name="ear", capacity=8)
            await graph.run()
    return graph.statistics("words").account


def show(second: float, score: float) -> None:
    """Print that the word was heard."""
    print(f"{second:7.2f} s  heard, with a score of {score:.2f}", flush=True)


def main() -> None:
    """Read the command line, and listen."""
    parser = argparse.ArgumentParser(description="Print when a word is said.")
    parser.add_argument("word", choices=NAMES)
    parser.add_argument("--source", metavar="FILE", help="a recording instead of the microphone")
    parser.add_argument("--fast", action="store_true", help="as fast as it can be heard")
    arguments = parser.parse_args()
    budget_ns: int | None = LATE_NS
    source: Any = None
    if arguments.source is None:
        source = microphone()
    else:
        source = audio_file(arguments.source, pace="fast" if arguments.fast else "real-time")
        budget_ns = None if arguments.fast else LATE_NS
    try:
        account = nn.run(lambda: listen(source, arguments.word, show, budget_ns=budget_ns))
        print(account)
    except KeyboardInterrupt:
        pass
    except nn.NNError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
