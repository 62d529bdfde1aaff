"""SLICE and STRIDED_SLICE: a part of the data."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.hal import OperandType, OperationType
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like, moving, sizes
from nnasync.kernels.operation import Arguments, Kernel, Operation, Parameter, Tensor
from nnasync.kernels.uniform import FROM_1_1, NUMBERS, UP_TO_4, signatures

_I32 = OperandType.TENSOR_INT32
_LOWEST = -(2**31)


def _part(arguments: Arguments) -> tuple[slice, ...]:
    """The slices of SLICE; raises ModelError where they leave the input."""
    shape = arguments.tensor(0).shape
    begins = sizes(arguments, 1, 0, len(shape))
    counts = sizes(arguments, 2, -1, len(shape))
    slices = []
    for limit, begin, count in zip(shape, begins, counts, strict=True):
        if begin > limit:
            raise arguments.error(1, f"is {list(begins)}, expected within {shape}")
        end = limit if count == -1 else begin + count
        if end > limit:
            raise arguments.error(2, f"is {list(counts)}, which from {begins} leaves {shape}")
        slices.append(slice(begin, end))
    return tuple(slices)


def _slice_rule(arguments: Arguments) -> list[Tensor]:
    shape = tuple(each.stop - each.start for each in _part(arguments))
    return [like(arguments.tensor(0), shape)]


def _slice(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    part = _part(arguments)
    return moving(lambda target, source: (target, source[part]))


def _clamped(index: int, size: int, *, forward: bool) -> int:
    """An index that may be negative or outside, made one between the ends of a walk."""
    if forward:
        return size if index >= size else max(index, -size) % size
    return -1 if index < -size else min(index, size - 1) % size


def _walk(size: int, begin: int | None, end: int | None, stride: int) -> range:
    """The positions along one dimension; None is the mask's "as far as there is"."""
    forward = stride > 0
    first, last = (0, size) if forward else (size - 1, -1)
    return range(
        first if begin is None else _clamped(begin, size, forward=forward),
        last if end is None else _clamped(end, size, forward=forward),
        stride,
    )


def walks_of(arguments: Arguments) -> tuple[list[range], list[bool]]:
    """The positions along each dimension, and whether the dimension is dropped."""
    shape = arguments.tensor(0).shape
    begins, ends, strides = (sizes(arguments, i, _LOWEST, len(shape)) for i in (1, 2, 3))
    begin_mask, end_mask, shrink_mask = (arguments.integer(i) for i in (4, 5, 6))
    if 0 in strides:
        raise arguments.error(3, f"is {list(strides)}, expected no 0")
    walks, dropped = [], []
    for axis, size in enumerate(shape):
        bit = 1 << axis
        walk = _walk(
            size,
            None if begin_mask & bit else begins[axis],
            None if end_mask & bit else ends[axis],
            strides[axis],
        )
        if shrink_mask & bit and (len(walk) != 1 or strides[axis] < 0):
            raise arguments.error(
                6, f"drops dimension {axis}, of which {len(walk)} by {strides[axis]} are taken"
            )
        walks.append(walk)
        dropped.append(bool(shrink_mask & bit))
    return walks, dropped


def _strided_slice_rule(arguments: Arguments) -> list[Tensor]:
    walks, dropped = walks_of(arguments)
    kept = [len(walk) for walk, drop in zip(walks, dropped, strict=True) if not drop]
    return [like(arguments.tensor(0), tuple(kept) or (1,))]


def _strided_slice(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    walks, _ = walks_of(arguments)
    shape = tuple(len(walk) for walk in walks)
    part = tuple(
        slice(walk.start, None if walk.stop < 0 else walk.stop, walk.step) for walk in walks
    )
    return moving(lambda target, source: (target.reshape(shape), source[part]))


SLICE = Operation(
    OperationType.SLICE,
    signatures(
        NUMBERS,
        ["input"],
        Parameter("begin", _I32, ranks=(1,)),
        Parameter("size", _I32, ranks=(1,)),
    ),
    _slice_rule,
    _slice,
    moves=True,
    empty=True,
    facts=STRICT,
)
STRIDED_SLICE = Operation(
    OperationType.STRIDED_SLICE,
    signatures(
        FROM_1_1,
        ["input"],
        Parameter("begin", _I32, ranks=(1,)),
        Parameter("end", _I32, ranks=(1,)),
        Parameter("strides", _I32, ranks=(1,)),
        Parameter("begin_mask", OperandType.INT32),
        Parameter("end_mask", OperandType.INT32),
        Parameter("shrink_axis_mask", OperandType.INT32),
        ranks=UP_TO_4,
    ),
    _strided_slice_rule,
    _strided_slice,
    moves=True,
    facts=STRICT,
)
