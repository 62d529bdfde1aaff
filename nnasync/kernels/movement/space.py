"""Blocks of pixels: DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND and SPACE_TO_BATCH_ND.

All four split the height and width of an image into blocks, [N, H, bh, W, bw, C], where the rows
and columns within a block go to, or come from, the channels or the batch. NCHW data is seen as NHWC
by a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.facts import STRICT
from nnasync.kernels.movement.copying import like, moving, needs_zero_point, sizes
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
from nnasync.kernels.steps import Call, copy, sequence
from nnasync.kernels.uniform import FROM_1_0, FROM_1_1, signatures

_BLOCK_SIZE = Parameter("block_size", OperandType.INT32)
_BLOCK_SHAPE = Parameter("block_shape", OperandType.TENSOR_INT32, ranks=(1,))
_PADDINGS = Parameter("paddings", OperandType.TENSOR_INT32, ranks=(2,))
_LAYOUT = Parameter("is_nchw", OperandType.BOOL)


def _signatures(types: Mapping[OperandType, HalVersion], *options: Parameter) -> list[Signature]:
    """Without a layout flag, and with one since HAL 1.2."""
    late = {type: max(since, HalVersion.V1_2) for type, since in types.items()}
    return [
        *signatures(types, ["input"], *options, ranks=(4,)),
        *signatures(late, ["input"], *options, _LAYOUT, ranks=(4,)),
    ]


def _nhwc(array: Array, *, nchw: bool) -> Array:
    return array.transpose(0, 2, 3, 1) if nchw else array


def _shape(arguments: Arguments, layout: int) -> Shape:
    """The shape of the input as NHWC; argument `layout` is the flag."""
    n, a, b, c = arguments.tensor(0, 4).shape
    return (n, b, c, a) if arguments.flag(layout) else (n, a, b, c)


def _result(arguments: Arguments, layout: int, shape: Shape) -> list[Tensor]:
    n, h, w, c = shape
    return [like(arguments.tensor(0), (n, c, h, w) if arguments.flag(layout) else (n, h, w, c))]


def _in_blocks(image: Array, block: tuple[int, int], *, nchw: bool) -> Array:
    """The view [N, H, bh, W, bw, C] of an image."""
    view = _nhwc(image, nchw=nchw)
    n, h, w, c = view.shape
    return view.reshape(n, h // block[0], block[0], w // block[1], block[1], c)


def _with_depth(image: Array, size: int, *, nchw: bool) -> Array:
    """Returns a view of an image by blocks of `size` in its channels."""
    view = _nhwc(image, nchw=nchw)
    n, h, w, c = view.shape
    return view.reshape(n, h, w, size, size, c // size**2).transpose(0, 1, 3, 2, 4, 5)


def _with_batch(images: Array, block: tuple[int, int], *, nchw: bool) -> Array:
    """Returns a view of images by blocks in their batch."""
    view = _nhwc(images, nchw=nchw)
    n, h, w, c = view.shape
    return view.reshape(*block, n // (block[0] * block[1]), h, w, c).transpose(2, 3, 0, 4, 1, 5)


def _check_multiple(arguments: Arguments, what: str, size: int, divisor: int) -> None:
    if size % divisor:
        raise arguments.error(0, f"has {what} {size}, expected a multiple of {divisor}")


def _depth_to_space_rule(arguments: Arguments) -> list[Tensor]:
    n, h, w, c = _shape(arguments, 2)
    size = arguments.integer(1, 1)
    _check_multiple(arguments, "depth", c, size**2)
    return _result(arguments, 2, (n, h * size, w * size, c // size**2))


def _depth_to_space(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    size, nchw = arguments.integer(1), arguments.flag(2)
    return moving(
        lambda target, source: (
            _in_blocks(target, (size, size), nchw=nchw),
            _with_depth(source, size, nchw=nchw),
        )
    )


def _space_to_depth_rule(arguments: Arguments) -> list[Tensor]:
    n, h, w, c = _shape(arguments, 2)
    size = arguments.integer(1, 1)
    _check_multiple(arguments, "height", h, size)
    _check_multiple(arguments, "width", w, size)
    return _result(arguments, 2, (n, h // size, w // size, c * size**2))


def _space_to_depth(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    size, nchw = arguments.integer(1), arguments.flag(2)
    return moving(
        lambda target, source: (
            _with_depth(target, size, nchw=nchw),
            _in_blocks(source, (size, size), nchw=nchw),
        )
    )


def _block(arguments: Arguments) -> tuple[int, int]:
    height, width = sizes(arguments, 1, 1, 2)
    return height, width


def _batch_to_space_rule(arguments: Arguments) -> list[Tensor]:
    n, h, w, c = _shape(arguments, 2)
    rows, columns = _block(arguments)
    _check_multiple(arguments, "batch", n, rows * columns)
    return _result(arguments, 2, (n // (rows * columns), h * rows, w * columns, c))


def _batch_to_space(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    block, nchw = _block(arguments), arguments.flag(2)
    return moving(
        lambda target, source: (
            _in_blocks(target, block, nchw=nchw),
            _with_batch(source, block, nchw=nchw),
        )
    )


def _borders(arguments: Arguments) -> tuple[int, ...]:
    """Top, bottom, left, right."""
    arguments.check_shape(2, (2, 2))
    return sizes(arguments, 2, 0, 4)


def _space_to_batch_rule(arguments: Arguments) -> list[Tensor]:
    n, h, w, c = _shape(arguments, 3)
    rows, columns = _block(arguments)
    top, bottom, left, right = _borders(arguments)
    height, width = top + h + bottom, left + w + right
    _check_multiple(arguments, "padded height", height, rows)
    _check_multiple(arguments, "padded width", width, columns)
    return _result(arguments, 3, (n * rows * columns, height // rows, width // columns, c))


def _space_to_batch(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    block, borders, nchw = _block(arguments), _borders(arguments), arguments.flag(3)
    source = arguments.tensor(0)
    zero = np.asarray(source.zero_point, source.dtype)
    n, h, w, c = _shape(arguments, 3)
    top, bottom, left, right = borders
    padded = ArraySpec((n, top + h + bottom, left + w + right, c), source.dtype)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = _with_batch(outputs[0], block, nchw=nchw)
        if not scratch:
            return sequence([copy(target, _in_blocks(inputs[0], block, nchw=nchw))])
        inside = scratch[0][:, top : top + h, left : left + w]
        calls: list[Call] = [copy(scratch[0], zero), copy(inside, _nhwc(inputs[0], nchw=nchw))]
        return sequence([*calls, copy(target, _in_blocks(scratch[0], block, nchw=False))])

    return Kernel(bind, [padded] if any(borders) else [])


BATCH_TO_SPACE_ND = Operation(
    OperationType.BATCH_TO_SPACE_ND,
    _signatures(FROM_1_1, _BLOCK_SHAPE),
    _batch_to_space_rule,
    _batch_to_space,
    moves=True,
    facts=STRICT,
)
DEPTH_TO_SPACE = Operation(
    OperationType.DEPTH_TO_SPACE,
    _signatures(FROM_1_0, _BLOCK_SIZE),
    _depth_to_space_rule,
    _depth_to_space,
    moves=True,
    facts=STRICT,
)
SPACE_TO_BATCH_ND = Operation(
    OperationType.SPACE_TO_BATCH_ND,
    _signatures(FROM_1_1, _BLOCK_SHAPE, _PADDINGS),
    _space_to_batch_rule,
    _space_to_batch,
    moves=True,
    requires=needs_zero_point,
    facts=STRICT,
)
SPACE_TO_DEPTH = Operation(
    OperationType.SPACE_TO_DEPTH,
    _signatures(FROM_1_0, _BLOCK_SIZE),
    _space_to_depth_rule,
    _space_to_depth,
    moves=True,
    facts=STRICT,
)
