"""QUANTIZE, DEQUANTIZE and SOFTMAX of org.nnasync.tflite: what involves 16- and 32-bit integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.extensions import TFLITE, TfliteOperation
from nnasync.hal import Array, HalVersion, OperandType
from nnasync.kernels.facts import RELAXED, Facts
from nnasync.kernels.fixed_point import single
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.recurrent.integer_steps import Multiplier, saturate, scale_of
from nnasync.kernels.steps import Call, blocks, copy, sequence
from nnasync.kernels.tflite.softmax import softmax_of_bytes, softmax_of_words
from nnasync.kernels.uniform import same_shape

_F32, _I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_Q16S, _Q16A = OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_QUANT16_ASYMM
_INTEGERS = (_Q8, _Q8S, _Q16S, _Q16A, _I32)
_SINCE = {_Q8S: HalVersion.V1_3}
_NEAR = 1e-3
"""Files state 1 / 65535 for steps of 1 / 65536."""
_SOFTMAX = {_Q8: (_Q16A, 2.0**-16), _Q8S: (_Q16A, 2.0**-16), _Q16S: (_Q16S, 2.0**-15)}


def _since(*types: OperandType) -> HalVersion:
    return max(_SINCE.get(type, HalVersion.V1_2) for type in types)


def _pairs(pairs: Sequence[tuple[OperandType, OperandType]]) -> list[Signature]:
    return [
        Signature(
            _since(source, target), (Parameter("input", source),), (Parameter("output", target),)
        )
        for source, target in pairs
    ]


def _output_scale(arguments: Arguments, output: Tensor) -> float:
    if not output.scale > 0:
        raise arguments.fail(f"output 0 has scale {output.scale}, expected a positive one")
    return single(output.scale)


def _limits(output: Tensor) -> tuple[Array, Array]:
    limits = np.iinfo(output.dtype)
    return np.asarray(limits.min), np.asarray(limits.max)


def _prepare_quantize(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    if arguments.tensor(0).type == _F32:
        return _quantize_floats(arguments, outputs[0])
    return _requantize(arguments, outputs[0])


def _quantize_floats(arguments: Arguments, output: Tensor) -> Kernel:
    """clamp(round(x / scale) + zero point), halves away from zero."""
    scale = np.asarray(_output_scale(arguments, output), np.float32)
    zero, half = np.asarray(float(output.zero_point)), np.asarray(0.5)
    lowest, highest = (np.asarray(float(bound)) for bound in _limits(output))
    parts = list(blocks(output.size, 1))
    size = parts[0].stop
    specs = [ArraySpec((size,)), *[ArraySpec((size,), np.float64)] * 2]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        calls: list[Call] = []
        for part in parts:
            ratio, x, nudge = (array[: part.stop - part.start] for array in scratch)
            calls += [
                (np.divide, (source[part], scale, ratio)),
                copy(x, ratio),
                (np.copysign, (half, x, nudge)),
                (np.add, (x, nudge, x)),
                (np.trunc, (x, x)),
                (np.add, (x, zero, x)),
                saturate(x, (lowest, highest)),
                copy(target[part], x),
            ]
        return sequence(calls)

    return Kernel(bind, specs)


def _requantize(arguments: Arguments, output: Tensor) -> Kernel:
    """Converts integers to integers of another scale, by the fixed-point rule."""
    multiplier = Multiplier([scale_of(arguments, 0) / _output_scale(arguments, output)])
    before, after = np.asarray(arguments.tensor(0).zero_point), np.asarray(output.zero_point)
    parts = list(blocks(output.size, 2))
    specs = [ArraySpec((parts[0].stop,), np.int64)] * 2

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        calls: list[Call] = []
        for part in parts:
            wide, work = (array[: part.stop - part.start] for array in scratch)
            calls += [
                copy(wide, source[part]),
                (np.subtract, (wide, before, wide)),
                *multiplier.calls(wide, work),
                (np.add, (wide, after, wide)),
                saturate(wide, _limits(output)),
                copy(target[part], wide),
            ]
        return sequence(calls)

    return Kernel(bind, specs)


def _prepare_dequantize(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """scale * (q - zero point)."""
    scale = np.asarray(scale_of(arguments, 0), np.float32)
    zero = np.asarray(arguments.tensor(0).zero_point, np.float32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = outputs[0]
        return sequence(
            [
                copy(target, inputs[0]),
                (np.subtract, (target, zero, target)),
                (np.multiply, (target, scale, target)),
            ]
        )

    return Kernel(bind)


def _prepare_softmax(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source, output = arguments.tensor(0), outputs[0]
    _, scale = _SOFTMAX[OperandType(source.type)]
    if abs(output.scale / scale - 1) > _NEAR or output.zero_point:
        raise arguments.fail(
            f"output 0 has scale {output.scale} and zero point {output.zero_point},"
            f" expected about {scale} and 0"
        )
    beta = arguments.number(1)
    if not beta > 0:
        raise arguments.error(1, f"is {beta}, expected a positive one")
    make = softmax_of_words if source.type == _Q16S else softmax_of_bytes
    softmax = make(single(beta) * scale_of(arguments, 0))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        (target,), (rows,) = outputs, scratch

        def step() -> None:
            np.copyto(rows, inputs[0])
            np.copyto(target, softmax(rows), "unsafe")

        return step

    return Kernel(bind, [ArraySpec(source.shape, np.int64)])


def tflite_operation(
    type: TfliteOperation,
    signatures: Sequence[Signature],
    rule: Any,
    compute: Any,
    *,
    facts: Facts = RELAXED,
) -> Operation:
    """An operation of the extension, named in full in messages."""
    return Operation(
        type, signatures, rule, compute, name=f"{TFLITE.name}.{type.name}", facts=facts
    )


QUANTIZE = tflite_operation(
    TfliteOperation.QUANTIZE,
    _pairs(
        [
            *((_F32, target) for target in (_Q16S, _Q16A)),
            *((source, target) for source in _INTEGERS for target in _INTEGERS),
        ]
    ),
    same_shape,
    _prepare_quantize,
)
DEQUANTIZE = tflite_operation(
    TfliteOperation.DEQUANTIZE,
    _pairs([(source, _F32) for source in (_Q16S, _Q16A, _I32)]),
    same_shape,
    _prepare_dequantize,
)
SOFTMAX = tflite_operation(
    TfliteOperation.SOFTMAX,
    [
        Signature(
            _since(source),
            (Parameter("input", source), Parameter("beta", OperandType.FLOAT32)),
            (Parameter("output", target),),
        )
        for source, (target, _) in _SOFTMAX.items()
    ],
    same_shape,
    _prepare_softmax,
)
