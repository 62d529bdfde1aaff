"""Groups of operators that stand for one: dense layers with a bias, and GELU as it is exported.

A product with a constant matrix and the sum with a row behind it is one MatMul with the row as its
third input, which is what the converter of MatMul takes it for.

x / 2 * (1 + erf(x / sqrt(2))) comes as five operators in one of several orders. Each of them is
matched from its Erf on; what is between is used by nobody else.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode

MATCHED = frozenset({"Erf"})
"""Operators that are translated as parts of groups only."""
_ROOT = math.sqrt(2)
_NEAR = 1e-3
"""Constants of float16 are no nearer."""


def with_patterns(graph: OnnxGraph) -> OnnxGraph:
    """The graph with one operator in place of each group that stands for it."""
    finder = _Finder(graph)
    replaced: dict[int, OnnxNode | None] = {}
    for node in graph.nodes:
        if node.type == "Erf":
            replaced |= finder.gelu(node)
        elif node.type == "MatMul":
            replaced |= finder.dense(node)
    if not replaced:
        return graph
    nodes = [replaced.get(node.index, node) for node in graph.nodes]
    return msgspec.structs.replace(graph, nodes=tuple(node for node in nodes if node is not None))


class _Finder:
    """Looks from one operator to those before and behind."""

    def __init__(self, graph: OnnxGraph) -> None:
        self._graph = graph
        self._makers = {name: node for node in graph.nodes for name in node.outputs}
        self._users = {name: node for node in graph.nodes for name in node.reads}
        self._uses = Counter(name for node in graph.nodes for name in node.reads)
        self._uses.update(port.name for port in graph.outputs)

    def dense(self, product: OnnxNode) -> dict[int, OnnxNode | None]:
        """Returns what replaces a product and a sum; empty where they are no dense layer."""
        weights = self._graph.constants.get(product.inputs[1])
        plus = self._only_user(product, "Add")
        if weights is None or weights.ndim != 2 or plus is None or len(product.inputs) > 2:
            return {}
        name = self._other(plus, product)
        bias = self._graph.constants.get(name)
        if bias is None or bias.shape != weights.shape[1:]:
            return {}
        inputs = (*product.inputs, name)
        made = OnnxNode(plus.index, "MatMul", inputs, plus.outputs, product.attributes)
        return {product.index: None, plus.index: made}

    def gelu(self, erf: OnnxNode) -> dict[int, OnnxNode | None]:
        """Returns what replaces the operators around an Erf; empty where they are no GELU."""
        before = self._makers.get(erf.inputs[0])
        x = "" if before is None else self._scaled(before)
        plus = self._only_user(erf, "Add")
        if before is None or not x or plus is None or not self._is(self._other(plus, erf), 1.0):
            return {}
        gone, left = [before, erf, plus], {"x", "half"}
        while left:
            following = self._only_user(gone[-1], "Mul")
            if following is None:
                return {}
            other = self._other(following, gone[-1])
            found = self._factors(other, x)
            if not found or not found <= left:
                return {}
            left -= found
            gone.append(following)
        last = gone[-1]
        made = OnnxNode(last.index, "Gelu", (x,), last.outputs, {})
        kept = () if self._uses[before.outputs[0]] == 1 else (before.index,)
        return {**{node.index: None for node in gone if node.index not in kept}, last.index: made}

    def _factors(self, name: str, x: str) -> set[str]:
        """Returns which factors an operand contributes: x, a half, or both."""
        if name == x:
            return {"x"}
        if self._is(name, 0.5):
            return {"half"}
        return {"x", "half"} if self._half_of(name) == x else set()

    def _scaled(self, node: OnnxNode) -> str:
        """x of an operator that computes x / sqrt(2), or an empty name."""
        if node.type == "Div" and self._is(node.inputs[1], _ROOT):
            return node.inputs[0]
        if node.type == "Mul":
            for name, other in (node.inputs, node.inputs[::-1]):
                if self._is(other, 1 / _ROOT):
                    return name
        return ""

    def _half_of(self, name: str) -> str:
        """x of an operator that computes x / 2, or an empty name."""
        node = self._makers.get(name)
        if node is None or node.type not in ("Mul", "Div"):
            return ""
        if node.type == "Div":
            return node.inputs[0] if self._is(node.inputs[1], 2.0) else ""
        for first, other in (node.inputs, node.inputs[::-1]):
            if self._is(other, 0.5):
                return first
        return ""

    def _only_user(self, node: OnnxNode, type: str) -> OnnxNode | None:
        """The operator of a type that alone uses the result of another."""
        name = node.outputs[0]
        user = self._users.get(name)
        is_one = user is not None and user.type == type and self._uses[name] == 1
        return user if is_one else None

    def _other(self, node: OnnxNode, known: OnnxNode) -> str:
        """The input of an operator of two that another one does not make."""
        return next((name for name in node.inputs if name != known.outputs[0]), "")

    def _is(self, name: str, number: float) -> bool:
        """Returns whether a name stands for a constant number."""
        array = self._graph.constants.get(name)
        return (
            array is not None
            and array.size == 1
            and math.isclose(array.item(), number, rel_tol=_NEAR)
        )
