"""MEAN, and REDUCE_ALL, ANY, MAX, MIN, PROD and SUM: axes of a tensor become one value.

All follow a few words of the rule. An axis counts once however often it is listed; no axis at all
reduces nothing; what has lost every dimension has shape [1]. A NaN is never the largest or the
smallest, and a product with a factor of zero is zero. The quantized mean is cut towards the lowest
value, so that signed results are those of the unsigned twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape, is_quantized
from nnasync.kernels.movement.copying import like
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Compute,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.steps import Call, clip, copy, sequence
from nnasync.kernels.uniform import FLOATS, FROM_1_1, LATEST

_BOOL = {OperandType.TENSOR_BOOL8: HalVersion.V1_2}


class _Layout:
    """Which dimensions are reduced; `kept` is the input's shape with those as 1."""

    __slots__ = ("axes", "count", "kept")

    def __init__(self, arguments: Arguments) -> None:
        shape = arguments.tensor(0).shape
        axes = {arguments.checked_axis(1, axis, len(shape)) for axis in arguments.integers(1)}
        self.axes = tuple(sorted(axes))
        self.kept = tuple(1 if dim in axes else size for dim, size in enumerate(shape))
        self.count = math.prod(shape[dim] for dim in axes)

    def result(self, *, keep: bool) -> Shape:
        """The output's shape, with the reduced dimensions or without."""
        if keep:
            return self.kept
        left = tuple(size for dim, size in enumerate(self.kept) if dim not in self.axes)
        return left or (1,)


def _infer(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    keep = int(arguments.value(2).reshape(-1)[0]) > 0
    return [like(source, _Layout(arguments).result(keep=keep))]


def _prepare_mean(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    layout = _Layout(arguments)
    quantized = is_quantized(outputs[0].type)
    specs = [ArraySpec(layout.kept, np.float64)] if quantized else []
    divisor = np.asarray(layout.count, np.float64 if quantized else np.float32)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = outputs[0].reshape(layout.kept)
        sums = scratch[0] if quantized else target
        calls: list[Call] = [
            (np.add.reduce, (inputs[0], layout.axes, sums.dtype, sums, True)),
            (np.divide, (sums, divisor, sums)),
        ]
        if quantized:
            calls += [(np.floor, (sums, sums)), copy(target, sums)]
        return sequence(calls)

    return Kernel(bind, specs)


def _prepare_product(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    layout = _Layout(arguments)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target, zeros = outputs[0].reshape(layout.kept), scratch[0]
        return sequence(
            [
                (np.multiply.reduce, (inputs[0], layout.axes, None, target, True)),
                (np.logical_and.reduce, (inputs[0], layout.axes, np.bool_, zeros, True)),
                (np.logical_not, (zeros, zeros)),
                (np.copyto, (target, np.float32(0), "same_kind", zeros)),
            ]
        )

    return Kernel(bind, [ArraySpec(layout.kept, np.bool_)])


def _prepare_truth(function: np.ufunc) -> Compute:
    """Returns how ALL or ANY is computed on bytes, by their least or greatest one."""

    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        layout = _Layout(arguments)
        truth = np.uint8(0), np.uint8(1)

        def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
            source = inputs[0].view(np.uint8)
            target = outputs[0].view(np.uint8).reshape(layout.kept)
            return sequence(
                [
                    (function.reduce, (source, layout.axes, None, target, True)),
                    (clip, (target, *truth, target)),
                ]
            )

        return Kernel(bind)

    return prepare


def _prepare_plain(function: np.ufunc, start: Callable[[np.dtype[Any]], Any]) -> Compute:
    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        layout = _Layout(arguments)
        source = arguments.tensor(0)
        initial = start(np.dtype(np.float16) if source.widened else source.dtype)

        def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
            target = outputs[0].reshape(layout.kept)
            return sequence(
                [(function.reduce, (inputs[0], layout.axes, None, target, True, initial))]
            )

        return Kernel(bind)

    return prepare


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else np.finfo(dtype).min


def _highest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.finfo(dtype).max


def _zero(dtype: np.dtype[Any]) -> Any:
    return 0


def _signatures(
    types: Iterable[tuple[OperandType, HalVersion]], keep: OperandType
) -> list[Signature]:
    options = (
        Parameter("axes", OperandType.TENSOR_INT32, ranks=(1,)),
        Parameter("keep_dimensions", keep),
    )
    return [
        Signature(
            since,
            (Parameter("input", type, ranks=(1, 2, 3, 4)), *options),
            (Parameter("output", type),),
        )
        for type, since in types
    ]


def _reduce(
    type: OperationType, types: Mapping[OperandType, HalVersion], compute: Compute
) -> Operation:
    return Operation(type, _signatures(types.items(), OperandType.BOOL), _infer, compute)


MEAN = Operation(
    OperationType.MEAN, _signatures(FROM_1_1.items(), OperandType.INT32), _infer, _prepare_mean
)
REDUCE_ALL = _reduce(OperationType.REDUCE_ALL, _BOOL, _prepare_truth(np.minimum))
REDUCE_ANY = _reduce(OperationType.REDUCE_ANY, _BOOL, _prepare_truth(np.maximum))
REDUCE_MAX = _reduce(OperationType.REDUCE_MAX, LATEST, _prepare_plain(np.fmax, _lowest))
REDUCE_MIN = _reduce(OperationType.REDUCE_MIN, LATEST, _prepare_plain(np.fmin, _highest))
REDUCE_PROD = _reduce(OperationType.REDUCE_PROD, FLOATS, _prepare_product)
REDUCE_SUM = _reduce(OperationType.REDUCE_SUM, FLOATS, _prepare_plain(np.add, _zero))
