"""QUANTIZE and DEQUANTIZE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import MEDIUM
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
from nnasync.kernels.steps import Call, blocks, clip, copy, sequence

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
_Q8, _Q8S = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_QPC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL

_BEYOND = np.asarray(1024, np.float32)
"""Quantized values are nearer to 0, so that cutting here changes nothing but infinities."""

_FROM_TO: tuple[tuple[OperandType, OperandType, HalVersion], ...] = (
    (_F32, _Q8, HalVersion.V1_2),
    (_F32, _Q8S, HalVersion.V1_3),
    (_F16, _Q8, HalVersion.V1_2),
    (_F16, _Q8S, HalVersion.V1_3),
)
_TO_FROM: tuple[tuple[OperandType, OperandType, HalVersion], ...] = (
    (_Q8, _F32, HalVersion.V1_0),
    (_Q8, _F16, HalVersion.V1_2),
    (OperandType.TENSOR_QUANT8_SYMM, _F32, HalVersion.V1_2),
    (OperandType.TENSOR_QUANT8_SYMM, _F16, HalVersion.V1_2),
    (_QPC, _F32, HalVersion.V1_2),
    (_QPC, _F16, HalVersion.V1_2),
    (_Q8S, _F32, HalVersion.V1_3),
    (_Q8S, _F16, HalVersion.V1_3),
)


def _signatures(
    table: Sequence[tuple[OperandType, OperandType, HalVersion]], ranks: tuple[int, ...] = ()
) -> list[Signature]:
    return [
        Signature(
            since,
            (Parameter("input", source, ranks=ranks),),
            (Parameter("output", target, ranks=ranks),),
        )
        for source, target, since in table
    ]


def _infer(arguments: Arguments) -> list[Tensor]:
    shape = arguments.tensor(0).shape
    return [Tensor(type=arguments.signature.outputs[0].type, shape=shape)]


def _prepare_quantize(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """clamp(round(x / scale) + zero point), halves away from zero; what is no number is highest.

    The nearest integer is the whole part and the whole part of twice the rest, which are exact.
    """
    output = outputs[0]
    parts = list(blocks(output.size, 1))
    specs = [ArraySpec((parts[0].stop,))] * 2
    scale = np.asarray(output.scale, np.float32)
    zero = np.asarray(output.zero_point, np.float32)
    lowest, highest = (np.asarray(bound, np.float32) for bound in quantized_range(output.type))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        calls: list[Call] = []
        for part in parts:
            x, whole = (array[: part.stop - part.start] for array in scratch)
            calls += [
                (np.divide, (source[part], scale, x)),
                (clip, (x, -_BEYOND, _BEYOND, x)),
                (np.trunc, (x, whole)),
                (np.subtract, (x, whole, x)),
                (np.add, (x, x, x)),
                (np.trunc, (x, x)),
                (np.add, (x, whole, x)),
                (np.add, (x, zero, x)),
                (np.fmin, (x, highest, x)),
                (clip, (x, lowest, highest, x)),
                copy(target[part], x),
            ]
        return sequence(calls)

    return Kernel(bind, specs)


def _scale_of(arguments: Arguments) -> Array:
    """The scale, or the scales in a shape that broadcasts over the tensor."""
    source = arguments.tensor(0)
    if source.type != _QPC:
        return np.asarray(source.scale, np.float32)
    quant = source.channel_quant
    if quant is None or not 0 <= quant.channel_dim < source.rank:
        raise arguments.error(0, "has no per-channel scales along one of its dimensions")
    if len(quant.scales) != source.shape[quant.channel_dim]:
        count = source.shape[quant.channel_dim]
        raise arguments.error(0, f"has {len(quant.scales)} scales, expected {count}")
    shape = [1] * source.rank
    shape[quant.channel_dim] = -1
    return np.asarray(quant.scales, np.float32).reshape(shape)


def _prepare_dequantize(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """scale * (q - zero point)."""
    source = arguments.tensor(0)
    scale = _scale_of(arguments)
    zero = np.asarray(source.zero_point, np.float32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = outputs[0]
        calls = [copy(target, inputs[0])]
        if source.zero_point:
            calls.append((np.subtract, (target, zero, target)))
        calls.append((np.multiply, (target, scale, target)))
        return sequence(calls)

    return Kernel(bind)


QUANTIZE = Operation(
    OperationType.QUANTIZE,
    _signatures(_FROM_TO),
    _infer,
    _prepare_quantize,
    empty=True,
    facts=MEDIUM,
)
DEQUANTIZE = Operation(
    OperationType.DEQUANTIZE,
    _signatures(_TO_FROM, (1, 2, 3, 4)),
    _infer,
    _prepare_dequantize,
    empty=True,
    facts=MEDIUM,
)
