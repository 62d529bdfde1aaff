"""BATCH_MATMUL: products of matrices that both may be computed, one for each place of a batch.

The last two dimensions are those of the matrices; those before broadcast with each other. Either
matrix may be given transposed. Quantized products are summed exactly, and then brought to the scale
of the output by the fixed-point rule of TFLite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.extensions import CommonOperation
from nnasync.hal import Array, HalVersion, OperandType, Shape, is_quantized
from nnasync.kernels.common import common_operation
from nnasync.kernels.facts import Facts
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Parameter,
    Signature,
    Step,
    Tensor,
    quantized_range,
)
from nnasync.kernels.recurrent.integer_steps import Multiplier, ratio, saturate, scale_of
from nnasync.kernels.steps import Call, copy, sequence
from nnasync.kernels.uniform import LATEST

_EXACT = 2**24
"""Float32 holds whole numbers up to here."""
_LARGEST_PRODUCT = 255 * 255


def _infer(arguments: Arguments) -> list[Tensor]:
    a, b = arguments.tensor(0), arguments.tensor(1)
    for index, tensor in enumerate((a, b)):
        if tensor.rank < 2:
            raise arguments.error(index, f"has shape {tensor.shape}, expected rank 2 or more")
    rows, terms = _matrix(a.shape, transposed=arguments.flag(2))
    others, columns = _matrix(b.shape, transposed=arguments.flag(3))
    if terms != others:
        raise arguments.error(
            1, f"has shape {b.shape}, of which {others} terms do not go with {terms}"
        )
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise arguments.error(
            1, f"has shape {b.shape}, whose batch does not broadcast with {a.shape}"
        ) from None
    return [Tensor(type=a.type, shape=(*batch, rows, columns))]


def _matrix(shape: Shape, *, transposed: bool) -> Shape:
    return shape[:-3:-1] if transposed else shape[-2:]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    transposed = arguments.flag(2), arguments.flag(3)
    if is_quantized(arguments.tensor(0).type):
        return _quantized(arguments, outputs[0], transposed)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        a, b = _oriented(inputs[:2], transposed)
        return sequence([(np.matmul, (a, b, outputs[0]))])

    return Kernel(bind)


def _quantized(arguments: Arguments, output: Tensor, transposed: tuple[bool, bool]) -> Kernel:
    a, b = arguments.tensor(0), arguments.tensor(1)
    if not output.scale > 0:
        raise arguments.fail(f"output 0 has scale {output.scale}, expected a positive one")
    factor = ratio(scale_of(arguments, 0), scale_of(arguments, 1), output.scale)
    if not 0 < factor < math.inf:
        raise arguments.fail(f"the scales of inputs and output have no ratio: it is {factor}")
    multiplier, after = Multiplier([factor]), np.asarray(output.zero_point)
    low, high = (np.asarray(bound) for bound in quantized_range(output.type))
    terms = _matrix(a.shape, transposed=transposed[0])[1]
    wide = np.float32 if terms * _LARGEST_PRODUCT < _EXACT else np.float64
    zeros = [np.asarray(each.zero_point, wide) for each in (a, b)]
    specs = [
        ArraySpec(a.shape, wide),
        ArraySpec(b.shape, wide),
        ArraySpec(output.shape, wide),
        ArraySpec(output.shape, np.int64),
        ArraySpec(output.shape, np.int64),
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        *reals, sums, whole, work = scratch
        calls: list[Call] = []
        for real, given, zero in zip(reals, inputs[:2], zeros, strict=True):
            calls += [copy(real, given), (np.subtract, (real, zero, real))]
        calls += [
            (np.matmul, (*_oriented(reals, transposed), sums)),
            copy(whole, sums),
            *multiplier.calls(whole, work),
            (np.add, (whole, after, whole)),
            saturate(whole, (low, high)),
            copy(outputs[0], whole),
        ]
        return sequence(calls)

    return Kernel(bind, specs)


def _oriented(arrays: Sequence[Array], transposed: Sequence[bool]) -> list[Array]:
    """The matrices as they are multiplied."""
    return [
        array.swapaxes(-1, -2) if turned else array
        for array, turned in zip(arrays, transposed, strict=True)
    ]


def _multiply_adds(inputs: Sequence[Shape], output: Shape) -> int:
    """Returns the multiply-adds: the first matrices' numbers, once for each output column."""
    rows = max(output[-2] if len(output) > 1 else 1, 1)
    sizes = [math.prod(size for size in shape if size) for shape in (inputs[0], output)]
    batched = math.prod(size for size in inputs[0][:-2] if size) or 1
    return sizes[1] * max(sizes[0] // (batched * rows), 1)


BATCH_MATMUL = common_operation(
    CommonOperation.BATCH_MATMUL,
    [
        Signature(
            max(since, HalVersion.V1_2),
            (
                Parameter("a", type),
                Parameter("b", type),
                Parameter("transpose_a", OperandType.BOOL),
                Parameter("transpose_b", OperandType.BOOL),
            ),
            (Parameter("output", type),),
        )
        for type, since in LATEST.items()
    ],
    _infer,
    _prepare,
    facts=Facts(multiply_adds=_multiply_adds),
)
