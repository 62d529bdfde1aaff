"""SOFTMAX."""

from __future__ import annotations

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
from nnasync.kernels.rescale import store_quantized
from nnasync.kernels.steps import Call, clip, copy, sequence

__all__ = ["OPERATIONS", "SOFTMAX"]

_TYPES: tuple[tuple[OperandType, OperandType, HalVersion], ...] = (
    (OperandType.TENSOR_FLOAT32, OperandType.FLOAT32, HalVersion.V1_0),
    (OperandType.TENSOR_QUANT8_ASYMM, OperandType.FLOAT32, HalVersion.V1_0),
    (OperandType.TENSOR_FLOAT16, OperandType.FLOAT16, HalVersion.V1_2),
    (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, OperandType.FLOAT32, HalVersion.V1_3),
)


def _signatures() -> list[Signature]:
    signatures = []
    for data, scalar, since in _TYPES:
        inputs = (Parameter("input", data), Parameter("beta", scalar))
        outputs = (Parameter("output", data),)
        signatures.append(Signature(since, inputs, outputs))
        axis = Parameter("axis", OperandType.INT32)
        signatures.append(Signature(max(since, HalVersion.V1_2), (*inputs, axis), outputs))
    return signatures


def _infer(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 1, 2, 3, 4)
    if not is_quantized(source.type):
        return [Tensor(type=source.type, shape=source.shape)]
    return [
        Tensor(
            type=source.type,
            shape=source.shape,
            scale=1 / 256,
            zero_point=quantized_range(source.type)[0],
        )
    ]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source = arguments.tensor(0)
    beta = arguments.number(1)
    if not beta > 0:
        raise arguments.error(1, f"is {beta}, expected a positive number")
    if is_quantized(source.type) and not source.scale > 0:
        raise arguments.error(0, f"has scale {source.scale}, expected a positive one")
    axis = arguments.axis(2, source.rank) if arguments.has(2) else source.rank - 1
    make = _quantized_rows if is_quantized(source.type) else _float_rows
    length = source.shape[axis]
    kernel = make((source.size // length, length), beta, source)
    return kernel if axis == source.rank - 1 else _along(axis, kernel, source)


def _along(axis: int, kernel: Kernel, source: Tensor) -> Kernel:
    """The kernel of rows, applied along another dimension than the last."""
    order = [*(dim for dim in range(source.rank) if dim != axis), axis]
    back = [order.index(dim) for dim in range(source.rank)]
    shape = tuple(source.shape[dim] for dim in order)
    specs = [ArraySpec(shape, source.dtype)] * 2

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows, result = scratch[:2]
        compute = kernel.bind([rows], [result], scratch[2:])
        return sequence(
            [
                copy(rows, inputs[0].transpose(order)),
                (compute, ()),
                copy(outputs[0], result.transpose(back)),
            ]
        )

    return Kernel(bind, (*specs, *kernel.scratch))


def _float_rows(shape: Shape, beta: float, source: Tensor) -> Kernel:
    scale = np.asarray(beta, np.float32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows, target, ends = inputs[0].reshape(shape), outputs[0].reshape(shape), scratch[0]
        calls: list[Call] = [
            (np.maximum.reduce, (rows, -1, None, ends, True)),
            (np.subtract, (rows, ends, target)),
        ]
        if beta != 1.0:
            calls.append((np.multiply, (target, scale, target)))
        return sequence(calls + _normalize(target, ends))

    return Kernel(bind, [ArraySpec((shape[0], 1))])


def _normalize(target: Array, ends: Array) -> list[Call]:
    """Calls from differences to the largest to shares of the sum of exponentials."""
    return [
        (np.exp, (target, target)),
        (np.add.reduce, (target, -1, None, ends, True)),
        (np.divide, (target, ends, target)),
    ]


def _quantized_rows(shape: Shape, beta: float, source: Tensor) -> Kernel:
    """Exponentials from a table of the differences to the largest, shares in steps of 1/256."""
    table = np.exp(-beta * source.scale * np.arange(256)).astype(np.float32)
    steps, half = np.asarray(256, np.float32), np.asarray(0.5, np.float32)
    limits = np.asarray(0, np.float32), np.asarray(255.5, np.float32)
    specs = [
        ArraySpec((shape[0], 1), source.dtype),
        ArraySpec(shape, np.uint8),
        ArraySpec(shape),
        ArraySpec((shape[0], 1)),
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        rows = inputs[0].reshape(shape)
        largest, difference, shares, sums = scratch
        unsigned = largest.view(np.uint8), rows.view(np.uint8)
        calls: list[Call] = [
            (np.maximum.reduce, (rows, -1, None, largest, True)),
            (np.subtract, (*unsigned, difference)),
            (table.take, (difference, None, shares, "clip")),
            (np.add.reduce, (shares, -1, None, sums, True)),
            (np.divide, (steps, sums, sums)),
            (np.multiply, (shares, sums, shares)),
            (np.add, (shares, half, shares)),
            (clip, (shares, *limits, shares)),
        ]
        return sequence(calls + store_quantized(shares, outputs[0].reshape(shape)))

    return Kernel(bind, specs)


SOFTMAX = Operation(OperationType.SOFTMAX, _signatures(), _infer, _prepare)

OPERATIONS: tuple[Operation, ...] = (SOFTMAX,)
