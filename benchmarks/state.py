"""State of a stream: what it costs to hand the state of one step on to the next.

For each network and place of the device (this process, a driver service), by calls of the network
and by calls of a burst:

copied    states are outputs of one call, fresh arrays, and arguments of the next
domains   states are in buffers of the device (memory domains), two of each, which the application
          hands over in turns; the client never sees them
kept      the burst has the states by itself: through a service in buffers of the device, in this
          process in memory of its own, which is not copied either

The networks are `tts_float`, with seven small states, and one that adds to a single large state.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from benchmarks._report import (
    BEST,
    arguments,
    interleave,
    median,
    models_folder,
    publish,
    spread,
    table,
)
from nnasync.hal import Array, Model, OperationType

CALLS, BURSTS = "net(...)", "burst(...)"
COPIED, DOMAINS = "copied through the client", "memory domains"
KEPT = "kept by the burst"
LARGE = (1, 1 << 18)

Step = Callable[[], Coroutine[Any, Any, Array]]


class Copying:
    """A network called with its states as arguments; `call` is the network, or a burst on it."""

    def __init__(self, model: Model, call: Callable[..., Awaitable[Any]], x: Array) -> None:
        main = model.main
        self._call = call
        self._x = x
        self._given = [pair.input for pair in model.state]
        self._taken = [pair.output for pair in model.state]
        self._first = next(n for n in range(len(main.output_indexes)) if n not in self._taken)
        self._arguments: list[Any] = [x] * len(main.input_indexes)
        for at in self._given:
            self._arguments[at] = np.zeros(main.operands[main.input_indexes[at]].dimensions, "f4")

    async def step(self) -> Array:
        """Makes one step; the client holds the state in between."""
        found = await self._call(*self._arguments)
        for given, taken in zip(self._given, self._taken, strict=True):
            self._arguments[given] = found[taken]
        return np.asarray(found[self._first])


class Handing:
    """The same network; its states are in buffers, two of each, which take turns."""

    def __init__(self, model: Model, net: nn.Net, x: Array, pairs: Sequence[Any]) -> None:
        main = model.main
        self._net = net
        outputs = range(len(main.output_indexes))
        self._first = next(n for n in outputs if n not in {pair.output for pair in model.state})
        self._turns = []
        for turn in (0, 1):
            given: list[Any] = [x] * len(main.input_indexes)
            out: list[Any] = [None for _ in outputs]
            for state, buffers in zip(model.state, pairs, strict=True):
                given[state.input], out[state.output] = buffers[turn], buffers[1 - turn]
            self._turns.append((given, out))
        self._turn = 0

    async def step(self) -> Array:
        """Makes one step; the client never sees the state."""
        given, out = self._turns[self._turn]
        found = await self._net(*given, out=out)
        self._turn ^= 1
        return np.asarray(found[self._first])


async def pairs_of(runtime: nn.Runtime, net: nn.Net, model: Model) -> list[list[Any]]:
    """Returns two buffers of zeros for each state of a network whose states are arguments."""
    pairs = []
    for state in model.state:
        roles = net.input_role(state.input), net.output_role(state.output)
        pair = [await runtime.allocate(*roles) for _ in range(2)]
        for each in pair:
            if each.is_shared:
                sys.exit(f"the device has no buffers: {each.reason}")
            await each.write(np.zeros(each.shape, each.dtype))
        pairs.append(pair)
    return pairs


@asynccontextmanager
async def opened(model: Model, name: str, *, isolated: bool) -> AsyncIterator[dict[str, Step]]:
    """Yields the ways to step through a stream, which agree."""
    plain = msgspec.structs.replace(model, state=())
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(
            nn.open_runtime(devices=[name], isolate=[name] if isolated else [])
        )
        stream, net = (
            await runtime.compile(model, options=BEST),
            await runtime.compile(plain, options=BEST),
        )
        x = np.ones(stream.inputs[0].shape, stream.inputs[0].dtype)
        copying = await stack.enter_async_context(net.burst())
        burst = await stack.enter_async_context(stream.burst())

        async def carried() -> Array:
            return np.asarray(await burst(x))

        ways = {
            f"{CALLS}, {COPIED}": Copying(model, net, x).step,
            f"{CALLS}, {DOMAINS}": Handing(model, net, x, await pairs_of(runtime, net, model)).step,
            f"{BURSTS}, {COPIED}": Copying(model, copying, x).step,
            f"{BURSTS}, {KEPT}": carried,
        }
        found = {}
        for way, step in ways.items():
            found[way] = [await step() for _ in range(4)][-1]
        first = next(iter(found.values()))
        if not all(np.allclose(first, other, atol=1e-5) for other in found.values()):
            sys.exit("the ways do not agree")
        yield ways


def timed(step: Step, steps: int) -> Callable[[], Awaitable[float]]:
    """Returns a contestant that gives the mean microseconds of so many steps."""

    async def run() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            await step()
        return (time.perf_counter() - started) / steps * 1e6

    return run


def adder() -> Model:
    """Returns a model with a large state, to which the input is added."""
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
            async with opened(model, options.device, isolated=isolated) as ways:
                contestants = {way: timed(step, options.steps) for way, step in ways.items()}
                results = await interleave(contestants, options.rounds)
            where = f"{network}, {'service' if isolated else 'in process'}"
            figures[where] = results
            for way, values in results.items():
                base = median(results[f"{way.split(', ')[0]}, {COPIED}"])
                ratio = f"{median(values) / base:.2f}"
                rows.append((f"{where}: {way}", spread(values), ratio))
    text = table(["microseconds a step", "median (quartiles)", "to copied"], rows)
    publish(f"State of a stream on {options.device}", text, figures, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=20)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--device", default="litert-cpu", help="the device (%(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="steps a round (%(default)s)")
    nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
