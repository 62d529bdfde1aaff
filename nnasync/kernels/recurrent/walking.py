"""Going through a sequence step by step: at once where it is short, otherwise in rounds.

The calls of every step are bound beforehand, so that a long sequence would need as many. It goes
through buffers of a bounded number of steps instead, round by round, and the state is carried from
one round to the next. A sequence that is not in the order of time goes through them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnasync.hal import Array, Shape
from nnasync.kernels.operation import Arguments, ArraySpec, Kernel, Step
from nnasync.kernels.steps import Call, copy, sequence

_STEPS = 64


class TimeOrder:
    """The order of time in a sequence [times, batches, ...] or, not `major`, [batches, times, ...].

    In a `turned` sequence the values of a step do not lie together.
    """

    __slots__ = ("batches", "leading", "major", "times", "turned")

    def __init__(self, shape: Shape, *, major: bool) -> None:
        self.leading = shape[:2]
        self.times, self.batches = self.leading if major else self.leading[::-1]
        self.major = major
        self.turned = not major and self.batches > 1

    @classmethod
    def of(cls, arguments: Arguments, major: int) -> TimeOrder:
        """The order of time of input 0, whose flag is argument `major`."""
        return cls(arguments.tensor(0, 3).shape, major=arguments.flag(major))

    def steps(self, array: Array) -> Array:
        """The sequence as a view [times, batches, features]."""
        return array if self.major else array.transpose(1, 0, 2)

    def split(
        self, outputs: Sequence[Array], forward: int, *, merged: bool
    ) -> tuple[tuple[Array, Array], Sequence[Array]]:
        """Returns where two directions write [times, batches, features], and the states behind."""
        if not merged:
            return (self.steps(outputs[0]), self.steps(outputs[1])), outputs[2:]
        both = self.steps(outputs[0])
        return (both[..., :forward], both[..., forward:]), outputs[1:]


class Stretch(NamedTuple):
    """What some steps read and write: contiguous sequences [times, batches, features], states.

    `after` takes the states behind the last step and may be the arrays of `states`. `scratch` may
    be made for more steps than there are.
    """

    sources: Sequence[Array]
    results: Array
    states: Sequence[Array]
    after: Sequence[Array]
    scratch: Sequence[Array]

    def order(self, *, backward: bool) -> range:
        """The steps in the order in which they are walked."""
        return range(len(self.results))[:: -1 if backward else 1]


class Walk(Protocol):
    """A prepared recurrent layer: where its operands stand, and the calls of some steps."""

    @property
    def sources(self) -> tuple[int, ...]:
        """The inputs that are sequences."""

    @property
    def states(self) -> tuple[int, ...]:
        """The inputs that are the states before, first the last result."""

    @property
    def features(self) -> int:
        """Features of a result."""

    @property
    def backward(self) -> bool:
        """Returns whether it goes from the last step to the first."""

    def scratch(self, times: int, batches: int) -> list[ArraySpec]:
        """Scratch of at most this many steps."""

    def calls(self, stretch: Stretch) -> list[Call]:
        """Calls from the sequences of a stretch to its results and the states behind."""


class StepCell(Protocol):
    """One time step of an LSTM."""

    def step(
        self,
        sums: Array,
        states: tuple[Array, Array],
        targets: tuple[Array, Array],
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls of one time step from the input's sums; states and targets are (output, cell)."""


def cell_calls(
    cell: StepCell, sums: Array, stretch: Stretch, work: Sequence[Array], *, backward: bool = False
) -> list[Call]:
    """Calls that take a cell through a stretch, from its inputs' sums [times, batches, width]."""
    calls: list[Call] = []
    last = stretch.states[0], stretch.states[1]
    for time in stretch.order(backward=backward):
        new = stretch.results[time], stretch.after[1]
        calls += cell.step(sums[time], last, new, work)
        last = new
    return [*calls, copy(stretch.after[0], last[0])]


class Rounds:
    """The way of one walk over a sequence; `direct` results lie together in the output."""

    def __init__(
        self, walk: Walk, arguments: Arguments, timeline: TimeOrder, *, direct: bool = True
    ) -> None:
        self.walk = walk
        self.timeline = timeline
        self.direct = direct and not timeline.turned and timeline.times <= _STEPS
        self.length = min(timeline.times, _STEPS)
        self._states = [arguments.tensor(index) for index in walk.states]
        self._sources = [arguments.tensor(index) for index in walk.sources]

    def scratch(self) -> list[ArraySpec]:
        """Scratch, in the order in which `calls` takes it."""
        batches, dtype = self.timeline.batches, self._states[0].dtype
        specs = [ArraySpec(tensor.shape, tensor.dtype) for tensor in self._states]
        if not self.direct:
            specs += [
                ArraySpec((self.length, batches, tensor.shape[-1]), tensor.dtype)
                for tensor in self._sources
            ]
            specs.append(ArraySpec((self.length, batches, self.walk.features), dtype))
        return specs + self.walk.scratch(self.length, batches)

    def calls(
        self,
        inputs: Sequence[Any],
        target: Array,
        after: Sequence[Array],
        scratch: Iterator[Array],
    ) -> list[Call]:
        """Calls to a view [times, batches, features] and, if wanted, the states behind."""
        walk, timeline = self.walk, self.timeline
        states = [inputs[index] for index in walk.states]
        carried = [next(scratch) for _ in states]
        sources = [timeline.steps(inputs[index]) for index in walk.sources]
        buffers = [] if self.direct else [next(scratch) for _ in (*sources, target)]
        own = [next(scratch) for _ in walk.scratch(self.length, timeline.batches)]
        if self.direct:
            return walk.calls(Stretch(sources, target, states, after or carried, own))

        def part(count: int) -> Step:
            *here, results = [buffer[:count] for buffer in buffers]
            return sequence(walk.calls(Stretch(here, results, carried, carried, own)))

        whole, rest = part(self.length), timeline.times % self.length
        tail = part(rest) if rest else whole
        starts = range(0, timeline.times, self.length)[:: -1 if walk.backward else 1]
        *heres, results = buffers

        def step() -> None:
            for buffer, state in zip(carried, states, strict=True):
                np.copyto(buffer, state)
            for start in starts:
                now = slice(start, min(start + self.length, timeline.times))
                count = now.stop - start
                for buffer, source in zip(heres, sources, strict=True):
                    np.copyto(buffer[:count], source[now])
                (whole if count == self.length else tail)()
                np.copyto(target[now], results[:count])
            for state, buffer in zip(after, carried, strict=False):
                np.copyto(state, buffer)

        return [(step, ())]


def one_way(walk: Walk, arguments: Arguments, timeline: TimeOrder) -> Kernel:
    """The kernel of a forward walk, whose states may be put out behind its results."""
    rounds = Rounds(walk, arguments, timeline)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = timeline.steps(outputs[0])
        return sequence(rounds.calls(inputs, target, outputs[1:], iter(scratch)))

    return Kernel(bind, rounds.scratch())


def both_ways(
    walks: Sequence[Walk], arguments: Arguments, timeline: TimeOrder, *, merged: bool
) -> Kernel:
    """The kernel of a forward and a backward walk; merged results lie in one output."""
    ways = [Rounds(walk, arguments, timeline, direct=not merged) for walk in walks]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        targets, states = timeline.split(outputs, walks[0].features, merged=merged)
        pieces, count = iter(scratch), len(states) // 2
        calls: list[Call] = []
        for index, way in enumerate(ways):
            after = states[count * index : count * (index + 1)]
            calls += way.calls(inputs, targets[index], after, pieces)
        return sequence(calls)

    return Kernel(bind, [spec for way in ways for spec in way.scratch()])
