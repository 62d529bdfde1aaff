"""To quantized numbers and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.node import Node
from nnasync.hal import OperandType, OperationType
from nnasync.kernels import Tensor


def quantize(graph: LiteRTGraph, node: Node) -> None:
    """Lowers QUANTIZE to the quantization of the output."""
    graph.emit("QUANTIZE", graph.inputs(node, 0), [graph.output(node)], "QuantizeOptions")


def _dequantize(graph: LiteRTGraph, node: Node) -> None:
    """A constant is folded: the engine unpacks it for its own use, and leaves others without."""
    tensor = node.tensor(0)
    if tensor.value is None:
        inputs = graph.inputs(node, 0)
        graph.emit("DEQUANTIZE", inputs, [graph.output(node)], "DequantizeOptions")
        return
    zero_point = np.full(1, tensor.zero_point, np.float32)
    scale = np.full(1, tensor.scale, np.float32)
    if tensor.channel_quant is not None:
        shape = [1] * tensor.rank
        shape[tensor.channel_quant.channel_dim] = -1
        scale = np.asarray(tensor.channel_quant.scales, np.float32).reshape(shape)
    if not graph.is_seen(node.outputs[0]):
        with np.errstate(all="ignore"):
            real = (tensor.value.astype(np.float32) - zero_point) * scale
        graph.define(node, graph.constant(real))
        return
    numbers, centered = (
        graph.like(Tensor(type=OperandType.TENSOR_FLOAT32, shape=tensor.shape)) for _ in range(2)
    )
    graph.emit("CAST", graph.inputs(node, 0), [numbers], "CastOptions")
    graph.emit("SUB", [numbers, graph.constant(zero_point)], [centered], "SubOptions")
    output = [graph.output(node)]
    graph.emit("MUL", [centered, graph.constant(scale)], output, "MulOptions")


LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.QUANTIZE: quantize,
    OperationType.DEQUANTIZE: _dequantize,
}
