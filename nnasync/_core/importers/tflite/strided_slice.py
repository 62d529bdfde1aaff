"""STRIDED_SLICE: TFLite's specification may skip, drop and add dimensions; the HAL's names all."""

from __future__ import annotations

from nnasync._core.importers.tflite.converter import (
    BOOLEANS,
    NUMBERS,
    Converter,
    option,
    refuse_fused,
)
from nnasync._core.importers.tflite.movement import apply, finish
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import OperatorInfo
from nnasync._core.model import Value
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Struct


class SlicedAxis(Struct, frozen=True):
    """What is taken along each dimension, which of them are dropped, and where 1 is inserted.

    `slices` has begin, end and stride; None is "as far as there is". `added` are positions in the
    result.
    """

    slices: tuple[tuple[int | None, int | None, int], ...]
    dropped: tuple[int, ...]
    added: tuple[int, ...]


def part_of(operator: OperatorInfo, specification: list[list[int]], rank: int) -> SlicedAxis:
    """The part of a tensor of this rank that begins, ends and strides and the masks stand for."""
    if option(operator, "Offset"):
        raise ModelError("counts ends from the begins")
    names = ("BeginMask", "EndMask", "EllipsisMask", "NewAxisMask", "ShrinkAxisMask")
    begin_mask, end_mask, ellipsis, new, shrink = (option(operator, name) for name in names)
    count = len(specification[0])
    named = sum(not (ellipsis | new) >> place & 1 for place in range(count))
    slices: list[tuple[int | None, int | None, int]] = []
    dropped: list[int] = []
    added: list[int] = []
    for place, (begin, end, stride) in enumerate(zip(*specification, strict=True)):
        bit = 1 << place
        if ellipsis & bit:
            slices += [(None, None, 1)] * (rank - named)
        elif new & bit:
            added.append(len(slices) - len(dropped) + len(added))
        else:
            first = None if begin_mask & bit else begin
            last = None if end_mask & bit else end
            if shrink & bit:
                dropped.append(len(slices))
                first, stride = first or 0, 1
                last = first + 1 or None
            slices.append((first, last, stride))
    slices += [(None, None, 1)] * (rank - len(slices))
    if len(slices) != rank:
        raise ModelError(f"names {len(slices)} dimensions of a tensor of rank {rank}")
    return SlicedAxis(tuple(slices), tuple(dropped), tuple(added))


def _mask(positions: list[int] | tuple[int, ...]) -> int:
    return sum(1 << position for position in positions)


def _strided_slice(tensors: Tensors, operator: OperatorInfo) -> None:
    specification = [tensors.constant(operator, place) for place in (1, 2, 3)]

    def move(x: Value) -> Value:
        part = part_of(operator, specification, len(x.shape))
        y = _without_strides(tensors, x, part) if _is_integer(x) else _taken(tensors, x, part)
        for position in part.added:
            y = apply(tensors, OperationType.EXPAND_DIMS, y, position)
        return y

    finish(tensors, operator, move)


def _is_integer(x: Value) -> bool:
    return x.type == OperandType.TENSOR_INT32


def _taken(tensors: Tensors, x: Value, part: SlicedAxis) -> Value:
    begins, ends, strides = (list(column) for column in zip(*part.slices, strict=True))
    masks = [
        _mask([place for place, number in enumerate(numbers) if number is None])
        for numbers in (begins, ends)
    ]
    numbers = [int32_array([n or 0 for n in column]) for column in (begins, ends, strides)]
    return apply(tensors, OperationType.STRIDED_SLICE, x, *numbers, *masks, _mask(part.dropped))


def _without_strides(tensors: Tensors, x: Value, part: SlicedAxis) -> Value:
    """A part of INT32, of which the HAL takes neither strides nor dimensions away."""
    if part.dropped and len(x.shape) > 1:
        raise ModelError("drops a dimension of INT32")
    if 0 in x.shape:
        raise ModelError("takes a part of a shape that is not known")
    walks = [range(size)[slice(*each)] for size, each in zip(x.shape, part.slices, strict=True)]
    if any(len(walk) < 1 or walk.step != 1 for walk in walks):
        raise ModelError("takes INT32 in steps")
    begins, counts = [walk.start for walk in walks], [len(walk) for walk in walks]
    return apply(tensors, OperationType.SLICE, x, int32_array(begins), int32_array(counts))


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "STRIDED_SLICE": (
        Converter(
            tuple((*kind, "INT32") for kind in (*NUMBERS, *BOOLEANS)),
            _strided_slice,
            refuse_fused,
        ),
    ),
}
