"""Shapes with few axes for tensors that have many: axes that are treated alike become one.

The HAL takes up to four axes. Graphs have five and more where a tensor is cut into heads or boxes,
but most of these have one entry, or lie beside another that an operation treats in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.hal import Shape


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape that all have once they are broadcast; raises ModelError where there is none."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wanted = {n for n in sizes if n != 1} or {1}
        if len(wanted) > 1:
            raise ModelError(f"has inputs of shapes {[list(shape) for shape in shapes]}")
        result.append(wanted.pop())
    return tuple(result)


def aligned(scope: OnnxScope, names: Sequence[str]) -> tuple[list[Value], Shape]:
    """Operands that broadcast to each other, and the shape of what becomes of them in the file."""
    shapes = [scope.shape(name) for name in names]
    result = broadcast_shape(shapes)
    operands = [scope.value_of_any_rank(name) for name in names]
    if len({operand.shape for operand in operands}) == len(set(shapes)) == 1:
        return operands, result
    if len(result) <= MOST_AXES:
        return [scope.value(name) for name in names], result
    padded = [(1,) * (len(result) - len(shape)) + tuple(shape) for shape in shapes]
    groups = merged(
        result, [tuple(shape[axis] == 1 for shape in padded) for axis in range(len(result))]
    )
    return [
        scope.reshaped(name, [math.prod(shape[axis] for axis in group) for group in groups])
        for name, shape in zip(names, padded, strict=True)
    ], result


def merged(shape: Shape, keys: Sequence[Hashable]) -> list[list[int]]:
    """Groups of axes: neighbors with equal keys are one, and axes of one entry join any.

    Raises ModelError where that are too many.
    """
    groups: list[list[int]] = []
    last: Hashable = None
    for axis, (size, key) in enumerate(zip(shape, keys, strict=True)):
        if groups and (size == 1 or key == last):
            groups[-1].append(axis)
            continue
        if groups and all(shape[before] == 1 for before in groups[-1]):
            groups[-1].append(axis)
        else:
            groups.append([axis])
        last = key
    if len(groups) > MOST_AXES:
        raise ModelError(f"has rank {len(shape)}, and no {MOST_AXES} axes do")
    return groups


def merged_order(shape: Shape, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """A shape of fewer axes, and the order of these that moves numbers as `order` does."""
    kept = [axis for axis in order if shape[axis] != 1] or [0]
    runs: list[list[int]] = []
    for axis in kept:
        between = range(runs[-1][-1] + 1, axis) if runs else ()
        if runs and axis > runs[-1][-1] and all(shape[n] == 1 for n in between):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if len(runs) > MOST_AXES:
        raise ModelError(f"transposes {len(runs)} axes, {MOST_AXES} are translated")
    before = sorted(runs)
    sizes = [math.prod(shape[axis] for axis in run) for run in before]
    return sizes, [before.index(run) for run in runs]
