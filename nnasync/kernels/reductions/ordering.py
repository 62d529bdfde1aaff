"""ARGMAX, ARGMIN and TOPK_V2.

ARGMAX and ARGMIN take the first of equals; a NaN wins only in the first place, as each value is
compared with the best so far. TOPK_V2 takes the last of equals first. It sorts 64-bit keys, the
value above the index, so that no two are equal and any way of sorting will do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like
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
from nnasync.kernels.reductions.lines import extent, front, lines, parts
from nnasync.kernels.steps import Call, copy, sequence
from nnasync.kernels.uniform import NUMBERS

_INDEX_BITS = 32
_Part = TypeVar("_Part", int, slice)


def _infer_best(arguments: Arguments) -> list[Tensor]:
    shape = arguments.tensor(0).shape
    axis = arguments.axis(1, len(shape))
    left = shape[:axis] + shape[axis + 1 :]
    return [Tensor(type=OperandType.TENSOR_INT32, shape=left or (1,))]


def _without_axis(parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
    """A shape or an index of lines, without the axis along which they run."""
    return parts[:1] + parts[2:]


def _best(type: OperationType, name: str, skip: np.ufunc, worst: np.float32) -> Operation:
    """ARGMAX or ARGMIN: the array's method, and how a NaN becomes what never wins."""

    def prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
        source = arguments.tensor(0)
        shape = lines(source.shape, arguments.axis(1, source.rank))
        divided = list(parts(shape))
        most = extent(divided[0])
        floating = source.dtype.kind == "f"
        specs = [ArraySpec(_without_axis(most), np.intp)]
        if floating or len(shape) > 2:
            specs.append(ArraySpec(most, source.dtype))
        if floating:
            specs.append(ArraySpec(_without_axis(most), np.bool_))

        def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
            source = inputs[0].reshape(shape)
            output = outputs[0].reshape(_without_axis(shape))
            calls: list[Call] = []
            for part in divided:
                given = np.moveaxis(source[part], 1, -1)
                target = output[_without_axis(part)]
                rows, found = given, front(scratch[0], target.shape)
                if len(scratch) > 1:
                    rows = front(scratch[1], given.shape)
                    calls.append((skip, (given, worst, rows)) if floating else copy(rows, given))
                calls += [(getattr(rows, name), (-1, found)), copy(target, found)]
                if floating:
                    unordered = front(scratch[2], target.shape)
                    calls += [
                        (np.isnan, (given[..., 0], unordered)),
                        (np.copyto, (target, np.int32(0), "same_kind", unordered)),
                    ]
            return sequence(calls)

        return Kernel(bind, specs)

    options = Parameter("axis", OperandType.INT32)
    output = Parameter("output", OperandType.TENSOR_INT32)
    signatures = [
        Signature(since, (Parameter("input", data), options), (output,))
        for data, since in NUMBERS.items()
    ]
    return Operation(type, signatures, _infer_best, prepare, facts=STRICT)


def _infer_top(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    length = source.shape[-1]
    count = arguments.integer(1, 1)
    if count > length:
        raise arguments.error(1, f"is {count}, expected at most the {length} of the last dimension")
    shape = (*source.shape[:-1], count)
    return [like(source, shape), Tensor(type=OperandType.TENSOR_INT32, shape=shape)]


def _prepare_top(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    source = arguments.tensor(0)
    length, count = source.shape[-1], outputs[0].shape[-1]
    rows = math.prod(source.shape[:-1])
    floating = source.dtype.kind == "f"
    indices = np.arange(length, dtype=np.int64)
    starts = np.arange(rows, dtype=np.int64)[:, None] * length
    mask = np.asarray(2**_INDEX_BITS - 1, np.int64)
    specs = [ArraySpec((rows, length), np.int64), ArraySpec((rows, count), np.int64)]
    if floating:
        specs += [ArraySpec((rows, length)), ArraySpec((rows, length), np.int32)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        given = inputs[0].reshape(rows, length)
        values, target = (output.reshape(rows, count) for output in outputs)
        keys, found = scratch[:2]
        best = keys[:, length - count :]
        calls: list[Call] = []
        if floating:
            calls += _ordered_bits(given, scratch[2], scratch[3])
            given = scratch[2].view(np.int32)
        calls += [
            copy(keys, given),
            (np.left_shift, (keys, _INDEX_BITS, keys)),
            (np.add, (keys, indices, keys)),
        ]
        if count < length:
            calls.append((keys.partition, (length - count,)))
        calls += [
            (best.sort, ()),
            (np.bitwise_and, (best[:, ::-1], mask, found)),
            copy(target, found),
            (np.add, (found, starts, found)),
            (inputs[0].reshape(-1).take, (found, None, values, "clip")),
        ]
        return sequence(calls)

    return Kernel(bind, specs)


def _ordered_bits(source: Array, work: Array, signs: Array) -> list[Call]:
    """Calls after which the bits of `work`, as integers, are ordered as the floats of `source`."""
    bits = work.view(np.int32)
    return [
        (np.add, (source, np.float32(0), work)),
        (np.right_shift, (bits, 31, signs)),
        (np.bitwise_and, (signs, 2**31 - 1, signs)),
        (np.bitwise_xor, (bits, signs, bits)),
    ]


ARGMAX = _best(OperationType.ARGMAX, "argmax", np.fmax, np.float32(-np.inf))
ARGMIN = _best(OperationType.ARGMIN, "argmin", np.fmin, np.float32(np.inf))
TOPK_V2 = Operation(
    OperationType.TOPK_V2,
    [
        Signature(
            since,
            (Parameter("input", type), Parameter("k", OperandType.INT32)),
            (Parameter("values", type), Parameter("indices", OperandType.TENSOR_INT32)),
        )
        for type, since in NUMBERS.items()
    ],
    _infer_top,
    _prepare_top,
    facts=STRICT,
)
