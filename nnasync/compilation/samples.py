"""Plausible inputs for a model, made up alike each time, and memory for its outputs.

Engines are as fast on noise as on photographs, but a network answers noise with nothing in
particular, where rounding decides. So images (rank 4, few channels) are smooth fields with a little
noise, other floats are drawn from a narrow normal distribution, quantised ones use the range of
their integers likewise, and integers, which often are indices, are 0 or 1. States are zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import (
    Array,
    DataLocation,
    Model,
    Operand,
    OperandType,
    Request,
    RequestArgument,
    Shape,
    byte_size,
    dtype_of,
    has_dtype,
    is_fully_specified,
    is_scalar,
)
from nnasync.memory import Pool, layout

__all__ = ["SampleMemory", "can_sample", "sample"]

_COARSE = 8
_IMAGE_CHANNELS = 4
_MAX_BYTES = 1 << 30


def can_sample(model: Model) -> bool:
    """Whether the types and shapes of all inputs and outputs are known, and within reason."""
    operands = [*_inputs(model), *_outputs(model)]
    if not all(has_dtype(each.type) for each in operands):
        return False
    if not all(is_fully_specified(each.type, each.dimensions) for each in operands):
        return False
    return sum(byte_size(each.type, each.dimensions) for each in operands) <= _MAX_BYTES


def sample(model: Model, seed: int) -> list[Array]:
    """Inputs of a model, states included."""
    random = np.random.default_rng(seed)
    states = {pair.input for pair in model.state}
    return [
        _zeros(operand) if position in states else _values(operand, random)
        for position, operand in enumerate(_inputs(model))
    ]


class SampleMemory:
    """Inputs and outputs of one execution in a pool, as executions through the ports have them."""

    def __init__(self, model: Model) -> None:
        operands = [*_inputs(model), *_outputs(model)]
        count = len(model.main.input_indexes)
        sizes = [byte_size(each.type, each.dimensions) for each in operands]
        offsets, total = layout(sizes)
        pool = Pool.allocate(max(total, 1))
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
        """Copies of the outputs."""
        return [output.copy() for output in self.outputs]


def _inputs(model: Model) -> list[Operand]:
    return [model.main.operands[index] for index in model.main.input_indexes]


def _outputs(model: Model) -> list[Operand]:
    return [model.main.operands[index] for index in model.main.output_indexes]


def _shape_of(operand: Operand) -> Shape:
    return () if is_scalar(operand.type) else operand.dimensions


def _zeros(operand: Operand) -> Array:
    """The zero of an operand's numbers."""
    dtype = dtype_of(operand.type)
    return np.full(_shape_of(operand), operand.zero_point if _is_quantized(operand) else 0, dtype)


def _values(operand: Operand, random: np.random.Generator) -> Array:
    dtype = dtype_of(operand.type)
    shape = _shape_of(operand)
    if dtype.kind == "b" or (dtype.kind in "iu" and not _is_quantized(operand)):
        return random.integers(0, 2, shape).astype(dtype)
    unit = np.clip(_field(shape, random), -1, 1)
    if dtype.kind == "f":
        return unit.astype(dtype)
    limits = np.iinfo(dtype)
    span = (unit + 1) / 2 * (int(limits.max) - int(limits.min)) + int(limits.min)
    return np.rint(span).astype(dtype)


def _is_quantized(operand: Operand) -> bool:
    plain = (OperandType.INT32, OperandType.UINT32, OperandType.TENSOR_INT32)
    return dtype_of(operand.type).kind in "iu" and operand.type not in plain


def _field(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Numbers around 0, most of them within [-1, 1]; smooth where they look like an image."""
    if len(shape) != 4 or shape[3] > _IMAGE_CHANNELS or min(shape[1:3]) < _COARSE:
        return random.normal(0, 0.5, tuple(shape))
    batch, height, width, channels = shape
    coarse = random.normal(0, 0.5, (batch, _COARSE, _COARSE, channels))
    rows = _stretched(coarse, height)
    smooth = _stretched(rows.swapaxes(1, 2), width).swapaxes(1, 2)
    return smooth + random.normal(0, 0.1, tuple(shape))


def _stretched(values: Array, length: int) -> Array:
    """Values interpolated linearly along axis 1."""
    places = np.linspace(0, values.shape[1] - 1, length)
    below = np.minimum(places.astype(np.int64), values.shape[1] - 2)
    share = (places - below)[None, :, None, None]
    stretched: Array = values[:, below] * (1 - share) + values[:, below + 1] * share
    return stretched
