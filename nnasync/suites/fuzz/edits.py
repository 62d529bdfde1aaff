"""Parts of models changed one at a time, and the numbers that changes are made of."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync import hal
from nnasync.hal import Array, DataLocation, Model, Operand, Subgraph
from nnasync.suites.fuzz.samples import FuzzSample, random_array
from nnasync.suites.fuzz.small_models import COPY, REFERENCE, replace

__all__ = [
    "DIMENSIONS",
    "FLOATS",
    "MIDDLE",
    "NUMBERS",
    "ODD_FLOATS",
    "SMALL",
    "Editor",
    "has_value",
    "is_small",
    "value_of",
]

NUMBERS = (
    *range(-3, 17),
    *(
        sign * 2**power + off
        for sign in (-1, 1)
        for power in (8, 16, 31, 32, 63)
        for off in (-1, 0)
    ),
    2**64,
    10**30,
    *(20, 33, 50, 100, 257, 1000, 3000, 10_000),
)
INT32 = tuple(number for number in NUMBERS if -(2**31) <= number < 2**31)
FLOATS = (0.0, -0.0, 0.5, 1.0, -1.0, 3.0, 1e-8, 1e-30, 1e30, 3e38, 5e-324, 1.7e308)
ODD_FLOATS = (*FLOATS, float("inf"), float("-inf"), float("nan"))
DIMENSIONS = (0, 0, *range(1, 10), 17, 64, 255, 1000, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1)
ODD_DIMENSIONS = (*DIMENSIONS, -1, 2**32, 2**63, 2**64)
MIDDLE = (10, 17, 32, 50, 64, 100, 200, 257, 500, 1000, 3000, 10_000, 50_000)
SMALL = (0, 1, 1, 2, 3, 4, 5, 8)


class Editor:
    """Makes small decisions and small edits; all randomness comes from one source."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.pick = source.choice

    def array(self, type: int, shape: Sequence[int], old: Array | None = None) -> Array:
        """Numbers of a type: a known array with some changed, or others."""
        array = random_array(self.random, type, shape)
        if old is not None and old.shape == tuple(shape) and self.random.random() < 0.9:
            array = old.copy()
        flat = array.reshape(-1)
        if not flat.size or self.random.random() < 0.3:
            return array
        for _ in range(self.random.randint(0, 2)):
            flat[self.random.randrange(flat.size)] = self._number(array.dtype)
        if self.random.random() < 0.05:
            flat[...] = self._number(array.dtype)
        return array

    def _number(self, dtype: np.dtype[Any]) -> Any:
        if dtype.kind == "f":
            with np.errstate(all="ignore"):
                return np.float64(self.pick(ODD_FLOATS)).astype(dtype)
        if dtype.kind == "b":
            return self.pick((False, True))
        limits = np.iinfo(dtype)
        return self.pick([n for n in NUMBERS if limits.min <= n <= limits.max])

    def dimensions(self, old: Sequence[int]) -> tuple[int, ...]:
        """Other dimensions: one changed, added or dropped, two swapped, or all others."""
        new = list(old)
        odd = ODD_DIMENSIONS if self.random.random() < 0.1 else DIMENSIONS
        choices = self.pick((SMALL, SMALL, MIDDLE, odd))
        kind = self.random.randrange(6)
        if kind == 0 or not new:
            new.insert(self.random.randint(0, len(new)), self.pick(choices))
        elif kind == 1:
            del new[self.random.randrange(len(new))]
        elif kind == 2:
            self.random.shuffle(new)
        elif kind == 3 and self.random.random() < 0.2:
            new = [self.pick(choices) for _ in range(self.pick((0, 1, 4, 5, 8, 33, 65)))]
        else:
            new[self.random.randrange(len(new))] = self.pick(choices)
        return tuple(new)

    def listed(self, items: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        """A list with an item replaced, added, dropped or doubled; rotated or shuffled."""
        new = list(items)
        kind = self.random.randrange(7) if new else 0
        where = self.random.randrange(len(new)) if new else 0
        if kind == 0:
            new.insert(where, self.pick(others)) if others else None
        elif kind == 1:
            del new[where]
        elif kind == 2:
            new.insert(where, new[where])
        elif kind == 3:
            new = new[where:] + new[:where]
        elif kind == 4:
            self.random.shuffle(new)
        elif others:
            new[where] = self.pick(others)
        return tuple(new)

    def graph(self, model: Model) -> tuple[int, Subgraph]:
        """A subgraph and where it is: -1 is the main one."""
        place = -1
        if model.referenced and self.random.random() < 0.5:
            place = self.random.randrange(len(model.referenced))
        return place, self.at(model, place)

    @staticmethod
    def at(model: Model, place: int) -> Subgraph:
        """The subgraph at a place."""
        return model.main if place < 0 else model.referenced[place]

    @staticmethod
    def with_graph(sample: FuzzSample, place: int, graph: Subgraph) -> FuzzSample:
        """The sample with another subgraph at a place."""
        model = sample.model
        if place < 0:
            return replace(sample, model=replace(model, main=graph))
        referenced = list(model.referenced)
        referenced[place] = graph
        return replace(sample, model=replace(model, referenced=tuple(referenced)))

    def with_main(self, sample: FuzzSample, **fields: Any) -> FuzzSample:
        """The sample with fields of its main subgraph changed."""
        return self.with_graph(sample, -1, replace(sample.model.main, **fields))

    def with_operand(self, sample: FuzzSample, place: int, index: int, **fields: Any) -> FuzzSample:
        """The sample with fields of one operand changed."""
        graph = self.at(sample.model, place)
        operands = list(graph.operands)
        operands[index] = replace(operands[index], **fields)
        return self.with_graph(sample, place, replace(graph, operands=tuple(operands)))

    def with_value(self, sample: FuzzSample, place: int, index: int, array: Array) -> FuzzSample:
        """The operand as a constant with this value, at the end of those that are copied."""
        values = bytes(sample.model.operand_values)
        values += bytes(-len(values) % 8)
        data = array.tobytes()
        where = DataLocation(0, len(values), len(data))
        sample = replace(sample, model=replace(sample.model, operand_values=values + data))
        return self.with_operand(sample, place, index, lifetime=COPY, location=where)


def has_value(operand: Operand) -> bool:
    """Returns whether an operand is a constant of numbers."""
    return operand.lifetime in (COPY, REFERENCE) and hal.has_dtype(operand.type)


def is_small(type: int, shape: Sequence[int]) -> bool:
    """Returns whether a tensor is one that may be made here."""
    if not hal.has_dtype(type) or any(n < 0 for n in shape) or len(shape) > 60:
        return False
    return math.prod(max(n, 1) for n in shape) <= 100_000


def value_of(model: Model, operand: Operand) -> Array | None:
    """The value of a constant, where it is in its place."""
    where = operand.location
    memory: bytes | memoryview = model.operand_values
    if operand.lifetime == REFERENCE:
        if not 0 <= where.pool_index < len(model.pools):
            return None
        memory = model.pools[where.pool_index].view
    if not is_small(operand.type, operand.dimensions):
        return None
    dtype = hal.dtype_of(operand.type)
    size = dtype.itemsize * math.prod(operand.dimensions)
    if size != where.length or not 0 <= where.offset <= len(memory) - size:
        return None
    data = bytes(memory[where.offset : where.offset + size])
    return np.frombuffer(data, dtype).reshape(operand.dimensions)
