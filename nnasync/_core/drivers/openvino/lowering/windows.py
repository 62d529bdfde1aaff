"""Pooling and resizing of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import Node, Planar, Result, Scope
from nnasync._core.drivers.openvino.lowered import (
    REALS,
    Build,
    Lower,
    OpenVinoUnsupported,
    Rule,
    Rules,
    one,
)
from nnasync._core.drivers.openvino.lowering.elementwise import bounds_of
from nnasync.hal import Array, FusedActivationFunc, OperationType, is_quantized
from nnasync.kernels import Arguments, Tensor
from nnasync.kernels.windows.linear import activation
from nnasync.kernels.windows.window import Window, image_shape, is_nchw, pooling_window, position

Pool = Callable[[Scope, Node, Window], Node]
_FINE = 4096
"""Parts of a step that count when a bilinear result is cut off."""


def _in_layout(arguments: Arguments, build: Callable[[Scope, Node], Node]) -> Build:
    """A build from the NCHW form of the input to that of the output, in either layout."""
    if 0 in arguments.tensor(0).shape:
        raise OpenVinoUnsupported("images without elements are not lowered")
    nchw = is_nchw(arguments)

    def whole(scope: Scope) -> Result:
        result = build(scope, scope.value(0) if nchw else scope.planar(0))
        return result if nchw else Planar(result)

    return one(whole)


def _pooling(pool: Pool, *, keeps: bool = False) -> Lower:
    """Pooling by a function; one that keeps what it selects leaves whole numbers whole."""

    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output, window = outputs[0], pooling_window(arguments)
        fused = activation(arguments, position(arguments, "activation"))
        bounds = bounds_of(fused, output)
        zero = output.zero_point if is_quantized(output.type) else 0
        limits = bounds[0] - zero, bounds[1] - zero
        count = window.height.filter * window.width.filter

        def build(scope: Scope, image: Node) -> Node:
            if scope.in_bfloat16 and is_quantized(output.type) and not keeps and _is_full(window):
                sums = _sum(scope, image, window)
                return scope.quantize(sums, output, 1 / count, bounds, 0.25)
            pooled = pool(scope, image, window)
            if is_quantized(output.type) and not keeps:
                return scope.quantize(pooled, output, 1, bounds, 0.25 / count)
            if keeps and fused == FusedActivationFunc.NONE:
                return pooled
            return scope.limited(pooled, limits)

        return _in_layout(arguments, build)

    return lower


def _geometry(window: Window) -> tuple[list[int], ...]:
    axes = (window.height, window.width)
    return (
        [axis.stride for axis in axes],
        [axis.head for axis in axes],
        [axis.tail for axis in axes],
        [axis.filter for axis in axes],
    )


def _average(scope: Scope, image: Node, window: Window) -> Node:
    strides, heads, tails, filters = _geometry(window)
    return scope.op.avg_pool(image, strides, heads, tails, filters, True, "floor")


def _is_full(window: Window) -> bool:
    """Returns whether no window reaches into the padding."""
    return all(axis.head == axis.tail == 0 for axis in (window.height, window.width))


def _sum(scope: Scope, image: Node, window: Window) -> Node:
    """The sums of windows, as a convolution with ones, which adds in float32.

    A pooling in bfloat16 would round its averages to 8 bits before they are quantized.
    """
    strides, heads, tails, filters = _geometry(window)
    ones = np.ones((tuple(image.shape)[1], 1, 1, *filters), np.float32)
    weights = scope.constant(ones)
    return scope.op.group_convolution(image, weights, strides, heads, tails, [1, 1])


def _largest(scope: Scope, image: Node, window: Window) -> Node:
    strides, heads, tails, filters = _geometry(window)
    return scope.op.max_pool(image, strides, [1, 1], heads, tails, filters, "floor").output(0)


def _root_mean_square(scope: Scope, image: Node, window: Window) -> Node:
    squares = scope.op.multiply(image, image)
    return scope.op.sqrt(_average(scope, squares, window))


class _Grid:
    """The positions of a resized image's pixels over those of the source."""

    __slots__ = ("_align_corners", "_half_pixels", "sizes")

    def __init__(self, arguments: Arguments, output: Tensor) -> None:
        self._align_corners = arguments.flag(position(arguments, "align_corners"))
        self._half_pixels = arguments.flag(position(arguments, "half_pixel_centers"))
        self.sizes = output.shape[2:] if is_nchw(arguments) else output.shape[1:3]

    def nearest(self, size: int, result: int) -> Array:
        """The nearest pixel of the source for each of the result, along one axis."""
        one = int(self._align_corners and result > 1)
        scale = np.float32(size - one) / np.float32(result - one)
        half = np.float32(0.5 if self._half_pixels else 0)
        places = (np.arange(result, dtype=np.float32) + half) * scale
        whole = np.floor(places)
        if self._align_corners:
            whole += places - whole >= 0.5
        found: Array = np.minimum(whole, size - 1).astype(np.int32)
        return found

    def resized(self, scope: Scope, image: Node) -> Node:
        """The image in the new size, with pixels in between interpolated."""
        places = "asymmetric"
        if self._align_corners:
            places = "align_corners"
        elif self._half_pixels:
            places = "half_pixel"
        return scope.op.interpolate(
            image,
            scope.integers(self.sizes),
            "linear_onnx",
            "sizes",
            pads_begin=[0, 0, 0, 0],
            pads_end=[0, 0, 0, 0],
            coordinate_transformation_mode=places,
            nearest_mode="floor",
            antialias=False,
            cube_coeff=-0.75,
            axes=scope.integers((2, 3)),
        )


def _bilinear(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    output = outputs[0]
    grid = _Grid(arguments, output)

    def build(scope: Scope, image: Node) -> Node:
        resized = grid.resized(scope, image)
        return scope.cut_off(resized, output, _FINE) if is_quantized(output.type) else resized

    return _in_layout(arguments, build)


def _nearest(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    """Lowers nearest-neighbor resizing by known places, since OpenVINO rounds some otherwise."""
    grid = _Grid(arguments, outputs[0])
    _, *sizes, _ = image_shape(arguments)

    def build(scope: Scope, image: Node) -> Node:
        for axis, (size, result) in enumerate(zip(sizes, grid.sizes, strict=True), start=2):
            if size != result:
                places = scope.constant(grid.nearest(size, result))
                image = scope.op.gather(image, places, scope.op.constant(np.int64(axis)))
        return image

    return _in_layout(arguments, build)


RULES: Rules = {
    OperationType.AVERAGE_POOL_2D: Rule(_pooling(_average)),
    OperationType.MAX_POOL_2D: Rule(_pooling(_largest, keeps=True)),
    OperationType.L2_POOL_2D: Rule(_pooling(_root_mean_square), REALS),
    OperationType.RESIZE_BILINEAR: Rule(_bilinear),
    OperationType.RESIZE_NEAREST_NEIGHBOR: Rule(_nearest),
}
