"""What is decided before operators are converted: activations and normalizations join layers.

A step is an operator together with what follows it and is part of the same operation of the HAL: a
batch normalization whose numbers go into the weights of a convolution, and an activation. Both join
only where nobody else looks at the value between.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode
from nnasync.hal import Array, FusedActivationFunc

_ACTIVATED = frozenset({"Conv", "Gemm", "Add", "Sub", "Mul", "Div", "MaxPool", "AveragePool"})
_CLIPS = {
    (0.0, 6.0): FusedActivationFunc.RELU6,
    (-1.0, 1.0): FusedActivationFunc.RELU1,
    (0.0, np.inf): FusedActivationFunc.RELU,
}


class Step(msgspec.Struct, frozen=True, eq=False):
    """An operator, the name of its result, and the activation that ends it.

    `factors` and `offsets` are those of a normalization behind it, one of each per channel.
    """

    node: OnnxNode
    output: str
    activation: int = 0
    factors: Array | None = None
    offsets: Array | None = None


def prepare(graph: OnnxGraph) -> list[Step]:
    """The steps of a graph, in order."""
    uses = Counter(name for node in graph.nodes for name in node.reads)
    uses.update(port.name for port in graph.outputs)
    followers = {name: node for node in graph.nodes for name in node.reads}
    done: set[int] = set()
    steps = []
    for node in graph.nodes:
        if node.index in done or not node.outputs:
            continue
        step = Step(node, node.outputs[0])
        is_layer = node.type == "MatMul" and len(node.inputs) > 2
        if (node.type in _ACTIVATED or is_layer) and len(node.outputs) == 1:
            for join in (_normalized, _activated):
                follower = followers.get(step.output)
                if follower is None or uses[step.output] != 1:
                    break
                joined = join(graph, step, follower)
                if joined is not None:
                    done.add(follower.index)
                    step = joined
        steps.append(step)
    return steps


def _normalized(graph: OnnxGraph, step: Step, follower: OnnxNode) -> Step | None:
    """The step with a batch normalization behind it, if there is one of constants."""
    if step.node.type != "Conv" or follower.type != "BatchNormalization":
        return None
    if step.node.inputs[1] not in graph.constants or len(follower.outputs) > 1:
        return None
    found = normalization(graph, follower)
    if found is None:
        return None
    return msgspec.structs.replace(
        step, output=follower.outputs[0], factors=found[0], offsets=found[1]
    )


def normalization(graph: OnnxGraph, node: OnnxNode) -> tuple[Array, Array] | None:
    """Factors and offsets of a batch normalization, one per channel; None if they are computed."""
    if node.attribute("training_mode", 0) or not all(n in graph.constants for n in node.inputs[1:]):
        return None
    gamma, beta, mean, variance = (
        graph.constants[name].astype(np.float64) for name in node.inputs[1:5]
    )
    factors = gamma / np.sqrt(variance + node.attribute("epsilon", 1e-5))
    return factors, beta - mean * factors


def _activated(graph: OnnxGraph, step: Step, follower: OnnxNode) -> Step | None:
    """The step with an activation behind it, if it is one that the HAL can fuse."""
    kind: int | None = None
    if follower.type == "Relu":
        kind = int(FusedActivationFunc.RELU)
    elif follower.type == "Clip" and follower.inputs[0] == step.output:
        bounds = clip_bounds(graph.constants, follower)
        kind = None if bounds is None else _CLIPS.get(bounds)
    if kind is None:
        return None
    return msgspec.structs.replace(step, output=follower.outputs[0], activation=int(kind))


def clip_bounds(constants: dict[str, Array], node: OnnxNode) -> tuple[float, float] | None:
    """The bounds of a Clip; None where they are computed."""
    bounds = [-np.inf, np.inf]
    for position, name in enumerate(node.inputs[1:3]):
        if name:
            if name not in constants or constants[name].size != 1:
                return None
            bounds[position] = float(constants[name].reshape(-1)[0])
    return bounds[0], bounds[1]
