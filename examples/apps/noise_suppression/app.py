"""Noise suppression of a microphone into a .wav file, by a network of masks.

    python app.py dtln_noise_suppression.tflite clean.wav --source noisy.flac

A window of 512 samples is taken every 128. The network is given the magnitudes of its spectrum, and
its answer is what they are multiplied with; windows that overlap are added up again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nnasync as nn
from nnasync import audio
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.streaming import (
    Graph,
    GraphAccount,
    Policy,
    audio_file,
    audio_recorder,
    microphone,
)

WINDOW, HOP = 512, 128
BINS = WINDOW // 2 + 1
SHARE = HOP / WINDOW
"""Windows overlap, so that each sample is in four of them."""


class Suppressor:
    """The stream of one microphone: its last samples, and what is still to be added to the next."""

    def __init__(self, net: nn.Net, burst: nn.Burst) -> None:
        """Raises InvalidArgument for a network that is none of masks."""
        shapes = [port.shape for port in (*net.inputs, *net.outputs)]
        if len(shapes) != 2 or any(int(np.prod(shape)) != BINS for shape in shapes):
            raise InvalidArgument(
                f"the network has to take {BINS} magnitudes and give as many factors; it is {net!r}"
            )
        self._net = net
        self._burst = burst
        self._recent = np.zeros(WINDOW, np.float32)
        self._sum = audio.OverlapAdd(WINDOW, HOP)

    async def __call__(self, hop: Array, *, deadline: nn.Deadline | None = None) -> Array:
        """The sound of one hop without its noise, late by a window less a hop."""
        self._recent = np.concatenate([self._recent[HOP:], hop.reshape(HOP)])
        spectrum = np.fft.rfft(self._recent)
        given = np.abs(spectrum).reshape(self._net.inputs[0].shape)
        try:
            mask = await self._burst(self._net.quantize(given), deadline=deadline)
        except nn.Refused:
            self._sum.feed(np.zeros(WINDOW, np.float32))
            raise
        factors = self._net.dequantize(mask).reshape(BINS)
        return self._sum.feed(np.fft.irfft(spectrum * factors) * SHARE)


async def suppress(
    model: Any,
    source: Any,
    out: Path,
    *,
    budget_ns: int | None = HOP * 1_000_000_000 // 16_000,
    runtime: Callable[[], Any] = nn.open_runtime,
) -> GraphAccount:
    """Write what comes from a source, hops of 128 samples, until it ends."""
    async with runtime() as rt:
        net = await rt.compile(model, priority=nn.Priority.HIGH)
        await net.warm_up()
        async with net.burst() as burst:
            graph = Graph()
            hops = graph.source(source, name="sound", budget_ns=budget_ns, policy=Policy.BLOCK)
            clean = hops.map(Suppressor(net, burst), name="suppression", capacity=8)
            clean.sink(audio_recorder(out), name="file", capacity=8)
            await graph.run()
    return graph.account()


def main() -> None:
    """Read the command line, and write until the sound ends or Ctrl-C."""
    parser = argparse.ArgumentParser(description="Write a microphone to a file without noise.")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, help="the .wav file to write")
    parser.add_argument("--source", metavar="FILE", help="a recording instead of the microphone")
    arguments = parser.parse_args()
    source: Any = microphone(hop=HOP)
    budget_ns: int | None = HOP * 1_000_000_000 // 16_000
    if arguments.source is not None:
        source, budget_ns = audio_file(arguments.source, hop=HOP, pace="fast"), None
    try:
        print(nn.run(lambda: suppress(arguments.model, source, arguments.out, budget_ns=budget_ns)))
    except KeyboardInterrupt:
        pass
    except nn.NNError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
