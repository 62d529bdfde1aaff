"""L2_NORMALIZATION, LOCAL_RESPONSE_NORMALIZATION and INSTANCE_NORMALIZATION."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape, is_quantized
from nnasync.kernels.facts import Facts
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
from nnasync.kernels.steps import BLOCK_ELEMENTS, Call, clip, copy, sequence
from nnasync.kernels.uniform import same_shape

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_SCALAR = {_F32: OperandType.FLOAT32, _F16: OperandType.FLOAT16}
_BEFORE_1_2 = (4,)

_SMALLEST_NORM = 1e-6
_L2_STEPS = 128
_WIDE_LIMIT = BLOCK_ELEMENTS // 4


def _infer_l2(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    if not is_quantized(source.type):
        return same_shape(arguments)
    zero = quantized_range(source.type)[0] + 128
    return [Tensor(type=source.type, shape=source.shape, scale=1 / _L2_STEPS, zero_point=zero)]


def _prepare_l2(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    shape = lines(arguments.tensor(0).shape, line_axis(arguments, 1))
    return _l2_quantized(arguments, shape) if is_quantized(outputs[0].type) else _l2_float(shape)


def _l2_float(shape: Shape) -> Kernel:
    """x / max(norm, 1e-6)."""
    divided = list(parts(shape))
    most = extent(divided[0])
    bounds = np.float32(_SMALLEST_NORM), np.float32(np.inf)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, output = inputs[0].reshape(shape), outputs[0].reshape(shape)
        calls: list[Call] = []
        for part in divided:
            rows, target = source[part], output[part]
            norms = front(scratch[0], ends(rows.shape))
            calls += [
                *_norms(rows, front(scratch[1], rows.shape), norms),
                (clip, (norms, *bounds, norms)),
                (np.divide, (rows, norms, target)),
            ]
        return sequence(calls)

    return Kernel(bind, [ArraySpec(ends(most)), ArraySpec(most)])


def _norms(rows: Array, squares: Array, norms: Array) -> list[Call]:
    return [
        (np.multiply, (rows, rows, squares)),
        (np.add.reduce, (squares, 1, None, norms, True)),
        (np.sqrt, (norms, norms)),
    ]


def _l2_quantized(arguments: Arguments, shape: Shape) -> Kernel:
    """round(128 * x / norm), halves away from zero; float64 has no case that is nearly a half."""
    source = arguments.tensor(0)
    divided = list(parts(shape, _WIDE_LIMIT))
    most = extent(divided[0])
    zero, steps, half = (np.asarray(value, float) for value in (source.zero_point, _L2_STEPS, 0.5))
    lower, upper = quantized_range(source.type)
    middle = np.asarray(lower + 128, float)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, output = inputs[0].reshape(shape), outputs[0].reshape(shape)
        calls: list[Call] = []
        for part in divided:
            target = output[part]
            norms = front(scratch[0], ends(target.shape))
            rows, work = (front(array, target.shape) for array in scratch[1:])
            calls += [
                (np.subtract, (source[part], zero, rows)),
                *_norms(rows, work, norms),
                (clip, (norms, 1.0, np.inf, norms)),
                (np.multiply, (rows, steps, rows)),
                (np.divide, (rows, norms, rows)),
                (np.copysign, (half, rows, work)),
                (np.add, (rows, work, rows)),
                (np.trunc, (rows, rows)),
                (np.add, (rows, middle, rows)),
                (clip, (rows, float(lower), float(upper), rows)),
                copy(target, rows),
            ]
        return sequence(calls)

    return Kernel(bind, [ArraySpec(shape, np.float64) for shape in (ends(most), most, most)])


def _prepare_response(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """x * (bias + alpha * sum of squares in the window) ** -beta."""
    shape = lines(arguments.tensor(0).shape, line_axis(arguments, 5))
    radius = min(arguments.integer(1), shape[1] - 1)
    bias, alpha, beta = (np.asarray(arguments.number(index), np.float32) for index in (2, 3, 4))
    divided = list(parts(shape))
    most = extent(divided[0])
    margin = max(radius, 0)
    padded = (most[0], most[1] + 2 * margin, *most[2:])
    inside = slice(margin, margin + shape[1])

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, output = inputs[0].reshape(shape), outputs[0].reshape(shape)
        calls: list[Call] = []
        for part in divided:
            rows, target = source[part], output[part]
            wide = (rows.shape[0], padded[1], *rows.shape[2:])
            squares, other = (front(array, wide) for array in scratch[:2])
            sums = front(scratch[2], rows.shape)
            calls += [
                (squares.fill, (0,)),
                (np.multiply, (rows, rows, squares[:, inside])),
                *_window_sums(squares, other, sums, 2 * radius + 1),
                (np.multiply, (sums, alpha, sums)),
                (np.add, (sums, bias, sums)),
                (np.power, (sums, -beta, sums)),
                (np.multiply, (rows, sums, target)),
            ]
        return sequence(calls)

    return Kernel(bind, [ArraySpec(padded), ArraySpec(padded), ArraySpec(most)])


def _window_sums(values: Array, other: Array, sums: Array, width: int) -> list[Call]:
    """Calls that sum windows of `width` by doubling: nothing is subtracted, so nothing cancels.

    sums[:, i] becomes the sum of values[:, i : i + width]; `values` and `other` are overwritten.
    """
    calls: list[Call] = [(sums.fill, (0,))]
    length, done, span = sums.shape[1], 0, 1
    while span <= width:
        if width & span:
            calls.append((np.add, (sums, values[:, done : done + length], sums)))
            done += span
        rest = values.shape[1] - span
        if 2 * span <= width:
            calls.append((np.add, (values[:, :rest], values[:, span:], other[:, :rest])))
            values, other = other[:, :rest], values[:, :rest]
        span *= 2
    return calls


def _prepare_instance(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """(x - mean) * gamma / sqrt(variance + epsilon) + beta, for each batch and channel."""
    dims = arguments.tensor(0).shape
    shape = lines(dims, 2, 3) if arguments.flag(4) else lines(dims, 1, 2)
    gamma, beta, epsilon = (np.asarray(arguments.number(index), np.float32) for index in (1, 2, 3))
    count = np.asarray(shape[1], np.float32)
    divided = list(parts(shape))
    most = extent(divided[0])

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, output = inputs[0].reshape(shape), outputs[0].reshape(shape)
        calls: list[Call] = []
        for part in divided:
            rows, target = source[part], output[part]
            squares, single = front(scratch[0], rows.shape), front(scratch[1], ends(rows.shape))
            calls += [
                (np.add.reduce, (rows, 1, None, single, True)),
                (np.divide, (single, count, single)),
                (np.subtract, (rows, single, target)),
                (np.multiply, (target, target, squares)),
                (np.add.reduce, (squares, 1, None, single, True)),
                (np.divide, (single, count, single)),
                (np.add, (single, epsilon, single)),
                (np.sqrt, (single, single)),
                (np.divide, (gamma, single, single)),
                (np.multiply, (target, single, target)),
                (np.add, (target, beta, target)),
            ]
        return sequence(calls)

    return Kernel(bind, [ArraySpec(most), ArraySpec(ends(most))])


def _response_signatures() -> list[Signature]:
    signatures = []
    for type, since in ((_F32, HalVersion.V1_0), (_F16, HalVersion.V1_2)):
        floats = (Parameter(name, _SCALAR[type]) for name in ("bias", "alpha", "beta"))
        radius = Parameter("radius", OperandType.INT32)
        signatures += axis_signatures(type, since, radius, *floats, before=_BEFORE_1_2)
    return signatures


L2_NORMALIZATION = Operation(
    OperationType.L2_NORMALIZATION,
    [
        *axis_signatures(_F32, HalVersion.V1_0, before=_BEFORE_1_2),
        *axis_signatures(_F16, HalVersion.V1_2, before=_BEFORE_1_2),
        *axis_signatures(_Q8, HalVersion.V1_2, before=_BEFORE_1_2),
        *axis_signatures(_Q8S, HalVersion.V1_3, before=_BEFORE_1_2),
    ],
    _infer_l2,
    _prepare_l2,
    facts=Facts(rounds_reals=True),
)
LOCAL_RESPONSE_NORMALIZATION = Operation(
    OperationType.LOCAL_RESPONSE_NORMALIZATION,
    _response_signatures(),
    same_shape,
    _prepare_response,
)
INSTANCE_NORMALIZATION = Operation(
    OperationType.INSTANCE_NORMALIZATION,
    [
        Signature(
            HalVersion.V1_2,
            (
                Parameter("input", type, ranks=(4,)),
                *(Parameter(name, _SCALAR[type]) for name in ("gamma", "beta", "epsilon")),
                Parameter("layout", OperandType.BOOL),
            ),
            (Parameter("output", type),),
        )
        for type in (_F32, _F16)
    ],
    same_shape,
    _prepare_instance,
)
