"""Samplers of operations that move data: shapes, slices, paddings, permutations, joining."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from nnasync.conformance.random_graphs.graph import GraphOperand
from nnasync.conformance.random_graphs.samplers.elementwise import any_tensor
from nnasync.conformance.random_graphs.sketch import Pick, Sampler
from nnasync.hal import OperandType, OperationType, Shape

_MOST_PARTS = 5
_MOST_PADDING = 3
_MOST_REPEATS = 3
_MASKS = 0.25


def divisors(number: int, highest: int = 16) -> list[int]:
    """Divisors of a number that are not too large, ascending."""
    return [each for each in range(1, min(number, highest) + 1) if number % each == 0]


def random_axis(pick: Pick, rank: int) -> int:
    """A dimension, not negative."""
    return pick.integer(0, rank - 1)


def axis(pick: Pick, chosen: int, rank: int, name: str = "axis") -> None:
    """Give a dimension, at times counted from behind."""
    pick.scalar(name, chosen - rank if pick.chance(0.5) else chosen)


def layout(pick: Pick, name: str = "is_nchw") -> bool:
    """Give a layout, if the signature has it; returns whether channels come first."""
    if not pick.has(name):
        return False
    nchw = pick.chance(0.5)
    pick.scalar(name, nchw)
    return nchw


# -- shapes


def _reshape(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    target = [1] * pick.integer(1, 4)
    for factor in _prime_factors(math.prod(shape)):
        target[random_axis(pick, len(target))] *= factor
    if pick.chance(0.3):
        target[random_axis(pick, len(target))] = -1
    pick.integers("shape", target)


def _prime_factors(number: int) -> list[int]:
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return [*found, number] if number > 1 else found


def _squeeze(pick: Pick) -> None:
    def shape() -> Shape:
        return tuple(1 if pick.chance(0.5) else size for size in pick.shape(pick.rank("input")))

    given = pick.tensor("input", shape, fits=lambda found: 1 in found).shape
    ones = pick.shuffled(index for index, size in enumerate(given) if size == 1)
    if not ones or pick.chance(0.3):
        pick.omit("dims")
        return
    kept = ones[: pick.integer(1, len(ones))]
    pick.integers("dims", [each - pick.choose((0, len(given))) for each in kept])


def _expand(pick: Pick) -> None:
    rank = len(any_tensor(pick, "input").shape)
    axis(pick, pick.integer(0, rank), rank + 1)


def _fill(pick: Pick) -> None:
    shape = pick.shape(pick.integer(1, 4))
    pick.integers("dims", shape)
    integer = pick.type_of("value") == OperandType.INT32
    pick.scalar("value", pick.integer(-255, 255) if integer else pick.uniform(-2, 2))


def _transpose(pick: Pick) -> None:
    rank = len(any_tensor(pick, "input").shape)
    if rank == 2 and pick.chance(0.3):
        pick.omit("perm")
        return
    pick.integers("perm", pick.shuffled(range(rank)))


def _channel_shuffle(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    chosen = random_axis(pick, len(shape))
    pick.scalar("groups", pick.choose(divisors(shape[chosen])))
    axis(pick, chosen, len(shape))


# -- parts


def _slice(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    begins = [pick.integer(0, size - 1) for size in shape]
    sizes = [pick.integer(1, size - begin) for size, begin in zip(shape, begins, strict=True)]
    pick.integers("begin", begins)
    pick.integers("size", [-1 if pick.chance(0.2) else size for size in sizes])


def _strided_slice(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    masks = {"begin_mask": 0, "end_mask": 0, "shrink_axis_mask": 0}
    walks = []
    for index, size in enumerate(shape):
        bit = 1 << index
        if pick.chance(0.15):
            begin = pick.integer(0, size - 1)
            end, stride = begin + 1, 1
            masks["shrink_axis_mask"] |= bit
        else:
            begin, end, stride = _walk(pick, size)
            masks["begin_mask"] |= bit if pick.chance(_MASKS) else 0
            masks["end_mask"] |= bit if pick.chance(_MASKS) else 0
        walks.append((begin, end, stride))
    for name, numbers in zip(("begin", "end", "strides"), zip(*walks, strict=True), strict=True):
        pick.integers(name, numbers)
    for name, mask in masks.items():
        pick.scalar(name, mask)


def _walk(pick: Pick, size: int) -> tuple[int, int, int]:
    """Begin, end and stride that take at least one element; any of them may be negative.

    An end of -1 in a walk backwards would be counted from behind, so it lies before the first.
    """
    low, high = sorted((pick.integer(0, size - 1), pick.integer(0, size - 1)))
    stride = pick.integer(1, 3)
    if pick.chance(0.3):
        end = low - 1 if low else -size - 1
        return high, end, -stride
    begin = low - size if pick.chance(0.3) else low
    return begin, high + 1 + pick.choose((0, 0, size)), stride


def _split(pick: Pick) -> None:
    def shape() -> Shape:
        rank = pick.rank("input")
        steps = [1] * rank
        steps[random_axis(pick, rank)] = pick.integer(2, _MOST_PARTS)
        return pick.shape(rank, steps)

    given = pick.tensor("input", shape, fits=lambda found: True).shape
    cuts = [
        (index, parts)
        for index, size in enumerate(given)
        for parts in divisors(size, _MOST_PARTS)
        if parts > 1
    ]
    chosen, parts = pick.choose(cuts) if cuts else (random_axis(pick, len(given)), 1)
    axis(pick, chosen, len(given))
    pick.scalar("num_splits", parts)
    pick.results = parts


def _gather(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    chosen = random_axis(pick, len(shape))
    axis(pick, chosen, len(shape))
    room = pick.limits.elements * shape[chosen] // math.prod(shape)
    rank = pick.integer(1, 2 if len(shape) < 4 else 1)
    counts = [pick.small(min(room, 8)) for _ in range(rank)]
    pick.values("indices", pick.numbers.integers(0, shape[chosen], counts))


# -- joining and padding


def _concatenation(pick: Pick) -> None:
    first = any_tensor(pick, "input").shape
    chosen = random_axis(pick, len(first))

    def joins(found: Shape) -> bool:
        return _without(found, chosen) == _without(first, chosen) and len(found) == len(first)

    def shape() -> Shape:
        size = pick.integer(1, first[chosen] + 1)
        return (*first[:chosen], size, *first[chosen + 1 :])

    for _ in range(pick.integer(0, _MOST_PARTS - 1)):
        pick.tensor("input", shape, fits=joins)
    pick.scalar("axis", chosen)


def _without(shape: Shape, chosen: int) -> Shape:
    return (*shape[:chosen], *shape[chosen + 1 :])


def _tile(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    pick.integers("multiples", [pick.integer(1, _MOST_REPEATS) for _ in shape])


def _paddings(pick: Pick, count: int) -> list[list[int]]:
    return [[pick.integer(0, _MOST_PADDING), pick.integer(0, _MOST_PADDING)] for _ in range(count)]


def _pad(pick: Pick) -> None:
    shape = any_tensor(pick, "input").shape
    pick.values("paddings", np.asarray(_paddings(pick, len(shape))))
    if not pick.has("value"):
        return
    if pick.type_of("value") != OperandType.INT32:
        pick.scalar("value", pick.uniform(-2, 2))
    elif pick.type_of("input") == OperandType.TENSOR_QUANT8_ASYMM:
        pick.scalar("value", pick.integer(0, 255))
    else:
        pick.scalar("value", pick.integer(-128, 127))


# -- blocks of space


def _image(pick: Pick, steps: Sequence[int]) -> GraphOperand:
    """Give an image, NHWC or in the layout of `steps`, whose new shape is in multiples of these."""
    return pick.tensor("input", lambda: pick.shape(4, steps), fits=lambda found: True)


def _by_layout(steps: Sequence[int], *, nchw: bool) -> list[int]:
    """Numbers for batches, height, width and channels in the order of the layout."""
    batches, height, width, channels = steps
    return [batches, channels, height, width] if nchw else list(steps)


def _sides(shape: Shape, *, nchw: bool) -> tuple[int, int, int]:
    """Height, width and channels."""
    return (shape[2], shape[3], shape[1]) if nchw else shape[1:]  # type: ignore[return-value]


def _depth_to_space(pick: Pick) -> None:
    nchw = layout(pick)
    size = pick.integer(1, 3)
    shape = _image(pick, _by_layout((1, 1, 1, size * size), nchw=nchw)).shape
    channels = _sides(shape, nchw=nchw)[2]
    pick.scalar("block_size", pick.choose([n for n in range(1, 5) if channels % (n * n) == 0]))


def _space_to_depth(pick: Pick) -> None:
    nchw = layout(pick)
    size = pick.integer(1, 4)
    shape = _image(pick, _by_layout((1, size, size, 1), nchw=nchw)).shape
    height, width, _ = _sides(shape, nchw=nchw)
    pick.scalar("block_size", pick.choose(divisors(math.gcd(height, width), 4)))


def _batch_to_space(pick: Pick) -> None:
    layout(pick)
    batches = pick.integer(1, 3) * pick.integer(1, 3)
    shape = _image(pick, (batches, 1, 1, 1)).shape
    rows = pick.choose(divisors(shape[0], 4))
    pick.integers("block_shape", [rows, pick.choose(divisors(shape[0] // rows, 4))])


def _space_to_batch(pick: Pick) -> None:
    """Paddings make height and width multiples of the blocks."""
    nchw = layout(pick)
    height, width, _ = _sides(_image(pick, (1, 1, 1, 1)).shape, nchw=nchw)
    blocks = [pick.integer(1, 4), pick.integer(1, 4)]
    paddings = []
    for size, block in zip((height, width), blocks, strict=True):
        total = -size % block + pick.choose((0, 0, block))
        before = pick.integer(0, total)
        paddings.append([before, total - before])
    pick.integers("block_shape", blocks)
    pick.values("paddings", np.asarray(paddings))


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.BATCH_TO_SPACE_ND: _batch_to_space,
    OperationType.CHANNEL_SHUFFLE: _channel_shuffle,
    OperationType.CONCATENATION: _concatenation,
    OperationType.DEPTH_TO_SPACE: _depth_to_space,
    OperationType.EXPAND_DIMS: _expand,
    OperationType.FILL: _fill,
    OperationType.GATHER: _gather,
    OperationType.PAD: _pad,
    OperationType.PAD_V2: _pad,
    OperationType.RESHAPE: _reshape,
    OperationType.SLICE: _slice,
    OperationType.SPACE_TO_BATCH_ND: _space_to_batch,
    OperationType.SPACE_TO_DEPTH: _space_to_depth,
    OperationType.SPLIT: _split,
    OperationType.SQUEEZE: _squeeze,
    OperationType.STRIDED_SLICE: _strided_slice,
    OperationType.TILE: _tile,
    OperationType.TRANSPOSE: _transpose,
}
