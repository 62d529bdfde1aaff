"""SOFTMAX and LOG_SOFTMAX.

Quantized SOFTMAX computes in fixed point as the rule says: exponentials of the differences to the
largest come from a table of 256 entries, the reciprocal of their sum from Newton's method, and the
product of both is rounded once. Differences beyond the radius count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, is_quantized
from nnasync.kernels.facts import Facts
from nnasync.kernels.fixed_functions import exp_on_negative, reciprocal
from nnasync.kernels.fixed_point import (
    quantize_multiplier,
    rounding_divide_by_pot,
    saturating_rounding_doubling_high_mul,
    single,
)
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
from nnasync.kernels.reductions.lines import (
    axis_signatures,
    ends,
    extent,
    front,
    line_axis,
    lines,
    parts,
)
from nnasync.kernels.steps import BLOCK_ELEMENTS, Call, clip, sequence
from nnasync.kernels.uniform import FROM_1_0
from nnasync.kernels.windows.rescale import store_quantized

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_SCALAR = {
    _F32: OperandType.FLOAT32,
    _Q8: OperandType.FLOAT32,
    _F16: OperandType.FLOAT16,
    _Q8S: OperandType.FLOAT32,
}

_INPUT_BITS, _SUM_BITS = 5, 12
_WIDE_LIMIT = BLOCK_ELEMENTS // 4
_MANY = 10
"""With a sum of 2**10 no share reaches half a step of 1/256; a shift by 64 bits makes them 0."""


def _signatures() -> list[Signature]:
    return [
        signature
        for type, since in FROM_1_0.items()
        for signature in axis_signatures(
            type, since, Parameter("beta", _SCALAR[type]), before=(2, 4)
        )
    ]


def _infer(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    if not is_quantized(source.type):
        return [Tensor(type=source.type, shape=source.shape)]
    lowest = quantized_range(source.type)[0]
    return [Tensor(type=source.type, shape=source.shape, scale=1 / 256, zero_point=lowest)]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source, beta = arguments.tensor(0), arguments.number(1)
    if not beta > 0:
        raise arguments.error(1, f"is {beta}, expected a positive number")
    if is_quantized(source.type):
        return _quantized_kernel(arguments, beta)
    return _float_kernel(arguments, beta, logarithm=False)


def _prepare_logarithm(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    return _float_kernel(arguments, arguments.number(1), logarithm=True)


def _float_kernel(arguments: Arguments, beta: float, *, logarithm: bool) -> Kernel:
    source = arguments.tensor(0)
    shape = lines(source.shape, line_axis(arguments, 2))
    divided = list(parts(shape))
    scale = np.asarray(beta, np.float32)
    specs = [ArraySpec(ends(extent(divided[0])))]
    if logarithm:
        specs.append(ArraySpec(extent(divided[0])))
    finish = _logarithms if logarithm else _shares

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, output = inputs[0].reshape(shape), outputs[0].reshape(shape)
        calls: list[Call] = []
        for part in divided:
            rows, target = source[part], output[part]
            single = front(scratch[0], ends(rows.shape))
            calls += [
                (np.maximum.reduce, (rows, 1, None, single, True)),
                (np.subtract, (rows, single, target)),
            ]
            if scale != 1:
                calls.append((np.multiply, (target, scale, target)))
            calls += finish(target, single, scratch)
        return sequence(calls)

    return Kernel(bind, specs)


def _shares(target: Array, single: Array, scratch: Sequence[Array]) -> list[Call]:
    """Calls from differences to the largest to shares of the sum of exponentials."""
    return [
        (np.exp, (target, target)),
        (np.add.reduce, (target, 1, None, single, True)),
        (np.divide, (target, single, target)),
    ]


def _logarithms(target: Array, single: Array, scratch: Sequence[Array]) -> list[Call]:
    """Calls from differences to the largest to logarithms of the shares."""
    work = front(scratch[1], target.shape)
    return [
        (np.exp, (target, work)),
        (np.add.reduce, (work, 1, None, single, True)),
        (np.log, (single, single)),
        (np.subtract, (target, single, target)),
    ]


def _table(arguments: Arguments, beta: float) -> Array:
    """exp(-beta * scale * difference) for 256 differences, as raw values without integer bits."""
    scale = single(arguments.tensor(0).scale)
    fraction = 31 - _INPUT_BITS
    multiplier = min(beta * scale * 2**fraction, 2**31 - 1.0)
    if not multiplier > 1:
        raise arguments.error(
            1, f"is {beta}, expected beta * scale of more than 2**-{fraction} with scale {scale}"
        )
    q, shift = quantize_multiplier(multiplier)
    radius = math.floor((2**_INPUT_BITS - 1) * 2**fraction / 2**shift)
    differences = np.arange(256, dtype=np.int64)
    scaled = saturating_rounding_doubling_high_mul(-np.minimum(differences, radius) << shift, q)
    return np.where(differences > radius, 0, exp_on_negative(scaled, _INPUT_BITS))


def _quantized_kernel(arguments: Arguments, beta: float) -> Kernel:
    source = arguments.tensor(0)
    shape = lines(source.shape, line_axis(arguments, 2))
    divided = list(parts(shape, _WIDE_LIMIT))
    exponentials = _table(arguments, beta)
    terms = rounding_divide_by_pot(exponentials, _SUM_BITS).astype(np.uint64)
    table = exponentials.astype(np.uint64)
    limits, most = (np.uint64(0), np.uint64(255)), extent(divided[0])
    specs = [
        ArraySpec(ends(most), source.dtype),
        ArraySpec(most, np.intp),
        ArraySpec(most, np.uint64),
        *[ArraySpec(ends(most), np.uint64)] * 3,
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, output = inputs[0].reshape(shape), outputs[0].reshape(shape)
        calls: list[Call] = []
        for part in divided:
            rows, target = source[part], output[part]
            single = ends(rows.shape)
            largest, factor, nudge, shift = (front(scratch[i], single) for i in (0, 3, 4, 5))
            difference, wide = (front(array, rows.shape) for array in scratch[1:3])
            calls += [
                (np.maximum.reduce, (rows, 1, None, largest, True)),
                (np.subtract, (largest.view(np.uint8), rows.view(np.uint8), difference)),
                (terms.take, (difference, None, wide, "clip")),
                (np.add.reduce, (wide, 1, None, factor, True)),
                (_reciprocals, (factor, nudge, shift)),
                (table.take, (difference, None, wide, "clip")),
                (np.multiply, (wide, factor, wide)),
                (np.add, (wide, nudge, wide)),
                (np.right_shift, (wide, shift, wide)),
                (clip, (wide, *limits, wide)),
                *store_quantized(wide, target),
            ]
        return sequence(calls)

    return Kernel(bind, specs)


def _reciprocals(sums: Array, nudge: Array, shift: Array) -> None:
    """Turns sums, in place, into factors; with `nudge` and `shift` those round to steps of 1/256.

    The rule multiplies with halves up, drops 31 bits, and again rounds away the bits that make the
    sum a number in [1, 2) and all but 8 bits: two floors that are one.
    """
    factor, over = reciprocal(np.minimum(sums.astype(np.int64), 2**32 - 1), _SUM_BITS)
    over = np.minimum(over, _MANY)
    np.copyto(sums, factor, "unsafe")
    np.copyto(shift, over + 54, "unsafe")
    np.copyto(nudge, (1 << 30) + (np.uint64(1) << (over + 53).astype(np.uint64)), "unsafe")


SOFTMAX = Operation(
    OperationType.SOFTMAX,
    _signatures(),
    _infer,
    _prepare,
    empty=True,
    facts=Facts(rounds_reals=True, non_negative=True),
)
LOG_SOFTMAX = Operation(
    OperationType.LOG_SOFTMAX,
    [
        Signature(
            HalVersion.V1_2,
            (
                Parameter("logits", type),
                Parameter("beta", _SCALAR[type]),
                Parameter("axis", OperandType.INT32),
            ),
            (Parameter("output", type),),
        )
        for type in (_F32, _F16)
    ],
    _infer,
    _prepare_logarithm,
)
