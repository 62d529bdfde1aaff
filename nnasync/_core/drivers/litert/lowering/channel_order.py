"""Dimensions in the order that the engine wants: channels last, or an axis last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnasync._core.drivers.litert.graph import LiteRTGraph
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import reshaped
from nnasync.kernels import Tensor

Body = Callable[[int, Tensor, int, Tensor], None]
"""Lowers an operation from a source to a target, given as tensors of the file and in shape."""

_TO_NHWC = (0, 2, 3, 1)


def channels_last(graph: LiteRTGraph, node: Node, body: Body, *, flag: str = "is_nchw") -> None:
    """Lower an operation on the first input, which it takes with channels last."""
    order = _TO_NHWC if node.flag(flag) else range(4)
    permuted(graph, node, order, body)


def axis_last(graph: LiteRTGraph, node: Node, axis: int, body: Body) -> None:
    """Lower an operation on the first input, which works along its last dimension."""
    rank = node.tensor(0).rank
    order = [*(index for index in range(rank) if index != axis % rank), axis % rank]
    permuted(graph, node, order, body)


def permuted(graph: LiteRTGraph, node: Node, order: Sequence[int], body: Body) -> None:
    """Lower an operation whose input and output have their dimensions in another order."""
    source, target = graph.input(node, 0), graph.output(node)
    given, wanted = node.tensor(0), graph.result(node)
    if list(order) == list(range(len(order))):
        body(source, given, target, wanted)
        return
    inner = reshaped(given, [given.shape[index] for index in order])
    outer = reshaped(wanted, [wanted.shape[index] for index in order])
    turned, result = graph.like(inner), graph.like(outer)
    graph.transpose(source, turned, order)
    body(turned, inner, result, outer)
    graph.transpose(result, target, [list(order).index(index) for index in range(len(order))])
