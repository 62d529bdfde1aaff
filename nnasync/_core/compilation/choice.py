"""The choice of devices for a model, as a pin or a verdict states it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from nnasync.engine import Lowering

__all__ = ["WHOLE", "Choice", "Part", "Runs", "is_sound", "spread", "tell_lowering"]

WHOLE = "whole model"
"""Stands for the lowering of a device that knows one way only."""

Runs = tuple[tuple[int, int], ...]
"""Pairs of a part and a number of operations."""


class Part(msgspec.Struct, frozen=True):
    """A device in its version, and one of its lowerings."""

    device: str
    version: str
    lowering: str = WHOLE
    threads: int = 1


class Choice(msgspec.Struct, frozen=True):
    """The parts that run a model; `runs` are (part, number of operations), empty for one part.

    The runs follow the operations of the main subgraph in their order. The number of parts stands
    for the control-flow interpreter; `bodies` are the subgraphs that it runs, by number, with runs
    of their own.
    """

    parts: tuple[Part, ...]
    runs: Runs = ()
    bodies: tuple[tuple[int, Runs], ...] = ()


def tell_lowering(lowering: Lowering | None) -> str:
    """A lowering in words."""
    return WHOLE if lowering is None else str(lowering)


def spread(assignment: Iterable[int]) -> Runs:
    """The runs of equal numbers in an assignment of operations to parts."""
    return tuple((part, len(list(group))) for part, group in itertools.groupby(assignment))


def is_sound(choice: Choice) -> bool:
    """Whether the runs name parts that there are, and the interpreter where it has bodies."""
    count, numbers = len(choice.parts), [number for number, _ in choice.bodies]
    named = {part for _, runs in ((0, choice.runs), *choice.bodies) for part, _ in runs}
    if not choice.runs:
        return count == 1
    if len(set(numbers)) < len(numbers) or (count in named) != bool(numbers):
        return False
    return max(named) <= count and (count > 1 or bool(numbers))
