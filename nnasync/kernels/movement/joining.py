"""CONCATENATION, SPLIT and TILE: tensors put together along a dimension, taken apart, repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape, is_quantized
from nnasync.kernels.byte_tables import lookup, same_quantization
from nnasync.kernels.facts import MEDIUM, STRICT
from nnasync.kernels.movement.copying import like, moving, sizes
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    quantized_range,
)
from nnasync.kernels.steps import Call, copy, sequence
from nnasync.kernels.uniform import FROM_1_0, NUMBERS, UP_TO_4, signatures


def _part(rank: int, axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """The index of a range along one axis."""
    return tuple(slice(start, stop) if each == axis else slice(None) for each in range(rank))


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _joined(arguments: Arguments) -> list[Tensor]:
    count = len(arguments) - 1
    shapes = [arguments.tensor(index).shape for index in range(count)]
    first, axis = shapes[0], arguments.integer(count)
    if not 0 <= axis < len(first):
        raise arguments.error(count, f"is axis {axis}, expected within [0, {len(first)})")
    for index, shape in enumerate(shapes):
        if len(shape) != len(first) or _resized(shape, axis, 0) != _resized(first, axis, 0):
            raise arguments.error(
                index, f"has shape {shape}, which does not join {first} along axis {axis}"
            )
    total = sum(shape[axis] for shape in shapes)
    return [Tensor(type=arguments.tensor(0).type, shape=_resized(first, axis, total))]


def _join(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    count = len(arguments) - 1
    axis = arguments.integer(count)
    sources = [arguments.tensor(index) for index in range(count)]
    tables = [_requantization(source, outputs[0]) for source in sources]
    converted = [
        source.size for source, table in zip(sources, tables, strict=True) if table is not None
    ]
    specs = [ArraySpec((max(converted),), outputs[0].dtype)] if converted else []

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        calls: list[Call] = []
        start = 0
        for source, table, array in zip(sources, tables, inputs, strict=False):
            stop = start + source.shape[axis]
            part = outputs[0][_part(source.rank, axis, start, stop)]
            if table is not None:
                buffer = scratch[0][: source.size].reshape(source.shape)
                calls += lookup(table, source, array, buffer)
                array = buffer
            calls.append(copy(part, array))
            start = stop
        return sequence(calls)

    return Kernel(bind, specs)


def _requantization(source: Tensor, output: Tensor) -> Array | None:
    """The table from one quantization to another, or None where nothing changes.

    This rule computes in float32 and takes halves away from the zero point, where that of
    `byte_tables.requantization` takes them up. Signed values are 128 smaller than unsigned ones.
    """
    if not is_quantized(source.type) or same_quantization(source, output) or not source.size:
        return None
    lowest, _ = quantized_range(source.type)
    with np.errstate(all="ignore"):
        scale = np.float32(source.scale) * (np.float32(1) / np.float32(output.scale))
        bias = np.float32(lowest - source.zero_point) * scale
        real = (np.arange(256, dtype=np.float32) * scale + bias).astype(np.float64)
        rounded = np.copysign(np.floor(np.abs(real) + 0.5), real)
        shifted = np.clip(rounded + (output.zero_point - lowest), 0, 255)
        table: Array = (shifted + lowest).astype(output.dtype)
    return table


def _needs_requantization(arguments: Arguments, outputs: Sequence[Tensor]) -> HalVersion:
    """Inputs that are not all quantized like the output came with HAL 1.2."""
    sources = (arguments.tensor(index) for index in range(len(arguments) - 1))
    return HalVersion.V1_0 if same_quantization(*sources, outputs[0]) else HalVersion.V1_2


def _split_rule(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    axis, count = arguments.axis(1, source.rank), arguments.integer(2, 1)
    size = source.shape[axis]
    if size % count:
        raise arguments.error(2, f"is {count}, which does not divide the size {size}")
    return [like(source, _resized(source.shape, axis, size // count))] * count


def _split(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    axis = arguments.axis(1, arguments.tensor(0).rank)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        calls = []
        for index, output in enumerate(outputs):
            size = output.shape[axis]
            part = _part(output.ndim, axis, index * size, (index + 1) * size)
            calls.append(copy(output, inputs[0][part]))
        return sequence(calls)

    return Kernel(bind)


def _tiled(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    counts = sizes(arguments, 1, 0, source.rank)
    shape = [size * count for size, count in zip(source.shape, counts, strict=True)]
    return [like(source, tuple(shape))]


def _tile(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    shape = arguments.tensor(0).shape
    counts, parts = [1], [1]
    for size, count in zip(shape, arguments.integers(1), strict=True):
        if count == 1:
            parts[-1] *= size
        else:
            counts.append(count)
            parts.append(size)
    once = [size for part in parts for size in (1, part)]
    repeated = [size for pair in zip(counts, parts, strict=True) for size in pair]
    return moving(lambda target, source: (target.reshape(repeated), source.reshape(once)))


CONCATENATION = Operation(
    OperationType.CONCATENATION,
    [
        Signature(
            since,
            (Parameter("input", type, ranks=UP_TO_4), Parameter("axis", OperandType.INT32)),
            (Parameter("output", type),),
            variadic=True,
        )
        for type, since in FROM_1_0.items()
    ],
    _joined,
    _join,
    moves=True,
    empty=True,
    requires=_needs_requantization,
    facts=MEDIUM,
)
SPLIT = Operation(
    OperationType.SPLIT,
    [
        Signature(
            since,
            (
                Parameter("input", type),
                Parameter("axis", OperandType.INT32),
                Parameter("num_splits", OperandType.INT32),
            ),
            (Parameter("output", type),),
            variadic_outputs=True,
        )
        for type, since in NUMBERS.items()
    ],
    _split_rule,
    _split,
    moves=True,
    facts=MEDIUM,
)
TILE = Operation(
    OperationType.TILE,
    signatures(NUMBERS, ["input"], Parameter("multiples", OperandType.TENSOR_INT32, ranks=(1,))),
    _tiled,
    _tile,
    moves=True,
    facts=STRICT,
)
