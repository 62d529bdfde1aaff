"""Padding of images: as a scheme that the engine knows, or as an operator before the window."""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph
from nnasync._core.drivers.litert.operands import reshaped
from nnasync.hal import Array
from nnasync.kernels import Tensor
from nnasync.kernels.windows.window import Axis, Window, same_padding

SAME, VALID = 0, 1


def scheme_of(window: Window) -> int | None:
    """The scheme that gives this window, None if none does."""
    axes = (window.height, window.width)
    if all(axis.head == 0 and axis.output == _valid(axis) for axis in axes):
        return VALID
    if all(_is_same(axis) for axis in axes):
        return SAME
    return None


def windowed(graph: LiteRTGraph, source: int, given: Tensor, window: Window) -> tuple[int, int]:
    """The source of a window, padded with zeros where no scheme does, and the scheme."""
    scheme = scheme_of(window)
    if scheme is not None:
        return source, scheme
    return pad_image(graph, source, given, window, None)[0], VALID


def pad_image(
    graph: LiteRTGraph, source: int, given: Tensor, window: Window, value: Array | None
) -> tuple[int, Tensor]:
    """The image with its padding, of zeros where no value is given."""
    height, width = window.height, window.width
    pads = ((0, 0), (height.head, height.tail), (width.head, width.tail), (0, 0))
    shape = tuple(size + head + tail for size, (head, tail) in zip(given.shape, pads, strict=True))
    padded = reshaped(given, shape)
    target = graph.like(padded)
    inputs = [source, graph.constant(np.asarray(pads, np.int32))]
    if value is None:
        graph.emit("PAD", inputs, [target], "PadOptions")
    else:
        constant = msgspec.structs.replace(given, shape=value.shape, value=value)
        graph.emit("PADV2", [*inputs, graph.add(constant)], [target], "PadV2Options")
    return target, padded


def _valid(axis: Axis) -> int:
    return (axis.input - axis.extent) // axis.stride + 1


def _is_same(axis: Axis) -> bool:
    if axis.output != -(-axis.input // axis.stride):
        return False
    return axis.head == same_padding(axis.input, axis.stride, axis.extent)[0]
