"""Reductions along axes, normalizations, and the places of the largest elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import AXES, Node, Planar, Result, Scope
from nnasync._core.drivers.openvino.lowered import (
    BOOLEANS,
    BYTES,
    INTEGERS,
    REALS,
    Build,
    Lower,
    OpenVinoUnsupported,
    Rule,
    Rules,
    one,
)
from nnasync._core.drivers.openvino.lowering.activation import check_scale
from nnasync.hal import OperationType, is_quantized
from nnasync.kernels import Arguments, Tensor


def _reduction(name: str, *, cuts: bool = False) -> Lower:
    """A reduction by OpenVINO's function of this name; quantized means are cut off."""

    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output, source = outputs[0], arguments.tensor(0)
        axes = sorted({arguments.checked_axis(1, a, source.rank) for a in arguments.integers(1)})
        if not axes:
            raise OpenVinoUnsupported("a reduction along no axis is not lowered")

        def build(scope: Scope) -> Result:
            planar = scope.prefers_planar((0,))
            node = scope.planar(0) if planar else scope.value(0)
            along = scope.integers([AXES[axis] for axis in axes] if planar else axes)
            node = getattr(scope.op, name)(node, along, True)
            if cuts and is_quantized(output.type):
                count = math.prod(source.shape[axis] for axis in axes)
                node = scope.cut_off(node, output, count)
            return _left(scope, node, source, axes, output, planar=planar)

        return one(build)

    return lower


def _left(
    scope: Scope,
    node: Node,
    source: Tensor,
    axes: Sequence[int],
    output: Tensor,
    *,
    planar: bool,
) -> Result:
    """Returns a reduction that kept its dimensions in the output's shape."""
    if not planar:
        return node if output.shape == tuple(node.shape) else scope.reshape(node, output.shape)
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(source.shape))
    if output.shape == kept:
        return Planar(node)
    if kept[1] * kept[2] != 1 and kept[3] != 1:
        node = scope.transpose(node, (0, 2, 3, 1))
    return scope.reshape(node, output.shape)


def _place(mode: str) -> Lower:
    """ARGMAX and ARGMIN; the first of equals wins."""

    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output, axis = outputs[0], arguments.axis(1, arguments.tensor(0).rank)

        def build(scope: Scope) -> Result:
            count = scope.op.constant(np.int64(1))
            found = scope.op.topk(scope.value(0), count, axis, mode, "value", "i32", stable=True)
            return scope.reshape(found.output(1), output.shape)

        return one(build)

    return lower


def _largest(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    """TOPK_V2: the last of equals comes first, so it is looked for from the end."""
    source = arguments.tensor(0)
    last, size = source.rank - 1, source.shape[-1]
    count = arguments.integer(1, 1)

    def build(scope: Scope) -> Sequence[Result]:
        op = scope.op
        turned = op.gather(
            scope.value(0),
            scope.integers(range(size - 1, -1, -1)),
            op.constant(np.int64(last)),
        )
        number = op.constant(np.int64(count))
        found = op.topk(turned, number, last, "max", "value", "i32", stable=True)
        places = op.subtract(op.constant(np.int32(size - 1)), found.output(1))
        return found.output(0), places

    return build


def _length(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    """L2_NORMALIZATION."""
    output, rank = outputs[0], arguments.tensor(0).rank
    axis = arguments.axis(1, rank) if arguments.has(1) else rank - 1
    check_scale(output, 1 / 128, 128)

    def build(scope: Scope) -> Result:
        op, node = scope.op, scope.value(0)
        squares = op.reduce_sum(op.multiply(node, node), scope.integers((axis,)), True)
        length = op.maximum(op.sqrt(squares), scope.number(1e-6))
        return scope.store(op.divide(node, length), output)

    return one(build)


def _local_response(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    source = arguments.tensor(0)
    radius = arguments.integer(1, 0)
    bias, alpha, beta = (arguments.number(index) for index in (2, 3, 4))
    axis = arguments.axis(5, source.rank) if arguments.has(5) else source.rank - 1
    size, shape = 2 * radius + 1, source.shape
    inner = math.prod(shape[axis + 1 :])
    folded = (1, math.prod(shape[:axis]), shape[axis], inner)

    def build(scope: Scope) -> Result:
        op, node = scope.op, scope.value(0)
        squares = scope.reshape(op.multiply(node, node), folded)
        window = [radius, 0], [radius, 0], [size, 1]
        means = scope.reshape(op.avg_pool(squares, [1, 1], *window, False, "floor"), shape)
        sums = op.add(op.multiply(means, scope.number(alpha * size)), scope.number(bias))
        return op.multiply(node, op.power(sums, scope.number(-beta)))

    return one(build)


def _instance(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    gamma, beta, epsilon = (arguments.number(index) for index in (1, 2, 3))
    nchw = bool(arguments.value(4).reshape(-1)[0])

    def build(scope: Scope) -> Result:
        op = scope.op
        source = scope.value(0) if nchw else scope.planar(0)
        along = scope.integers((2, 3))
        node = op.mvn(source, along, True, epsilon, "inside_sqrt")
        node = op.add(op.multiply(node, scope.number(gamma)), scope.number(beta))
        return node if nchw else Planar(node)

    return one(build)


_EXTREMES = (*REALS, *BYTES)

RULES: Rules = {
    OperationType.MEAN: Rule(_reduction("reduce_mean", cuts=True)),
    OperationType.REDUCE_ALL: Rule(_reduction("reduce_logical_and"), BOOLEANS),
    OperationType.REDUCE_ANY: Rule(_reduction("reduce_logical_or"), BOOLEANS),
    OperationType.REDUCE_MAX: Rule(_reduction("reduce_max"), _EXTREMES),
    OperationType.REDUCE_MIN: Rule(_reduction("reduce_min"), _EXTREMES),
    OperationType.REDUCE_PROD: Rule(_reduction("reduce_prod"), REALS),
    OperationType.REDUCE_SUM: Rule(_reduction("reduce_sum"), REALS),
    OperationType.ARGMAX: Rule(_place("max"), (*REALS, *BYTES, *INTEGERS)),
    OperationType.ARGMIN: Rule(_place("min"), (*REALS, *BYTES, *INTEGERS)),
    OperationType.TOPK_V2: Rule(_largest, (*REALS, *BYTES, *INTEGERS)),
    OperationType.L2_NORMALIZATION: Rule(_length),
    OperationType.LOCAL_RESPONSE_NORMALIZATION: Rule(_local_response, REALS),
    OperationType.INSTANCE_NORMALIZATION: Rule(_instance, REALS),
}
