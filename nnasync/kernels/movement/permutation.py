"""TRANSPOSE and CHANNEL_SHUFFLE: the same elements in another order."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.lib.stride_tricks import as_strided

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like, moving
from nnasync.kernels.operation import Arguments, Kernel, Operation, Parameter, Tensor
from nnasync.kernels.uniform import FROM_1_1, LATEST, UP_TO_4, signatures


def _permutation(arguments: Arguments) -> tuple[int, ...]:
    """The input's dimension for each of the output's; all reversed where none are given."""
    rank = arguments.tensor(0).rank
    if not arguments.has(1) or not arguments.tensor(1).size:
        return tuple(reversed(range(rank)))
    values = arguments.integers(1)
    if len(values) != rank or any(not 0 <= axis < rank for axis in values):
        raise arguments.error(1, f"is {list(values)}, expected {rank} numbers below {rank}")
    return values


def _transposed(arguments: Arguments) -> list[Tensor]:
    source, axes = arguments.tensor(0), _permutation(arguments)
    shape = tuple(source.shape[axis] for axis in axes)
    if 0 in source.shape and 0 not in shape:
        raise arguments.error(1, f"is {list(axes)}, which leaves out where {source.shape} is empty")
    return [like(source, shape)]


def _transpose(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """A dimension named twice is walked by the first of both, one not named stays at its start."""
    axes = _permutation(arguments)

    def views(target: Array, source: Array) -> tuple[Array, Array]:
        strides = [
            0 if axis in axes[:position] else source.strides[axis]
            for position, axis in enumerate(axes)
        ]
        return target, as_strided(source, target.shape, strides)

    return moving(views)


def _groups(arguments: Arguments) -> tuple[int, int]:
    """Axis and number of groups."""
    shape = arguments.tensor(0).shape
    groups, axis = arguments.integer(1, 1), arguments.axis(2, len(shape))
    if shape[axis] % groups:
        raise arguments.error(1, f"is {groups}, which does not divide the size {shape[axis]}")
    return axis, groups


def _shuffled(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0)
    _groups(arguments)
    return [like(source, source.shape)]


def _shuffle(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    axis, groups = _groups(arguments)

    def views(target: Array, source: Array) -> tuple[Array, Array]:
        shape = source.shape
        split = source.reshape(*shape[:axis], groups, -1, *shape[axis + 1 :])
        mixed = split.swapaxes(axis, axis + 1)
        return target.reshape(mixed.shape), mixed

    return moving(views)


CHANNEL_SHUFFLE = Operation(
    OperationType.CHANNEL_SHUFFLE,
    signatures(
        LATEST,
        ["input"],
        Parameter("groups", OperandType.INT32),
        Parameter("axis", OperandType.INT32),
        ranks=UP_TO_4,
    ),
    _shuffled,
    _shuffle,
    moves=True,
    facts=STRICT,
)
TRANSPOSE = Operation(
    OperationType.TRANSPOSE,
    signatures(
        FROM_1_1,
        ["input"],
        Parameter("perm", OperandType.TENSOR_INT32, optional=True, ranks=(1,)),
        ranks=UP_TO_4,
    ),
    _transposed,
    _transpose,
    moves=True,
    empty=True,
    facts=STRICT,
)
