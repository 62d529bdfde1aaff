"""Operators of integers in terms of floats: QLinearConv becomes dequantize, convolve, quantize.

ONNX has two notations for quantized networks. The other one, pairs of QuantizeLinear and
DequantizeLinear around float operators, is what the converters understand: they make quantized
operations of it where the HAL has them. The operators that quantize while they run, such as
DynamicQuantizeLinear and MatMulInteger, become arithmetic of floats that are whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode
from nnasync.errors import ModelError
from nnasync.hal import Array

_FLOAT, _INT32 = 1, 6
_SMALLEST = np.float32(1e-30)
"""The scale of values that are all zero must not be zero."""
_VENDOR = "com.microsoft."


def with_floats(graph: OnnxGraph, failed: dict[int, str] | None = None) -> OnnxGraph:
    """The graph without operators of integers that there are others for.

    Raises ModelError that says of which operator that is not possible; if there is `failed` the
    reasons are added there, by index, and these operators are left out.
    """
    if not any(node.type in QUANTIZED_FORMS for node in graph.nodes):
        return graph
    rewriting = _Rewriting(graph)
    for node in graph.nodes:
        form = QUANTIZED_FORMS.get(node.type)
        if form is None:
            rewriting.nodes.append(node)
            continue
        try:
            rewriting.rewrite(form, node)
        except ModelError as error:
            if failed is None:
                raise
            failed[node.index] = str(error)
    return msgspec.structs.replace(
        graph, nodes=tuple(rewriting.nodes), constants=rewriting.constants
    )


class _Rewriting:
    """The nodes and constants of a graph while it is rewritten."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, Array] = dict(graph.constants)
        self._next = max((node.index for node in graph.nodes), default=0) + 1
        self._origin = 0
        self.readers: dict[str, list[OnnxNode]] = {}
        for node in graph.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)
        self.outputs = {port.name for port in graph.outputs}

    def rewrite(self, form: Form, node: OnnxNode) -> None:
        """Replace an operator; raises ModelError, and leaves nothing of it then."""
        before, self._origin = len(self.nodes), node.place
        try:
            form(self, node)
        except ModelError as error:
            del self.nodes[before:]
            raise ModelError(f"node {node.index} ({node.type}): {error}") from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            del self.nodes[before:]
            raise ModelError(f"node {node.index} ({node.type}) is broken: {error}") from error

    def add(
        self,
        type: str,
        inputs: Sequence[str],
        output: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a node of one output; returns its name."""
        output = output or f"{type}~{self._next}"
        self.nodes.append(
            OnnxNode(
                self._next,
                type,
                tuple(inputs),
                (output,),
                dict(attributes or {}),
                origin=self._origin,
            )
        )
        self._next += 1
        return output

    def constant(self, value: npt.ArrayLike) -> str:
        """The name of a new constant."""
        name = f"constant~{self._next}"
        self._next += 1
        self.constants[name] = np.asarray(value)
        return name

    def known(self, name: str, what: str) -> Array:
        """The value of a constant."""
        if name not in self.constants:
            raise ModelError(f"its {what} must be constant")
        return self.constants[name]

    def real(self, parameters: Sequence[str], axis: int | None = None) -> str:
        """Integers, given with scale and zero point, as the floats that they stand for."""
        attributes = {} if axis is None else {"axis": axis}
        return self.add("DequantizeLinear", parameters, attributes=attributes)

    def whole(self, value: str, parameters: Sequence[str], output: str) -> None:
        """Floats as integers of a scale and zero point."""
        self.add("QuantizeLinear", [value, *parameters], output)


Form = Callable[[_Rewriting, OnnxNode], None]


def _named(node: OnnxNode, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ""


def _convolution(graph: _Rewriting, node: OnnxNode) -> None:
    x, weights, result = node.inputs[0:3], node.inputs[3:6], node.inputs[6:8]
    inputs = [graph.real(x), graph.real(weights, axis=0)]
    if _named(node, 8):
        inputs.append(_bias(graph, node.inputs[8], x[1], weights[1]))
    real = graph.add("Conv", inputs, attributes=node.attributes)
    graph.whole(real, result, node.outputs[0])


def _bias(graph: _Rewriting, bias: str, x_scale: str, weights_scale: str) -> str:
    """A bias in units of the products."""
    scales = (graph.known(name, "scale") for name in (x_scale, weights_scale))
    product = np.multiply(*(np.asarray(scale, np.float32) for scale in scales))
    numbers = graph.known(bias, "bias")
    scale = np.broadcast_to(product.reshape(-1), (numbers.size,))
    zeros = np.zeros(numbers.size, np.int32)
    parameters = [bias, graph.constant(np.ascontiguousarray(scale)), graph.constant(zeros)]
    return graph.real(parameters, axis=0)


def _product(graph: _Rewriting, node: OnnxNode) -> None:
    a, b, result = node.inputs[0:3], node.inputs[3:6], node.inputs[6:8]
    real = graph.add("MatMul", [graph.real(a), graph.real(b, axis=-1)])
    graph.whole(real, result, node.outputs[0])


def _gemm(graph: _Rewriting, node: OnnxNode) -> None:
    a, b, bias = node.inputs[0:3], node.inputs[3:6], _named(node, 6)
    axis = 0 if node.attribute("transB", 0) else 1
    inputs = [graph.real(a), graph.real(b, axis=axis)]
    if bias:
        inputs.append(_bias(graph, bias, a[1], b[1]))
    if not _named(node, 7):
        graph.add("Gemm", inputs, node.outputs[0], node.attributes)
        return
    real = graph.add("Gemm", inputs, attributes=node.attributes)
    graph.whole(real, node.inputs[7:9], node.outputs[0])


def _of_two(type: str) -> Form:
    def rewrite(graph: _Rewriting, node: OnnxNode) -> None:
        inputs = [graph.real(node.inputs[0:3]), graph.real(node.inputs[3:6])]
        graph.whole(graph.add(type, inputs), node.inputs[6:8], node.outputs[0])

    return rewrite


def _of_one(type: str) -> Form:
    def rewrite(graph: _Rewriting, node: OnnxNode) -> None:
        if node.attribute("channels_last", 0):
            raise ModelError("has its channels last")
        attributes = {
            name: value
            for name, value in node.attributes.items()
            if name not in ("channels_last", "opset")
        }
        real = graph.add(type, [graph.real(node.inputs[0:3])], attributes=attributes)
        graph.whole(real, node.inputs[3:5], node.outputs[0])

    return rewrite


def _softmax(graph: _Rewriting, node: OnnxNode) -> None:
    if node.attribute("opset", 13) < 13 and node.attribute("axis", -1) != -1:
        raise ModelError("normalizes over several axes")
    real = graph.add(
        "Softmax", [graph.real(node.inputs[0:3])], attributes={"axis": node.attribute("axis", -1)}
    )
    graph.whole(real, node.inputs[3:5], node.outputs[0])


def _concatenation(graph: _Rewriting, node: OnnxNode) -> None:
    parts = node.inputs[2:]
    inputs = [graph.real(parts[at : at + 3]) for at in range(0, len(parts), 3)]
    real = graph.add("Concat", inputs, attributes=node.attributes)
    graph.whole(real, node.inputs[0:2], node.outputs[0])


# -- operators that find their scale while they run


def _dynamic(graph: _Rewriting, node: OnnxNode) -> None:
    """Bytes of a scale that spans the values: the arithmetic that ONNX defines it by."""
    x, (whole, scale, zero_point) = node.inputs[0], _outputs(graph, node, 3)
    zero = graph.constant(np.float32(0))
    low = graph.add("Min", [graph.add("ReduceMin", [x], attributes={"keepdims": 0}), zero])
    high = graph.add("Max", [graph.add("ReduceMax", [x], attributes={"keepdims": 0}), zero])
    steps = graph.constant(np.float32(1 / 255))
    span = graph.add("Mul", [graph.add("Sub", [high, low]), steps])
    graph.add("Max", [span, graph.constant(_SMALLEST)], scale)
    bytes_ = [graph.constant(np.float32(1)), graph.constant(np.uint8(0))]
    graph.whole(graph.add("Div", [graph.add("Neg", [low]), scale]), bytes_, zero_point)
    shift = graph.add("Cast", [zero_point], attributes={"to": _FLOAT})
    graph.whole(graph.add("Add", [graph.add("Div", [x, scale]), shift]), bytes_, whole)


def _outputs(graph: _Rewriting, node: OnnxNode, count: int) -> list[str]:
    names = [*node.outputs, *[""] * (count - len(node.outputs))]
    return [name or f"unused~{node.index}.{place}" for place, name in enumerate(names)]


def _matmul_integer(graph: _Rewriting, node: OnnxNode) -> None:
    inputs = [
        _centered(graph, node.inputs[0], _named(node, 2), -2),
        _centered(graph, node.inputs[1], _named(node, 3), -1),
    ]
    _sums(graph, "MatMul", inputs, node)


def _conv_integer(graph: _Rewriting, node: OnnxNode) -> None:
    inputs = [
        _centered(graph, node.inputs[0], _named(node, 2), -1),
        _centered(graph, node.inputs[1], _named(node, 3), 0),
    ]
    _sums(graph, "Conv", inputs, node, node.attributes)


def _centered(graph: _Rewriting, name: str, zero_point: str, axis: int) -> str:
    """Integers less their zero point, as floats; zero points may be one per index of an axis."""
    if name in graph.constants and (not zero_point or zero_point in graph.constants):
        numbers = graph.constants[name].astype(np.float32)
        zeros = np.asarray(graph.constants.get(zero_point, 0), np.float32)
        if zeros.size > 1 and zeros.ndim == 1:
            shape = [1] * numbers.ndim
            shape[axis] = zeros.size
            zeros = zeros.reshape(shape)
        return graph.constant(numbers - zeros)
    real = graph.add("Cast", [name], attributes={"to": _FLOAT})
    if not zero_point:
        return real
    return graph.add("Sub", [real, graph.add("Cast", [zero_point], attributes={"to": _FLOAT})])


def _sums(
    graph: _Rewriting,
    type: str,
    inputs: Sequence[str],
    node: OnnxNode,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """A sum of products of whole numbers; it stays one of floats where only floats are wanted."""
    (name,) = node.outputs
    readers = graph.readers.get(name, [])
    are_casts = all(each.type == "Cast" and each.attribute("to", 0) == _FLOAT for each in readers)
    if readers and are_casts and name not in graph.outputs:
        graph.add(type, inputs, name, attributes)
        return
    real = graph.add(type, inputs, attributes=attributes)
    graph.add("Cast", [real], name, {"to": _INT32})


def _standard(type: str) -> Form:
    """An operator of the vendor that is the standard one under another name."""

    def rewrite(graph: _Rewriting, node: OnnxNode) -> None:
        graph.nodes.append(msgspec.structs.replace(node, type=type, origin=node.place))

    return rewrite


QUANTIZED_FORMS: dict[str, Form] = {
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "DynamicQuantizeLinear": _dynamic,
    f"{_VENDOR}QGemm": _gemm,
    f"{_VENDOR}QLinearAdd": _of_two("Add"),
    f"{_VENDOR}QLinearMul": _of_two("Mul"),
    f"{_VENDOR}QLinearSigmoid": _of_one("Sigmoid"),
    f"{_VENDOR}QLinearLeakyRelu": _of_one("LeakyRelu"),
    f"{_VENDOR}QLinearAveragePool": _of_one("AveragePool"),
    f"{_VENDOR}QLinearGlobalAveragePool": _of_one("GlobalAveragePool"),
    f"{_VENDOR}QLinearSoftmax": _softmax,
    f"{_VENDOR}QLinearConcat": _concatenation,
    f"{_VENDOR}QuantizeLinear": _standard("QuantizeLinear"),
    f"{_VENDOR}DequantizeLinear": _standard("DequantizeLinear"),
}
"""How each operator of integers becomes others."""
