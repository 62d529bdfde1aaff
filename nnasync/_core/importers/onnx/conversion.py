"""An ONNX graph becomes a model: inputs, operators in their order, outputs."""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync._core.importers.onnx import (
    control_flow,
    dense_layers,
    einsum,
    elementwise,
    functions,
    movement,
    normalization,
    parts,
    quantization,
    recurrent,
    reductions,
    resizing,
    selection,
    windows,
)
from nnasync._core.importers.onnx.folding import FOLDED, fold, with_constants
from nnasync._core.importers.onnx.forms import Convert
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode
from nnasync._core.importers.onnx.patterns import MATCHED, with_patterns
from nnasync._core.importers.onnx.preparation import Step, prepare
from nnasync._core.importers.onnx.quantized_forms import QUANTIZED_FORMS, with_floats
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import ModelBuilder
from nnasync.errors import ModelError
from nnasync.hal import Model

_OLDEST_OPSET = 11


@np.errstate(all="ignore")
def convert(graph: OnnxGraph, name: str) -> Model:
    """The model of a graph in operations of the HAL; raises ModelError that says what hinders."""
    if graph.opset < _OLDEST_OPSET:
        raise ModelError(f"has opset {graph.opset}, the oldest that is translated is 11")
    graph = needed(with_patterns(with_floats(with_constants(graph))))
    _check_known(graph)
    builder = ModelBuilder(name)
    scope = OnnxScope(graph, builder)
    for port in graph.inputs:
        scope.add_input(port)
    _convert_all(scope)
    for port in graph.outputs:
        scope.add_output(port)
    return builder.build()


def _convert_all(scope: OnnxScope) -> None:
    for step in prepare(scope.graph):
        convert_step(scope, step)


def is_known(type: str) -> bool:
    """Returns whether an operator is translated, or computed while a file is read."""
    return any(type in each for each in (CONVERTERS, FOLDED, MATCHED, QUANTIZED_FORMS))


def needed(graph: OnnxGraph) -> OnnxGraph:
    """The graph without operators whose results nobody uses."""
    wanted, kept = {port.name for port in graph.outputs}, []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.reads)
    return msgspec.structs.replace(graph, nodes=tuple(reversed(kept)))


def _check_known(graph: OnnxGraph) -> None:
    found: dict[str, list[OnnxNode]] = {}
    for node in graph.nodes:
        if node.type not in CONVERTERS and node.type not in FOLDED:
            found.setdefault(node.type, []).append(node)
    if found:
        told = [
            f"{len(nodes)} x {type}, first node {nodes[0].place}" for type, nodes in found.items()
        ]
        raise ModelError(f"has operators that are not translated: {'; '.join(told)}")


def convert_step(scope: OnnxScope, step: Step) -> None:
    """Convert an operator with what is part of its operation; raises ModelError that names it."""
    node = step.node
    if node.index in scope.done:
        return
    try:
        if node.type in FOLDED and _fold(scope, node):
            return
        if node.type not in CONVERTERS:
            only = "for constants only" if node.type in FOLDED else "by nothing here"
            raise ModelError(f"is translated {only}")
        CONVERTERS[node.type](scope, step)
    except ModelError as error:
        raise ModelError(f"node {node.place} ({node.type}): {error}") from error
    except (ArithmeticError, IndexError, MemoryError, TypeError, ValueError) as error:
        raise ModelError(f"node {node.place} ({node.type}) is broken: {error}") from error


def _fold(scope: OnnxScope, node: OnnxNode) -> bool:
    """Compute an operator now if all that it needs is known."""
    found = [scope.array(name) for name in node.inputs]
    arrays = [array for array in found if array is not None]
    if len(arrays) < len(found):
        return False
    results = fold(node, arrays, scope.budget)
    for name, result in zip(node.outputs, results, strict=True):
        if name:
            scope.define(name, result)
    return True


CONVERTERS: dict[str, Convert] = {
    **elementwise.CONVERTERS,
    **functions.CONVERTERS,
    **dense_layers.CONVERTERS,
    **einsum.CONVERTERS,
    **movement.CONVERTERS,
    **parts.CONVERTERS,
    **normalization.CONVERTERS,
    **reductions.CONVERTERS,
    **resizing.CONVERTERS,
    **selection.CONVERTERS,
    **quantization.CONVERTERS,
    **recurrent.CONVERTERS,
    **windows.CONVERTERS,
    **control_flow.converters(_convert_all),
}
"""How each operator becomes operations."""
