"""Inputs for a model that are made up, alike each time, and memory for its outputs.

Inputs that look like images (rank 4, few channels) are images of the kinds in `natural`, other ones
are signals. They use the range of the input: that of its integers, or of the first layer if that
quantizes, since beyond it everything is cut off; floats of which nothing is known are in [-1, 1].
Where the range is known there are edges too: all of the highest, of the lowest, and of the zero
point, and a ramp from one end to the other. Plain integers, which often are indices, are 0 or 1.
States are zero.

A sample can be disturbed: each number is a step higher or lower, or stays. A step is one of 255 in
the range. What a network makes of that is the scale for what roundings in other places may do to
its results (`agreement`). Where floats disagree, each float moves to one of its neighbors instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.compilation.natural import IMAGES, SIGNALS, ramp
from nnasync._core.compilation.ranges import Range, is_measured, is_plain, ranges_of
from nnasync.hal import (
    Array,
    DataLocation,
    Model,
    Operand,
    Request,
    RequestArgument,
    Shape,
    byte_size,
    dtype_of,
    is_scalar,
)
from nnasync.memory import Pool, layout

_COUNT, _COUNT_OF_FLOATS = 6, 5
_EDGES = 4
_STEPS = 255
_IMAGE_CHANNELS, _LEAST_SIDE = 4, 8


class Samples(msgspec.Struct, frozen=True):
    """Inputs of runs, of which the first `edges` are at edges of their range."""

    inputs: list[list[Array]]
    edges: int

    def last(self, count: int) -> Samples:
        """Returns at most `count` of the samples; those at edges are left out first."""
        left_out = max(0, len(self.inputs) - count)
        return Samples(self.inputs[left_out:], max(0, self.edges - left_out))


def samples_of(model: Model) -> Samples:
    """Returns the samples of a model, always the same; runs are measured on the last one."""
    if not any(span is not None and span.is_known for span in ranges_of(model)):
        return Samples([sample(model, seed) for seed in range(_COUNT_OF_FLOATS)], 0)
    edges = [_sample(model, edge, 0) for edge in range(_EDGES)]
    return Samples(edges + [sample(model, seed) for seed in range(_COUNT)], _EDGES)


def sample(model: Model, seed: int) -> list[Array]:
    """Returns natural inputs of a model, states included."""
    return _sample(model, None, seed)


def _sample(model: Model, edge: int | None, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    return [
        _zeros(operand) if span is None else _values(operand, span, edge, seed, random)
        for operand, span in zip(_inputs(model), ranges_of(model), strict=True)
    ]


def disturbed(model: Model, inputs: Sequence[Array], seed: int) -> list[Array]:
    """Returns a sample with numbers moved by a step at most; states and plain integers stay."""
    random = np.random.default_rng(seed)
    return [
        values if span is None or is_plain(operand) else _moved(values, span, random)
        for values, operand, span in zip(inputs, _inputs(model), ranges_of(model), strict=True)
    ]


def neighbors(inputs: Sequence[Array], seed: int) -> list[Array]:
    """Returns a sample with each float moved to the next higher or lower one, states included."""
    random = np.random.default_rng(seed)
    return [_neighbors(values, random) if values.dtype.kind == "f" else values for values in inputs]


class SampleMemory:
    """Holds the inputs and outputs of one execution in a pool, as usual executions have them."""

    def __init__(self, model: Model, *, is_shared: bool = True) -> None:
        """Memory without a descriptor, for devices of this process only."""
        operands = [*_inputs(model), *_outputs(model)]
        count = len(model.main.input_indexes)
        sizes = [byte_size(each.type, each.dimensions) for each in operands]
        offsets, total = layout(sizes)
        pool = (Pool.allocate if is_shared else Pool.private)(max(total, 1))
        arrays = [
            pool.array(dtype_of(each.type), _shape_of(each), offset)
            for each, offset in zip(operands, offsets, strict=True)
        ]
        arguments = [
            RequestArgument(location=DataLocation(0, offset, size))
            for offset, size in zip(offsets, sizes, strict=True)
        ]
        self.inputs, self.outputs = arrays[:count], arrays[count:]
        self.request = Request(tuple(arguments[:count]), tuple(arguments[count:]), (pool,))

    def write(self, values: Sequence[Array]) -> None:
        """Copy a sample in, and clear the outputs of the one before."""
        for target, value in zip(self.inputs, values, strict=True):
            np.copyto(target, value)
        for output in self.outputs:
            output.fill(0)

    def read(self) -> list[Array]:
        """Returns copies of the outputs."""
        return [output.copy() for output in self.outputs]


def _inputs(model: Model) -> list[Operand]:
    return [model.main.operands[index] for index in model.main.input_indexes]


def _outputs(model: Model) -> list[Operand]:
    return [model.main.operands[index] for index in model.main.output_indexes]


def _shape_of(operand: Operand) -> Shape:
    return () if is_scalar(operand.type) else operand.dimensions


def _zeros(operand: Operand) -> Array:
    """Returns an array of what stands for zero in an operand's numbers."""
    dtype = dtype_of(operand.type)
    return np.full(_shape_of(operand), operand.zero_point if is_measured(operand) else 0, dtype)


def _values(
    operand: Operand, span: Range, edge: int | None, seed: int, random: np.random.Generator
) -> Array:
    """Returns an input at an edge of its range, or with `edge` None that of a natural sample.

    An input of unknown range has no edges, so that it is natural always.
    """
    dtype, shape = dtype_of(operand.type), _shape_of(operand)
    if is_plain(operand):
        return random.integers(0, 2, shape).astype(dtype)
    levels = (span.highest, span.lowest, span.zero)
    if edge is None or not span.is_known:
        values = span.lowest + _field(shape, seed, random) * (span.highest - span.lowest)
    elif edge < len(levels):
        values = np.full(shape, levels[edge])
    else:
        values = span.lowest + ramp(shape) * (span.highest - span.lowest)
    return _rounded(values, dtype)


def _moved(values: Array, span: Range, random: np.random.Generator) -> Array:
    step = (span.highest - span.lowest) / _STEPS
    moved = values + random.integers(-1, 2, values.shape) * step
    return _rounded(np.clip(moved, span.lowest, span.highest), values.dtype)


def _neighbors(values: Array, random: np.random.Generator) -> Array:
    ends = np.where(random.integers(0, 2, values.shape) > 0, np.inf, -np.inf)
    moved: Array = np.nextafter(values, ends.astype(values.dtype))
    return moved


def _rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    rounded: Array = (values if dtype.kind == "f" else np.rint(values)).astype(dtype)
    return rounded


def _field(shape: Sequence[int], seed: int, random: np.random.Generator) -> Array:
    """Numbers in [0, 1]: an image where the shape is that of one, with channels first or last."""
    if len(shape) == 4 and min(shape[1], shape[3]) <= _IMAGE_CHANNELS:
        make = IMAGES[seed % len(IMAGES)]
        if shape[3] <= _IMAGE_CHANNELS and min(shape[1:3]) >= _LEAST_SIDE:
            return np.stack([make(shape[1:], random) for _ in range(shape[0])])
        if shape[1] <= _IMAGE_CHANNELS and min(shape[2:4]) >= _LEAST_SIDE:
            sizes = (*shape[2:], shape[1])
            images = [make(sizes, random).transpose(2, 0, 1) for _ in range(shape[0])]
            return np.stack(images)
    return SIGNALS[seed % len(SIGNALS)](shape, random)
