"""State of a stream: what it costs to hand the state of one step on to the next.

Three ways, for each network and place of the device (this process, a driver service):

copied    the client copies the state that came out, and writes it in again, as who calls a network
          with its state as arguments does
turned    two sets of shared memory take turns as state that goes in and state that comes out;
          nothing is copied. A burst works like that.
domains   the state lives in buffers of the device, in pairs that take turns; requests name them by
          token

The networks are `tts_float`, with seven small states, and one that adds to a single large state.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

import nnasync as nn
from benchmarks._report import arguments, interleave, median, models_folder, publish, spread, table
from nnasync.device import Buffer, Device, PreparedModel
from nnasync.hal import (
    Array,
    BufferDesc,
    BufferRole,
    DataLocation,
    Model,
    Operand,
    OperationType,
    Request,
    RequestArgument,
    StatePair,
    byte_size,
    dtype_of,
)
from nnasync.memory import Pool, layout

COPIED, TURNED, DOMAINS = "copied through the client", "turned, shared memory", "memory domains"
LARGE = (1, 1 << 18)


class Stream:
    """A network with states on a device, and the three ways to step through it."""

    def __init__(self, model: Model, prepared: PreparedModel, buffers: Sequence[Sequence[Buffer]]):
        main = model.main
        self._prepared = prepared
        self._states = model.state
        self._count = len(main.input_indexes)
        operands = [main.operands[index] for index in main.input_indexes + main.output_indexes]
        spare = [operands[pair.input] for pair in model.state]
        self._place([*operands, *spare])
        self._tokens = [[buffer.token for buffer in pair] for pair in buffers]
        self._copied = self._request(0)
        self._turned = [self._request(turn) for turn in (0, 1)]
        self._domains = [self._request_by_tokens(turn) for turn in (0, 1)]
        self._turn = 0
        self._x = np.ones(operands[0].dimensions, dtype_of(operands[0].type))

    def _place(self, operands: Sequence[Operand]) -> None:
        sizes = [byte_size(operand.type, operand.dimensions) for operand in operands]
        offsets, total = layout(sizes)
        self._pool = Pool.allocate(total)
        self._places = [DataLocation(0, at, size) for at, size in zip(offsets, sizes, strict=True)]
        self._arrays = [
            self._pool.array(dtype_of(operand.type), operand.dimensions, at)
            for operand, at in zip(operands, offsets, strict=True)
        ]

    def _request(self, turn: int) -> Request:
        """States come in where they are and go out to the spare places, or the other way round."""
        places = list(self._places)
        for spare, pair in enumerate(self._states, len(places) - len(self._states)):
            ways = (places[pair.input], places[spare])
            places[pair.input], places[self._count + pair.output] = ways[turn], ways[1 - turn]
        return self._made([RequestArgument(location=place) for place in places], [self._pool])

    def _request_by_tokens(self, turn: int) -> Request:
        placed = [RequestArgument(location=place) for place in self._places]
        pools: list[Any] = [self._pool]
        for pair, tokens in zip(self._states, self._tokens, strict=True):
            for at, token in (
                (pair.input, tokens[turn]),
                (self._count + pair.output, tokens[1 - turn]),
            ):
                placed[at] = RequestArgument(location=DataLocation(len(pools), 0, 0))
                pools.append(token)
        return self._made(placed, pools)

    def _made(self, placed: list[RequestArgument], pools: list[Any]) -> Request:
        end = len(self._places) - len(self._states)
        return Request(tuple(placed[: self._count]), tuple(placed[self._count : end]), tuple(pools))

    async def copied(self) -> None:
        """One step; the client has the state in between."""
        self._arrays[0][...] = self._x
        await self._prepared.execute_synchronously(self._copied)
        first = len(self._places) - len(self._states)
        state = [self._arrays[first + at].copy() for at in range(len(self._states))]
        for pair, value in zip(self._states, state, strict=True):
            self._arrays[pair.input][...] = value

    async def turned(self) -> None:
        """One step; inputs and outputs of state are exchanged afterwards."""
        self._arrays[0][...] = self._x
        await self._prepared.execute_synchronously(self._turned[self._turn])
        self._turn ^= 1

    async def domains(self) -> None:
        """One step; the client never sees the state."""
        self._arrays[0][...] = self._x
        await self._prepared.execute_synchronously(self._domains[self._turn])
        self._turn ^= 1

    def output(self) -> Array:
        """The first output of the last step."""
        return self._arrays[self._count].copy()

    def reset(self) -> None:
        """State zero in shared memory, and the first turn."""
        self._pool.view[:] = bytes(self._pool.size)
        self._turn = 0


async def buffers_of(device: Device, prepared: PreparedModel, pair: StatePair) -> list[Buffer]:
    """Two buffers for a state, each to be read and to be written."""
    roles = [BufferRole(0, pair.input)], [BufferRole(0, pair.output)]
    return [await device.allocate(BufferDesc(), [prepared], *roles) for _ in range(2)]


@asynccontextmanager
async def opened(model: Model, name: str, *, isolated: bool) -> AsyncIterator[Stream]:
    """A stream whose three ways agree."""
    isolate = [name] if isolated else []
    async with nn.open_runtime(devices=[name], isolate=isolate) as runtime:
        device = runtime.device(name)
        prepared = await device.prepare_model(model)
        buffers = [await buffers_of(device, prepared, pair) for pair in model.state]
        stream = Stream(model, prepared, buffers)
        for pair, (first, _) in zip(model.state, buffers, strict=True):
            operand = model.main.operands[model.main.input_indexes[pair.input]]
            with Pool.allocate(byte_size(operand.type, operand.dimensions)) as zeros:
                await first.copy_from(zeros)
        found = []
        for step in (stream.copied, stream.turned, stream.domains):
            stream.reset()
            for _ in range(4):
                await step()
            found.append(stream.output())
        if not all(np.allclose(found[0], other, atol=1e-5) for other in found[1:]):
            sys.exit("the ways do not agree")
        yield stream


def timed(step: Callable[[], Awaitable[None]], steps: int) -> Callable[[], Awaitable[float]]:
    """Microseconds of a step, on average over so many."""

    async def run() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            await step()
        return (time.perf_counter() - started) / steps * 1e6

    return run


def adder() -> Model:
    """A large state, to which the input is added."""
    builder = nn.ModelBuilder("large state")
    x = builder.input("x", (1, 1))
    state = builder.state("state", LARGE)
    new = builder.add(state, x)
    begin, size = np.array([0, 0], np.int32), np.array([1, 1], np.int32)
    builder.output("y", builder.operation(OperationType.SLICE, new, begin, size))
    builder.update(state, new)
    return builder.build()


async def measure(options: argparse.Namespace) -> None:
    """Interleave the ways, network by network and place by place."""
    folder = models_folder(options.models)
    models = {
        "tts_float": nn.load(folder / "tts_float.tflite"),
        f"{4 * LARGE[1] >> 20} MB of state": adder(),
    }
    rows, figures = [], {}
    for network, model in models.items():
        for isolated in (False, True):
            async with opened(model, options.device, isolated=isolated) as stream:
                steps = options.steps
                contestants = {
                    COPIED: timed(stream.copied, steps),
                    TURNED: timed(stream.turned, steps),
                    DOMAINS: timed(stream.domains, steps),
                }
                results = await interleave(contestants, options.rounds)
            where = f"{network}, {'service' if isolated else 'in process'}"
            base = median(results[COPIED])
            figures[where] = results
            rows += [
                (f"{where}: {way}", spread(values), f"{median(values) / base:.2f}")
                for way, values in results.items()
            ]
    text = table(["microseconds a step", "median (quartiles)", "ratio"], rows)
    publish(f"State of a stream on {options.device}", text, figures, options.json)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=20)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--device", default="litert-cpu", help="the device (%(default)s)")
    parser.add_argument("--steps", type=int, default=50, help="steps a round (%(default)s)")
    nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
