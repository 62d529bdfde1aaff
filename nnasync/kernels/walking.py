"""Going through a sequence step by step: at once where it is short, otherwise in rounds.

The calls of every step are bound beforehand, so that a long sequence would need as many. It goes
through buffers of a bounded number of steps instead, round by round, and the state is carried from
one round to the next. A sequence that is not in the order of time goes through them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from nnasync.hal import Array, Shape
from nnasync.kernels.operation import Arguments, ArraySpec, Kernel, Step
from nnasync.kernels.steps import Call, sequence

__all__ = ["Rounds", "Timeline", "Walk", "both_ways"]

_STEPS = 64


class Timeline:
    """The order of time in a sequence [times, batches, ...] or, not `major`, [batches, times, ...].

    In a `turned` sequence the values of a step do not lie together.
    """

    __slots__ = ("batches", "leading", "major", "times", "turned")

    def __init__(self, shape: Shape, *, major: bool) -> None:
        self.leading = shape[:2]
        self.times, self.batches = self.leading if major else self.leading[::-1]
        self.major = major
        self.turned = not major and self.batches > 1

    def steps(self, array: Array) -> Array:
        """The sequence as a view [times, batches, features]."""
        return array if self.major else array.transpose(1, 0, 2)

    def split(
        self, outputs: Sequence[Array], forward: int, *, merged: bool
    ) -> tuple[tuple[Array, Array], Sequence[Array]]:
        """Where two directions write [times, batches, features], and the states behind."""
        if not merged:
            return (self.steps(outputs[0]), self.steps(outputs[1])), outputs[2:]
        both = self.steps(outputs[0])
        return (both[..., :forward], both[..., forward:]), outputs[1:]


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
        """Whether it goes from the last step to the first."""

    def scratch(self, times: int, batches: int) -> list[ArraySpec]:
        """Scratch of at most this many steps."""

    def calls(
        self,
        sources: Sequence[Array],
        results: Array,
        states: Sequence[Array],
        after: Sequence[Array],
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls from contiguous sequences [times, batches, features] to such results.

        `after` takes the states behind the last step and may be the arrays of `states`.
        """


class Rounds:
    """The way of one walk over a sequence; `direct` results lie together in the output."""

    def __init__(
        self, walk: Walk, arguments: Arguments, timeline: Timeline, *, direct: bool = True
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
            return walk.calls(sources, target, states, after or carried, own)

        def part(count: int) -> Step:
            *here, results = [buffer[:count] for buffer in buffers]
            return sequence(walk.calls(here, results, carried, carried, own))

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


def both_ways(
    walks: Sequence[Walk], arguments: Arguments, timeline: Timeline, *, merged: bool
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
