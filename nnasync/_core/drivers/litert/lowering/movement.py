"""Values moved but not changed: shape, order, slices, padding, blocks of space."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.channel_order import channels_last
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import OperationType, is_quantized
from nnasync.kernels import Tensor


def _reshape(graph: LiteRTGraph, node: Node) -> None:
    graph.reshape(graph.input(node, 0), graph.output(node), graph.result(node).shape)


def _transpose(graph: LiteRTGraph, node: Node) -> None:
    if node.index("perm") is None:
        order = list(range(node.tensor(0).rank))[::-1]
        graph.transpose(graph.input(node, 0), graph.output(node), order)
        return
    inputs = [graph.input(node, 0), graph.parameter(node, "perm")]
    graph.emit("TRANSPOSE", inputs, [graph.output(node)], "TransposeOptions")


def _slice(graph: LiteRTGraph, node: Node) -> None:
    inputs = [graph.input(node, 0), *(graph.parameter(node, each) for each in ("begin", "size"))]
    graph.emit("SLICE", inputs, [graph.output(node)], "SliceOptions")


def _strided_slice(graph: LiteRTGraph, node: Node) -> None:
    """With places counted from the front; a slice that ends before the first one has no end."""
    if any(node.tensor(position).value is None for position in (1, 2, 3)):
        _open_slice(graph, node)
        return
    shape, masks = node.tensor(0).shape, [node.integer(f"{each}_mask") for each in _MASKS]
    begins, ends, end_mask, sizes = [], [], 0, []
    strides = node.integers("strides")
    given = zip(shape, node.integers("begin"), node.integers("end"), strides, strict=True)
    for axis, (size, begin, end, stride) in enumerate(given):
        places = _places(size, begin, end, stride, *(mask >> axis & 1 for mask in masks))
        begins.append(places.start)
        ends.append(max(places.stop, 0))
        sizes.append(len(places))
        if places.stop < 0:
            end_mask |= 1 << axis
    if 0 in sizes:
        raise LiteRTUnsupported("a slice without elements")
    whole = graph.like(graph.result(node), tuple(sizes))
    inputs = [graph.input(node, 0), *(graph.integers(each) for each in (begins, ends, strides))]
    graph.emit("STRIDED_SLICE", inputs, [whole], "StridedSliceOptions", {"EndMask": end_mask})
    graph.reshape(whole, graph.output(node), graph.result(node).shape)


def _open_slice(graph: LiteRTGraph, node: Node) -> None:
    """Places that only a run tells, in the engine's reading of them, which is much the same."""
    places = [graph.parameter(node, each) for each in ("begin", "end", "strides")]
    options = {
        "BeginMask": node.integer("begin_mask"),
        "EndMask": node.integer("end_mask"),
        "ShrinkAxisMask": node.integer("shrink_axis_mask"),
    }
    inputs = [graph.input(node, 0), *places]
    graph.emit("STRIDED_SLICE", inputs, [graph.output(node)], "StridedSliceOptions", options)


_MASKS = ("begin", "end", "shrink_axis")


def _places(
    size: int, begin: int, end: int, stride: int, no_begin: int, no_end: int, shrinks: int
) -> range:
    """The places that are taken along one dimension."""
    low, high = (0, size) if stride > 0 else (-1, size - 1)
    first = (low if stride > 0 else high) if no_begin else _place(begin, size, low, high)
    if shrinks:
        return range(first, first + 1)
    last = (high if stride > 0 else low) if no_end else _place(end, size, low, high)
    return range(first, last, stride)


def _place(index: int, size: int, low: int, high: int) -> int:
    return min(max(index + size if index < 0 else index, low), high)


def _pad(graph: LiteRTGraph, node: Node) -> None:
    inputs = [graph.input(node, 0), graph.parameter(node, "paddings")]
    graph.emit("PAD", inputs, [graph.output(node)], "PadOptions")


def _pad_with(graph: LiteRTGraph, node: Node) -> None:
    tensor = node.tensor(0)
    number = node.arguments.value(2).reshape(1)
    value = number.astype(np.int64).astype(tensor.dtype) if is_quantized(tensor.type) else number
    constant = msgspec.structs.replace(tensor, shape=(1,), value=value)
    inputs = [graph.input(node, 0), graph.parameter(node, "paddings"), graph.add(constant)]
    graph.emit("PADV2", inputs, [graph.output(node)], "PadV2Options")


def _depth_to_space(graph: LiteRTGraph, node: Node) -> None:
    _blocks_of_depth(graph, node, "DEPTH_TO_SPACE", "DepthToSpaceOptions")


def _space_to_depth(graph: LiteRTGraph, node: Node) -> None:
    _blocks_of_depth(graph, node, "SPACE_TO_DEPTH", "SpaceToDepthOptions")


def _blocks_of_depth(graph: LiteRTGraph, node: Node, name: str, table: str) -> None:
    size = node.integer("block_size")

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        if size == 1:
            graph.reshape(source, target, wanted.shape)
        else:
            graph.emit(name, [source], [target], table, {"BlockSize": size})

    channels_last(graph, node, body)


def _batch_to_space(graph: LiteRTGraph, node: Node) -> None:
    if node.tensor(1).value is None and not node.flag("is_nchw"):
        crops = graph.constant(np.zeros((2, 2), np.int32))
        inputs = [graph.input(node, 0), graph.parameter(node, "block_shape"), crops]
        output = [graph.output(node)]
        graph.emit("BATCH_TO_SPACE_ND", inputs, output, "BatchToSpaceNDOptions")
        return

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        crops = graph.constant(np.zeros((2, 2), np.int32))
        inputs = [source, graph.integers(node.integers("block_shape")), crops]
        graph.emit("BATCH_TO_SPACE_ND", inputs, [target], "BatchToSpaceNDOptions")

    channels_last(graph, node, body)


def _space_to_batch(graph: LiteRTGraph, node: Node) -> None:
    if not node.flag("is_nchw"):
        parameters = [graph.parameter(node, each) for each in ("block_shape", "paddings")]
        inputs, output = [graph.input(node, 0), *parameters], [graph.output(node)]
        graph.emit("SPACE_TO_BATCH_ND", inputs, output, "SpaceToBatchNDOptions")
        return

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        paddings = np.asarray(node.integers("paddings"), np.int32).reshape(2, 2)
        block = graph.integers(node.integers("block_shape"))
        inputs = [source, block, graph.constant(paddings)]
        graph.emit("SPACE_TO_BATCH_ND", inputs, [target], "SpaceToBatchNDOptions")

    channels_last(graph, node, body)


def _fill(graph: LiteRTGraph, node: Node) -> None:
    value = node.arguments.value(1).reshape(())
    number = value.astype(np.float32) if value.dtype.kind == "f" else value
    inputs = [graph.parameter(node, "dims"), graph.constant(np.asarray(number))]
    graph.emit("FILL", inputs, [graph.output(node)], "FillOptions")


LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.RESHAPE: _reshape,
    OperationType.SQUEEZE: _reshape,
    OperationType.EXPAND_DIMS: _reshape,
    OperationType.TRANSPOSE: _transpose,
    OperationType.SLICE: _slice,
    OperationType.STRIDED_SLICE: _strided_slice,
    OperationType.PAD: _pad,
    OperationType.PAD_V2: _pad_with,
    OperationType.DEPTH_TO_SPACE: _depth_to_space,
    OperationType.SPACE_TO_DEPTH: _space_to_depth,
    OperationType.BATCH_TO_SPACE_ND: _batch_to_space,
    OperationType.SPACE_TO_BATCH_ND: _space_to_batch,
    OperationType.FILL: _fill,
}
