"""CONCATENATION, PAD, RESHAPE and SLICE: data moves, values stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
    is_quantized,
    quantized_range,
)
from nnasync.kernels.steps import Call, copy, sequence

__all__ = ["OPERATIONS", "CONCATENATION", "PAD", "RESHAPE", "SLICE"]

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_I32 = OperandType.TENSOR_INT32

_FIRST = {
    _F32: HalVersion.V1_0,
    _Q8: HalVersion.V1_0,
    _F16: HalVersion.V1_2,
    _Q8S: HalVersion.V1_3,
}
_PAD = {**_FIRST, _F32: HalVersion.V1_1, _Q8: HalVersion.V1_1}
_SLICE = {**dict.fromkeys((_F32, _F16, _I32, _Q8), HalVersion.V1_2), _Q8S: HalVersion.V1_3}


def _signatures(
    types: dict[OperandType, HalVersion], *options: Parameter, variadic: bool = False
) -> list[Signature]:
    return [
        Signature(
            since,
            (Parameter("input", type), *options),
            (Parameter("output", type),),
            variadic=variadic,
        )
        for type, since in types.items()
    ]


def _like(source: Tensor, shape: Shape) -> list[Tensor]:
    return [Tensor(type=source.type, shape=shape, scale=source.scale, zero_point=source.zero_point)]


def _infer_reshape(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    target = list(arguments.integers(1))
    unknown = [index for index, size in enumerate(target) if size == -1]
    if len(unknown) > 1 or any(size < -1 for size in target) or not target:
        raise arguments.error(1, f"is {target}, expected sizes of which at most one is -1")
    known = math.prod(size for size in target if size != -1)
    if unknown and known and source.size % known == 0:
        target[unknown[0]] = source.size // known
    if math.prod(target) != source.size or -1 in target:
        raise arguments.error(1, f"is {target}, which does not fit {source.size} elements")
    return _like(source, tuple(target))


def _prepare_reshape(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(outputs[0].reshape(-1), inputs[0].reshape(-1))])

    return Kernel(bind, view_of=0)


def _infer_concatenation(arguments: Arguments) -> list[Tensor]:
    count = len(arguments) - 1
    first = arguments.tensor(0)
    axis = arguments.integer(count)
    if not 0 <= axis < first.rank:
        raise arguments.error(count, f"is axis {axis}, expected within [0, {first.rank})")
    total = 0
    for index in range(count):
        shape = arguments.tensor(index).shape
        if len(shape) != first.rank or any(
            size != other
            for dim, (size, other) in enumerate(zip(shape, first.shape, strict=True))
            if dim != axis
        ):
            raise arguments.error(
                index, f"has shape {shape}, which does not join {first.shape} along axis {axis}"
            )
        total += shape[axis]
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    same = all(_quantization(arguments.tensor(i)) == _quantization(first) for i in range(count))
    return _like(first, shape) if same else [Tensor(type=first.type, shape=shape)]


def _quantization(tensor: Tensor) -> tuple[float, int]:
    return tensor.scale, tensor.zero_point


def _requantization(source: Tensor, output: Tensor) -> Array | None:
    """The table from one quantisation to another by byte, or None where they are the same."""
    if not is_quantized(source.type) or _quantization(source) == _quantization(output):
        return None
    lowest, highest = quantized_range(source.type)
    real = (np.arange(lowest, highest + 1) - source.zero_point) * source.scale / output.scale
    shifted = real + output.zero_point
    rounded = np.copysign(np.floor(np.abs(shifted) + 0.5), shifted)
    table: Array = np.clip(rounded, lowest, highest).astype(output.dtype)
    return np.roll(table, lowest)


def _prepare_concatenation(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
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
            part = outputs[0][(slice(None),) * axis + (slice(start, stop),)]
            if table is not None:
                buffer = scratch[0][: source.size].reshape(source.shape)
                calls.append((table.take, (array.view(np.uint8), None, buffer, "clip")))
                array = buffer
            calls.append(copy(part, array))
            start = stop
        return sequence(calls)

    return Kernel(bind, specs)


def _paddings(arguments: Arguments) -> list[tuple[int, int]]:
    rank = arguments.tensor(0).rank
    values = arguments.integers(1)
    if len(values) != 2 * rank or min(values) < 0:
        raise arguments.error(1, f"is {values}, expected {rank} pairs of sizes that are >= 0")
    return list(zip(values[::2], values[1::2], strict=True))


def _infer_pad(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 1, 2, 3, 4)
    pads = _paddings(arguments)
    shape = [
        size + before + after for size, (before, after) in zip(source.shape, pads, strict=True)
    ]
    return _like(source, tuple(shape))


def _prepare_pad(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source = arguments.tensor(0)
    value = np.asarray(source.zero_point, source.dtype)
    corner = tuple(
        slice(before, before + size)
        for size, (before, _) in zip(source.shape, _paddings(arguments), strict=True)
    )

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(outputs[0], value), copy(outputs[0][corner], inputs[0])])

    return Kernel(bind)


def _part(arguments: Arguments) -> tuple[slice, ...]:
    """The slices of SLICE; raises ModelError where they leave the input."""
    shape = arguments.tensor(0).shape
    begins, sizes = arguments.integers(1), arguments.integers(2)
    if len(begins) != len(shape):
        raise arguments.error(1, f"has {len(begins)} elements, expected {len(shape)}")
    if len(sizes) != len(shape):
        raise arguments.error(2, f"has {len(sizes)} elements, expected {len(shape)}")
    slices = []
    for limit, begin, size in zip(shape, begins, sizes, strict=True):
        if not 0 <= begin <= limit:
            raise arguments.error(1, f"is {begins}, expected within {shape}")
        end = limit if size == -1 else begin + size
        if not begin <= end <= limit:
            raise arguments.error(2, f"is {sizes}, which from {begins} leaves {shape}")
        slices.append(slice(begin, end))
    return tuple(slices)


def _infer_slice(arguments: Arguments) -> list[Tensor]:
    part = _part(arguments)
    return _like(arguments.tensor(0), tuple(each.stop - each.start for each in part))


def _prepare_slice(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    part = _part(arguments)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([copy(outputs[0], inputs[0][part])])

    return Kernel(bind)


CONCATENATION = Operation(
    OperationType.CONCATENATION,
    _signatures(_FIRST, Parameter("axis", OperandType.INT32), variadic=True),
    _infer_concatenation,
    _prepare_concatenation,
)
PAD = Operation(
    OperationType.PAD,
    _signatures(_PAD, Parameter("paddings", _I32)),
    _infer_pad,
    _prepare_pad,
)
RESHAPE = Operation(
    OperationType.RESHAPE,
    _signatures(_FIRST, Parameter("shape", _I32)),
    _infer_reshape,
    _prepare_reshape,
)
SLICE = Operation(
    OperationType.SLICE,
    _signatures(_SLICE, Parameter("begin", _I32), Parameter("size", _I32)),
    _infer_slice,
    _prepare_slice,
)

OPERATIONS: tuple[Operation, ...] = (
    CONCATENATION,
    PAD,
    RESHAPE,
    SLICE,
)
