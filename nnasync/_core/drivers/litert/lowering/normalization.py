"""Softmax and normalizations along an axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync._core.drivers.litert.graph import LiteRTGraph, Lower
from nnasync._core.drivers.litert.lowering.channel_order import axis_last, channels_last
from nnasync._core.drivers.litert.node import Node
from nnasync._core.drivers.litert.operands import reshaped
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync.hal import OperationType
from nnasync.kernels import Tensor


def _axis(node: Node) -> int:
    return node.integer("axis") if node.index("axis") is not None else -1


def _softmax(graph: LiteRTGraph, node: Node) -> None:
    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        options = {"Beta": node.number("beta")}
        graph.emit("SOFTMAX", [source], [target], "SoftmaxOptions", options)

    axis_last(graph, node, _axis(node), body)


def _log_softmax(graph: LiteRTGraph, node: Node) -> None:
    beta = node.number("beta")

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        if beta != 1:
            scaled = graph.like(given)
            factor = graph.constant(np.full(1, beta, np.float32))
            graph.emit("MUL", [source, factor], [scaled], "MulOptions")
            source = scaled
        graph.emit("LOG_SOFTMAX", [source], [target], "LogSoftmaxOptions")

    axis_last(graph, node, _axis(node), body)


def _l2(graph: LiteRTGraph, node: Node) -> None:
    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        graph.emit("L2_NORMALIZATION", [source], [target], "L2NormOptions")

    axis_last(graph, node, _axis(node), body)


def _local_response(graph: LiteRTGraph, node: Node) -> None:
    """Beyond the last channel the engine adds nothing, one step at a time."""
    radius = node.integer("radius")
    if radius < 0:
        raise LiteRTUnsupported(f"a radius of {radius}")

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        options = {
            "Radius": min(radius, given.shape[-1] - 1),
            **{name.capitalize(): node.number(name) for name in ("bias", "alpha", "beta")},
        }
        name, table = "LOCAL_RESPONSE_NORMALIZATION", "LocalResponseNormalizationOptions"
        if given.rank == 4:
            graph.emit(name, [source], [target], table, options)
            return
        shape = (1,) * (4 - given.rank) + given.shape
        inner, outer = graph.like(given, shape), graph.like(wanted, shape)
        graph.reshape(source, inner, shape)
        graph.emit(name, [inner], [outer], table, options)
        graph.reshape(outer, target, wanted.shape)

    axis_last(graph, node, _axis(node), body)


def _instance(graph: LiteRTGraph, node: Node) -> None:
    """Lowers INSTANCE_NORMALIZATION: (x - mean) * gamma / sqrt(variance + eps), by channels."""
    numbers = {name: node.number(name) for name in ("gamma", "beta", "epsilon")}

    def body(source: int, given: Tensor, target: int, wanted: Tensor) -> None:
        single = reshaped(given, (given.shape[0], 1, 1, given.shape[3]))

        def mean(of: int) -> int:
            result, axes = graph.like(single), graph.integers((1, 2))
            graph.emit("MEAN", [of, axes], [result], "ReducerOptions", {"KeepDims": True})
            return result

        def combine(name: str, a: int, b: int, shape: Tensor) -> int:
            result = graph.like(shape)
            graph.emit(name, [a, b], [result], f"{name.capitalize()}Options")
            return result

        def constant(name: str) -> int:
            return graph.constant(np.full(1, numbers[name], np.float32))

        centered = combine("SUB", source, mean(source), given)
        squared = combine("MUL", centered, centered, given)
        variance = combine("ADD", mean(squared), constant("epsilon"), single)
        inverse = graph.like(single)
        graph.emit("RSQRT", [variance], [inverse])
        factor = combine("MUL", inverse, constant("gamma"), single)
        scaled = combine("MUL", centered, factor, given)
        graph.emit("ADD", [scaled, constant("beta")], [target], "AddOptions")

    channels_last(graph, node, body, flag="layout")


LOWERINGS: Mapping[OperationType, Lower] = {
    OperationType.SOFTMAX: _softmax,
    OperationType.LOG_SOFTMAX: _log_softmax,
    OperationType.L2_NORMALIZATION: _l2,
    OperationType.LOCAL_RESPONSE_NORMALIZATION: _local_response,
    OperationType.INSTANCE_NORMALIZATION: _instance,
}
