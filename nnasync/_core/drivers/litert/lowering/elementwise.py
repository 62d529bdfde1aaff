"""Arithmetic, comparison, logic, selection and functions of single numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import rescaled, reshaped, retyped
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import FusedActivationFunc, OperandType, OperationType, is_quantized
from nnasync.kernels import Tensor

_INTEGER, _BOOLEAN = OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8
_REAL = OperandType.TENSOR_FLOAT32
_UNSIGNED = OperandType.TENSOR_QUANT8_ASYMM
_SIGNED = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_SUM_SHIFT = 20
_LARGEST_RATIO, _LARGEST_FACTOR, _LARGEST_SLOPE = 64, 0.5, 2**15
_TABLES = {
    OperationType.ADD: ("ADD", "AddOptions"),
    OperationType.SUB: ("SUB", "SubOptions"),
    OperationType.MUL: ("MUL", "MulOptions"),
    OperationType.DIV: ("DIV", "DivOptions"),
}


def _arithmetic(graph: LiteRTGraph, node: Node) -> None:
    name, table = _TABLES[OperationType(node.type)]
    activation = node.integer("activation")
    if is_quantized(node.tensor(0).type):
        _check_scales(graph, node)
    if node.type == OperationType.MUL and node.tensor(0).type == _UNSIGNED:
        _product(graph, node, activation)
        return
    inputs, output = graph.inputs(node, 0, 1), graph.output(node)
    if node.type == OperationType.DIV and node.tensor(0).type == _INTEGER:
        divisor = node.tensor(1).value
        if divisor is None or not divisor.all():
            raise LiteRTUnsupported("integers divided by what may be 0")
        name, table = "FLOOR_DIV", "FloorDivOptions"
    if node.tensor(0).type == _INTEGER:
        if activation != FusedActivationFunc.NONE:
            raise LiteRTUnsupported("integers with an activation")
        graph.emit(name, inputs, [output], table)
        return
    graph.emit(name, inputs, [output], table, {"FusedActivationFunction": activation})


def _product(graph: LiteRTGraph, node: Node, activation: int) -> None:
    """Unsigned products that may leave 16 bits are made of signed bytes: the engine's wrap."""
    a, b, result = node.tensor(0), node.tensor(1), graph.result(node)
    inputs, output = graph.inputs(node, 0, 1), graph.output(node)
    options = {"FusedActivationFunction": activation}
    if a.scale * b.scale / result.scale < _LARGEST_FACTOR:
        graph.emit("MUL", inputs, [output], "MulOptions", options)
        return
    signed = [
        graph.quantized(source, reshaped(retyped(tensor, _SIGNED), tensor.shape))
        for source, tensor in zip(inputs, (a, b), strict=True)
    ]
    product = graph.like(retyped(result, _SIGNED))
    graph.emit("MUL", signed, [product], "MulOptions", options)
    graph.emit("QUANTIZE", [product], [output], "QuantizeOptions")


def _check_scales(graph: LiteRTGraph, node: Node) -> None:
    """Raise Unsupported where the engine's sums or products overflow, or it aborts the process."""
    a, b, result = node.tensor(0), node.tensor(1), graph.result(node)
    ratio = max(a.scale, b.scale) / result.scale
    if node.type == OperationType.MUL:
        factor = a.scale * b.scale / result.scale
    else:
        factor = 2 * ratio / 2**_SUM_SHIFT
        if node.type == OperationType.ADD and ratio >= _LARGEST_RATIO:
            raise LiteRTUnsupported("a scale of an input far above that of the output")
    if not 0 < factor < 1:
        raise LiteRTUnsupported("scales of inputs too large for that of the output")


def _power(graph: LiteRTGraph, node: Node) -> None:
    graph.emit("POW", graph.inputs(node, 0, 1), [graph.output(node)], "PowOptions")


def _extremum(graph: LiteRTGraph, node: Node) -> None:
    name = OperationType(node.type).name
    inputs = [in_scale_of_result(graph, node, position) for position in (0, 1)]
    graph.emit(name, inputs, [graph.output(node)], "MaximumMinimumOptions")


def in_scale_of_result(graph: LiteRTGraph, node: Node, position: int) -> int:
    """An input in the quantization of the output."""
    given, wanted = node.tensor(position), graph.result(node)
    source = graph.input(node, position)
    same = (given.scale, given.zero_point) == (wanted.scale, wanted.zero_point)
    if same or not is_quantized(given.type):
        return source
    real = graph.dequantized(source, given)  # Straight, the engine rounds more coarsely.
    return graph.quantized(real, rescaled(given, wanted))


def _prelu(graph: LiteRTGraph, node: Node) -> None:
    if node.tensor(0).shape != graph.result(node).shape:
        raise LiteRTUnsupported("an input that is broadcast to the shape of alpha")
    given, alpha, result = node.tensor(0), node.tensor(1), graph.result(node)
    if is_quantized(given.type):
        largest = max(given.scale, given.scale * alpha.scale) / result.scale
        if largest >= _LARGEST_SLOPE:
            raise LiteRTUnsupported("a product far above the scale of the output")
    graph.emit("PRELU", graph.inputs(node, 0, 1), [graph.output(node)])


_COMPARISONS = {
    OperationType.EQUAL: "EqualOptions",
    OperationType.NOT_EQUAL: "NotEqualOptions",
    OperationType.LESS: "LessOptions",
    OperationType.LESS_EQUAL: "LessEqualOptions",
    OperationType.GREATER: "GreaterOptions",
    OperationType.GREATER_EQUAL: "GreaterEqualOptions",
}


def _comparison(graph: LiteRTGraph, node: Node) -> None:
    """Lowers a comparison: quantized numbers by their real values, booleans as integers."""
    type = OperationType(node.type)
    inputs = [graph.exact(node, position) for position in (0, 1)]
    for position in (0, 1):
        tensor = node.tensor(position)
        if is_quantized(tensor.type):
            inputs[position] = graph.dequantized(inputs[position], tensor)
        elif tensor.type == _BOOLEAN and tensor.value is not None:
            # Where XNNPACK runs parts of a graph, LiteRT loses what a cast of a constant gave.
            inputs[position] = graph.constant(tensor.value.astype(np.int32))
        elif tensor.type == _BOOLEAN:
            number = graph.like(Tensor(type=_INTEGER, shape=tensor.shape))
            graph.emit("CAST", [inputs[position]], [number], "CastOptions")
            inputs[position] = number
    graph.emit(type.name, inputs, [graph.output(node)], _COMPARISONS[type])


def _logical(graph: LiteRTGraph, node: Node) -> None:
    name = OperationType(node.type).name
    inputs = graph.inputs(node, *range(len(node.inputs)))
    tables = {"LOGICAL_AND": "LogicalAndOptions", "LOGICAL_OR": "LogicalOrOptions"}
    graph.emit(name, inputs, [graph.output(node)], tables.get(name, "LogicalNotOptions"))


def _select(graph: LiteRTGraph, node: Node) -> None:
    inputs = [graph.input(node, 0)]
    inputs += [in_scale_of_result(graph, node, position) for position in (1, 2)]
    graph.emit("SELECT", inputs, [graph.output(node)], "SelectOptions")


def _function(graph: LiteRTGraph, node: Node) -> None:
    name = OperationType(node.type).name
    graph.emit(name, graph.inputs(node, 0), [graph.output(node)])


def _floor(graph: LiteRTGraph, node: Node) -> None:
    graph.emit("FLOOR", [graph.exact(node, 0)], [graph.output(node)])


def _cast(graph: LiteRTGraph, node: Node) -> None:
    """To 8 bits values are limited first, as the engine would take their lowest bits."""
    given, wanted = node.tensor(0), graph.result(node)
    source, target = graph.exact(node, 0), graph.output(node)
    halves = (OperandType.TENSOR_FLOAT16, _REAL)
    if given.type == wanted.type or (given.type in halves and wanted.type in halves):
        if (given.scale, given.zero_point) != (wanted.scale, wanted.zero_point):
            raise LiteRTUnsupported("the same type in another scale")
        graph.reshape(source, target, given.shape)
        return
    if is_quantized(wanted.type):
        for name, limit in (("MAXIMUM", 0), ("MINIMUM", 255)):
            dtype = np.int32 if given.type == _INTEGER else np.float32
            limited = graph.like(given)
            inputs = [source, graph.constant(np.full(1, limit, dtype))]
            graph.emit(name, inputs, [limited], "MaximumMinimumOptions")
            source = limited
    graph.emit("CAST", [source], [target], "CastOptions")


LOWERINGS: Mapping[OperationType, Lower] = {
    **dict.fromkeys(_TABLES, _arithmetic),
    OperationType.POW: _power,
    OperationType.MAXIMUM: _extremum,
    OperationType.MINIMUM: _extremum,
    OperationType.PRELU: _prelu,
    **dict.fromkeys(_COMPARISONS, _comparison),
    OperationType.LOGICAL_AND: _logical,
    OperationType.LOGICAL_OR: _logical,
    OperationType.LOGICAL_NOT: _logical,
    OperationType.SELECT: _select,
    OperationType.ABS: _function,
    OperationType.EXP: _function,
    OperationType.FLOOR: _floor,
    OperationType.LOG: _function,
    OperationType.NEG: _function,
    OperationType.RSQRT: _function,
    OperationType.SIN: _function,
    OperationType.SQRT: _function,
    OperationType.CAST: _cast,
}
