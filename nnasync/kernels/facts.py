"""Facts about operations that others than their kernels go by; each block states its own."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence

from nnasync.hal import Shape, Struct


class CriterionClass(enum.Enum):
    """Classes of criteria for random graphs; the last two are for graphs of 5 and 40 operations."""

    STRICT = "strict"
    MEDIUM = "medium"
    RELAXED = "relaxed"
    CONVOLUTION = "convolution"
    SMALL_GRAPH = "small graph"
    LARGE_GRAPH = "large graph"


class Facts(Struct, frozen=True):
    """What is true of an operation whatever its operands are.

    `criteria` is how far results of two devices may be from each other. An operation `by_channel`
    treats every channel of an image alike. One that `rounds_reals` computes with real numbers even
    where its operands are quantized, and processors round these in their own ways. Results that are
    `non_negative` are never below 0, those of a `fragile` operation may be altogether different
    after the least change of an input. One that `rounds_by_sign` rounds the bytes themselves away
    from zero, so that signed ones may be a step from the unsigned ones 128 larger. `multiply_adds`
    counts them from the shapes of the inputs and of output 0, where they are more than the elements
    that are read and written.
    """

    criteria: CriterionClass = CriterionClass.RELAXED
    by_channel: bool = False
    rounds_reals: bool = False
    non_negative: bool = False
    fragile: bool = False
    rounds_by_sign: bool = False
    multiply_adds: Callable[[Sequence[Shape], Shape], int] | None = None


RELAXED = Facts()
STRICT = Facts(CriterionClass.STRICT)
MEDIUM = Facts(CriterionClass.MEDIUM)


# -- multiply-adds; unknown dimensions, which are 0, count as 1


def each_output(inputs: Sequence[Shape], output: Shape) -> int:
    """Weights with the output channels first: each output takes all weights of its channel."""
    return _size(output) * _size(inputs[1][1:])


def each_depth(inputs: Sequence[Shape], output: Shape) -> int:
    """Returns the multiply-adds if each output takes the weights of its (last) channel."""
    return _size(output) * _size(inputs[1][1:3])


def each_input(inputs: Sequence[Shape], output: Shape) -> int:
    """Returns the multiply-adds if each input goes to all outputs its channel has weights for."""
    return _size(inputs[0]) * _size(inputs[1][:3])


def matrices(inputs: Sequence[Shape], output: Shape) -> int:
    """Returns the multiply-adds of all weights for each row of data: batch, and time if any."""
    weights = sum(_size(shape) for shape in inputs[1:] if len(shape) == 2)
    return _size(inputs[0][:-1]) * weights


def _size(shape: Shape) -> int:
    return math.prod(size for size in shape if size)
