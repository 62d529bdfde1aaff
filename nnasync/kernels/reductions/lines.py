"""A tensor as lines along one of its axes, and parts of it that stay in cache.

A tensor of any rank is seen as (outer, length, inner), or as (outer, length) where the axis is the
last one: so the axis is always 1, and nothing is transposed. Operations along an axis that a scalar
names came with HAL 1.2; until then it was the last one, for certain ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from nnasync.hal import Array, HalVersion, OperandType, Shape
from nnasync.kernels.operation import Arguments, Parameter, Signature
from nnasync.kernels.steps import BLOCK_ELEMENTS, blocks
from nnasync.kernels.uniform import UP_TO_4

_FEWEST_COLUMNS = 64
"""Parts are not narrower: numpy pays for each row of a part."""


def axis_signatures(
    type: OperandType, since: HalVersion, *options: Parameter, before: tuple[int, ...]
) -> list[Signature]:
    """Without and with an axis; the latter, and ranks other than those `before`, came with 1.2."""
    later, axis = max(since, HalVersion.V1_2), Parameter("axis", OperandType.INT32)
    others = tuple(rank for rank in UP_TO_4 if rank not in before)
    forms: list[tuple[HalVersion, tuple[int, ...], tuple[Parameter, ...]]]
    if since < later:
        forms = [(since, before, ()), (later, others, ()), (later, UP_TO_4, (axis,))]
    else:
        forms = [(later, UP_TO_4, ()), (later, UP_TO_4, (axis,))]
    return [
        Signature(
            version,
            (Parameter("input", type, ranks=ranks), *options, *last),
            (Parameter("output", type),),
        )
        for version, ranks, last in forms
    ]


def lines(shape: Shape, first: int, last: int | None = None) -> Shape:
    """The shape with the axes from `first` to `last` joined in the middle, others beside them."""
    after = (first if last is None else last) + 1
    outer, length, inner = (
        math.prod(sizes) for sizes in (shape[:first], shape[first:after], shape[after:])
    )
    return (outer, length) if inner == 1 else (outer, length, inner)


def line_axis(arguments: Arguments, index: int) -> int:
    """The axis of input 0 that an optional argument names; the last one where it is not given."""
    rank = arguments.tensor(0).rank
    return arguments.axis(index, rank) if arguments.has(index) else rank - 1


def ends(shape: Shape) -> Shape:
    """The shape with one element for each line."""
    return (shape[0], 1, *shape[2:])


def parts(shape: Shape, limit: int = BLOCK_ELEMENTS) -> Iterator[tuple[slice, ...]]:
    """Whole lines of about `limit` elements, as indices; the first part is the largest."""
    outer, length, *inner = shape
    if not inner:
        for rows in blocks(outer, length, limit):
            yield rows, slice(0, length)
        return
    for rows in blocks(outer, length * inner[0], limit):
        depth = length * (rows.stop - rows.start)
        for columns in blocks(inner[0], depth, max(limit, depth * _FEWEST_COLUMNS)):
            yield rows, slice(0, length), columns


def extent(part: tuple[slice, ...]) -> Shape:
    """The shape of a part."""
    return tuple(index.stop - index.start for index in part)


def front(scratch: Array, shape: Shape) -> Array:
    """The front of a scratch array in another, not larger shape."""
    return scratch.reshape(-1)[: math.prod(shape)].reshape(shape)
