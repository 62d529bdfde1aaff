"""The operations of org.nnasync.common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import Node, Result, Scope
from nnasync._core.drivers.openvino.lowered import REALS, Build, Rule, Rules, one
from nnasync._core.drivers.openvino.lowering.elementwise import pointwise
from nnasync.extensions import COMMON, CommonOperation
from nnasync.kernels import Arguments, Tensor


def _batch_matmul(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    turned = arguments.flag(2), arguments.flag(3)
    return one(lambda scope: scope.op.matmul(scope.value(0), scope.value(1), *turned))


def _gelu(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    form = "tanh" if arguments.flag(1) else "erf"

    def build(scope: Scope) -> Result:
        def apply(nodes: Sequence[Node]) -> Node:
            return scope.op.gelu(nodes[0], form)

        return pointwise(scope, (0,), apply, real=False)

    return one(build)


def _cumulative_sum(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    axis, flags = (
        arguments.axis(1, arguments.tensor(0).rank),
        (arguments.flag(2), arguments.flag(3)),
    )

    def build(scope: Scope) -> Result:
        return scope.op.cum_sum(scope.value(0), scope.op.constant(np.int32(axis)), *flags)

    return one(build)


def _round(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    return one(
        lambda scope: pointwise(
            scope, (0,), lambda nodes: scope.op.round(nodes[0], "half_to_even"), real=False
        )
    )


RULES: Rules = {
    (COMMON.name, CommonOperation.BATCH_MATMUL): Rule(_batch_matmul, REALS),
    (COMMON.name, CommonOperation.GELU): Rule(_gelu, REALS),
    (COMMON.name, CommonOperation.CUMSUM): Rule(_cumulative_sum, REALS),
    (COMMON.name, CommonOperation.ROUND): Rule(_round, REALS),
}
