"""The operations of org.nnasync.tflite, which are the engine's own."""

from __future__ import annotations

from collections.abc import Mapping

from nnasync._core.drivers.litert.flatbuffer import FileTensor
from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.litert_program import Copy
from nnasync._core.drivers.litert.lowering.quantization import quantize
from nnasync._core.drivers.litert.node import Node
from nnasync._core.formats.litert_limits import LiteRTUnsupported, check_scales
from nnasync.extensions import TfliteOperation
from nnasync.hal import OperandType

_TANH = 4
_WORDS = OperandType.TENSOR_QUANT16_SYMM
_STATE, _CELLS = 18, 19
_WEIGHTS, _NORMS = range(1, 18), range(20, 24)
_INTERMEDIATE = ("input", "forget", "cell", "output")


def _dequantize(graph: LiteRTGraph, node: Node) -> None:
    graph.emit("DEQUANTIZE", graph.inputs(node, 0), [graph.output(node)], "DequantizeOptions")


def _softmax(graph: LiteRTGraph, node: Node) -> None:
    options = {"Beta": node.number("beta")}
    graph.emit("SOFTMAX", graph.inputs(node, 0), [graph.output(node)], "SoftmaxOptions", options)


def _svdf(graph: LiteRTGraph, node: Node) -> None:
    """Only with time weights and a state of 16 bits: of 8 bits the engine corrupts its memory."""
    if node.tensor(4).type != _WORDS:
        raise LiteRTUnsupported("a state of 8 bits")
    options = {
        "Rank": node.integer("rank"),
        "FusedActivationFunction": node.integer("activation"),
    }
    inputs = [*graph.inputs(node, *range(4)), graph.state(node, 4, 0, Copy.BYTES)]
    graph.emit("SVDF", inputs, [graph.output(node, 1)], "SVDFOptions", options)


def _lstm(graph: LiteRTGraph, node: Node) -> None:
    """The engine adds up constant weights before the first run, and takes others for those too."""
    for position in (*_WEIGHTS, *_NORMS):
        tensor = node.arguments.optional(position)
        if tensor is not None and tensor.value is None:
            raise LiteRTUnsupported(f"input {position} is only known in a run")
    outputs, cells = node.tensor(_STATE).shape[-1], node.tensor(_CELLS).shape[-1]
    if outputs > cells:
        raise LiteRTUnsupported(
            "a projection to more numbers than there are cells: memory is short"
        )
    inputs = graph.inputs(node, *range(18))
    inputs.append(graph.state(node, _STATE, 1, Copy.BYTES))
    inputs.append(graph.state(node, _CELLS, 2, Copy.BYTES))
    norm = graph.inputs(node, *_NORMS)
    inputs += norm if any(weights >= 0 for weights in norm) else []
    options = {
        "FusedActivationFunction": _TANH,
        "CellClip": node.number("cell_clip"),
        "ProjClip": node.number("projection_clip"),
        "TimeMajor": node.flag("is_time_major"),
    }
    graph.file.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        [graph.output(node)],
        "UnidirectionalSequenceLSTMOptions",
        options,
        _intermediates(graph, node),
    )


def _intermediates(graph: LiteRTGraph, node: Node) -> list[int]:
    """Tensors without values, whose scales are those of the gates' sums and the hidden state."""
    gates = [
        FileTensor("INT16", (), (node.number(f"{name}_intermediate_scale"),), (0,))
        for name in _INTERMEDIATE
    ]
    zero_point = node.integer("hidden_state_zero_point")
    hidden = FileTensor("INT8", (), (node.number("hidden_state_scale"),), (zero_point,))
    for tensor in (*gates, hidden):
        check_scales(tensor.scales)
    return [graph.file.tensor(tensor) for tensor in (*gates, hidden)]


LOWERINGS: Mapping[TfliteOperation, Lower] = {
    TfliteOperation.QUANTIZE: quantize,
    TfliteOperation.DEQUANTIZE: _dequantize,
    TfliteOperation.SOFTMAX: _softmax,
    TfliteOperation.SVDF: _svdf,
    TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM: _lstm,
}
