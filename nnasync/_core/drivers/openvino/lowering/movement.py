"""Operations that only move elements: shapes, slices, joints, and images turned into channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import AXES, Node, Planar, Result, Scope
from nnasync._core.drivers.openvino.lowered import (
    BYTES,
    INTEGERS,
    REALS,
    Build,
    Lower,
    OpenVinoUnsupported,
    Rule,
    Rules,
    one,
)
from nnasync.hal import OperationType, is_quantized
from nnasync.kernels import Arguments, Tensor
from nnasync.kernels.movement.slicing import walks_of
from nnasync.kernels.windows.window import is_nchw

_LOWEST = -(2**31)


def _reshape(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    shape = outputs[0].shape

    def build(scope: Scope) -> Result:
        if scope.prefers_planar((0,)) and _pixels(scope.tensor(0)) == 1:
            return scope.reshape(scope.planar(0), shape)
        return scope.reshape(scope.value(0), shape)

    return one(build)


def _pixels(tensor: Tensor) -> int:
    return tensor.shape[1] * tensor.shape[2]


def _transpose(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    rank = arguments.tensor(0).rank
    order = arguments.integers(1) if arguments.has(1) else tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise OpenVinoUnsupported("an order with repeated dimensions is not lowered")
    return one(lambda scope: scope.transpose(scope.value(0), order))


def _pad(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    source = arguments.tensor(0)
    pads = np.asarray(arguments.value(1)).reshape(-1, 2)
    value = 0.0
    if arguments.has(2):
        value = float(arguments.value(2).reshape(-1)[0])
        if is_quantized(source.type):
            low = np.asarray([int(value)]).astype(source.dtype)
            value = float(low[0]) - source.zero_point

    def build(scope: Scope) -> Result:
        planar = scope.prefers_planar((0,))
        order = (0, 3, 1, 2) if planar else tuple(range(source.rank))
        node = scope.planar(0) if planar else scope.value(0)
        border = np.int32(value) if source.type in INTEGERS else np.float32(value)
        before, after = ([int(pads[axis, side]) for axis in order] for side in (0, 1))
        ends = scope.integers(before), scope.integers(after)
        result = scope.op.pad(node, *ends, "constant", scope.constant(border))
        return Planar(result) if planar else result

    return one(build)


def _slice(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    shape = outputs[0].shape
    arguments.value(2)
    begins = arguments.integers(1)
    walks = [range(b, b + size) for b, size in zip(begins, shape, strict=True)]
    return one(lambda scope: _walked(scope, walks))


def _walked(scope: Scope, walks: Sequence[range]) -> Node:
    """The elements at these positions along each dimension."""
    return scope.op.slice(
        scope.value(0),
        scope.integers([walk.start for walk in walks]),
        scope.integers([walk.stop if walk.stop >= 0 else _LOWEST for walk in walks]),
        scope.integers([walk.step for walk in walks]),
        scope.integers(range(len(walks))),
    )


def _strided_slice(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    walks, _ = walks_of(arguments)
    if not all(walks):
        raise OpenVinoUnsupported("an empty slice is not lowered")
    result = outputs[0].shape
    return one(lambda scope: scope.reshape(_walked(scope, walks), result))


def _split(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    axis, count = arguments.axis(1, arguments.tensor(0).rank), len(outputs)

    def build(scope: Scope) -> Sequence[Result]:
        if scope.prefers_planar((0,)):
            node = scope.op.split(scope.planar(0), _axis(scope, AXES[axis]), count)
            return [Planar(output) for output in node.outputs()]
        return list(scope.op.split(scope.value(0), _axis(scope, axis), count).outputs())

    return build


def _axis(scope: Scope, axis: int) -> Node:
    return scope.op.constant(np.int64(axis))


def _concatenation(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    output, count = outputs[0], len(arguments) - 1
    axis = arguments.axis(count, arguments.tensor(0).rank)

    def build(scope: Scope) -> Result:
        positions = range(count)
        planar = scope.prefers_planar(positions)
        nodes = [_fitted(scope, position, output, planar=planar) for position in positions]
        result = scope.op.concat(nodes, AXES[axis] if planar else axis)
        return Planar(result) if planar else result

    return one(build)


def _fitted(scope: Scope, position: int, output: Tensor, *, planar: bool) -> Node:
    """An input with the scale and zero point of the output."""
    source = scope.tensor(position)
    same = (source.scale, source.zero_point) == (output.scale, output.zero_point)
    if same or not is_quantized(output.type):
        return scope.planar(position) if planar else scope.value(position)
    return scope.store(scope.real(position, planar=planar), output)


def _gather(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    axis = arguments.axis(1, arguments.tensor(0).rank)
    indices = arguments.value(2)
    if indices.min() < 0 or indices.max() >= arguments.tensor(0).shape[axis]:
        raise OpenVinoUnsupported("an index is out of range")
    return one(lambda scope: scope.op.gather(scope.value(0), scope.value(2), _axis(scope, axis)))


def _tile(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    counts = arguments.integers(1)
    return one(lambda scope: scope.op.tile(scope.value(0), scope.integers(counts)))


def _channel_shuffle(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    shape = arguments.tensor(0).shape
    groups, axis = arguments.integer(1, 1), arguments.axis(2, len(shape))
    split = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    order = list(range(len(split)))
    order[axis], order[axis + 1] = order[axis + 1], order[axis]

    def build(scope: Scope) -> Result:
        turned = scope.transpose(scope.reshape(scope.value(0), split), order)
        return scope.reshape(turned, shape)

    return one(build)


# -- images


def _image(build: Callable[[Scope, Node, Arguments], Node]) -> Lower:
    """An operation on the NCHW form of an image."""

    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        for index in range(1, len(arguments)):
            arguments.value(index)
        nchw = is_nchw(arguments)

        def whole(scope: Scope) -> Result:
            result = build(scope, scope.value(0) if nchw else scope.planar(0), arguments)
            return result if nchw else Planar(result)

        return one(whole)

    return lower


def _depth_to_space(scope: Scope, image: Node, arguments: Arguments) -> Node:
    return scope.op.depth_to_space(image, "blocks_first", arguments.integer(1))


def _space_to_depth(scope: Scope, image: Node, arguments: Arguments) -> Node:
    return scope.op.space_to_depth(image, "blocks_first", arguments.integer(1))


def _batch_to_space(scope: Scope, image: Node, arguments: Arguments) -> Node:
    block = scope.integers((1, 1, *arguments.integers(1)))
    none = scope.integers((0, 0, 0, 0))
    return scope.op.batch_to_space(image, block, none, none)


def _space_to_batch(scope: Scope, image: Node, arguments: Arguments) -> Node:
    """Lowers SPACE_TO_BATCH in small steps: OpenVINO's operation writes what it never read."""
    down, across = arguments.integers(1)
    top, bottom, left, right = arguments.integers(2)
    ends = scope.integers((0, 0, top, left)), scope.integers((0, 0, bottom, right))
    padded = scope.op.pad(image, *ends, "constant", scope.number(0))
    batches, channels, height, width = tuple(padded.shape)
    rows, columns = height // down, width // across
    split = scope.reshape(padded, (batches, channels, rows, down, columns, across))
    turned = scope.transpose(split, (3, 5, 0, 1, 2, 4))
    return scope.reshape(turned, (down * across * batches, channels, rows, columns))


_NUMBERS = (*REALS, *BYTES, *INTEGERS)
RULES: Rules = {
    OperationType.RESHAPE: Rule(_reshape),
    OperationType.SQUEEZE: Rule(_reshape),
    OperationType.EXPAND_DIMS: Rule(_reshape, _NUMBERS),
    OperationType.TRANSPOSE: Rule(_transpose),
    OperationType.PAD: Rule(_pad),
    OperationType.PAD_V2: Rule(_pad),
    OperationType.SLICE: Rule(_slice, _NUMBERS),
    OperationType.STRIDED_SLICE: Rule(_strided_slice),
    OperationType.SPLIT: Rule(_split, _NUMBERS),
    OperationType.CONCATENATION: Rule(_concatenation),
    OperationType.GATHER: Rule(_gather, _NUMBERS),
    OperationType.TILE: Rule(_tile, _NUMBERS),
    OperationType.CHANNEL_SHUFFLE: Rule(_channel_shuffle),
    OperationType.DEPTH_TO_SPACE: Rule(_image(_depth_to_space)),
    OperationType.SPACE_TO_DEPTH: Rule(_image(_space_to_depth)),
    OperationType.BATCH_TO_SPACE_ND: Rule(_image(_batch_to_space)),
    OperationType.SPACE_TO_BATCH_ND: Rule(_image(_space_to_batch)),
}
