"""Files of which most operators can be translated: the others become parts that stay ONNX.

Which operators cannot be translated is found by trying, with what ONNX's own inference says of
the results of those that failed. Then operators are put in phases, in turns translated and not: an
operator is in the earliest phase of its kind that comes no sooner than what it reads. All operators
of a phase that are not translated are one part, since nothing translated lies between them.

A part costs a run of ONNX Runtime of its own, and copies of what crosses its borders: some tens of
microseconds. So there are few, most layers must be among what is translated, and these must have
work for much longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.formats.onnx import operand_of
from nnasync._core.importers.onnx.conversion import convert, convert_step, needed
from nnasync._core.importers.onnx.folding import with_constants
from nnasync._core.importers.onnx.inference import inferred
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode, OnnxPort
from nnasync._core.importers.onnx.parts import Part, operand_shape, part_node
from nnasync._core.importers.onnx.patterns import with_patterns
from nnasync._core.importers.onnx.preparation import prepare
from nnasync._core.importers.onnx.quantized_forms import with_floats
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import ModelBuilder
from nnasync._core.validation import find_operation
from nnasync.errors import ModelError
from nnasync.hal import Model

_MOST_PASSES = 4
_MOST_PARTS = 3
_HEAVY = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "LSTM",
        "GRU",
        "RNN",
        "ConvInteger",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "com.microsoft.QGemm",
    }
)
_LEAST_WORK = 10_000_000
"""Multiply-adds for each part: half a millisecond of one core."""


@np.errstate(all="ignore")
def convert_in_parts(message: Any, graph: OnnxGraph, name: str) -> Model:
    """The model of a graph of which parts stay ONNX; raises ModelError where that does not pay."""
    graph = needed(with_constants(graph))
    ports = inferred(message, graph)
    failed = _failing(graph, ports)
    phases = _phases(graph, failed)
    groups: dict[int, list[OnnxNode]] = {}
    for node in graph.nodes:
        groups.setdefault(phases[node.index], []).append(node)
    count = sum(1 for phase in groups if phase % 2)
    if count > _MOST_PARTS:
        raise ModelError(f"would have {count} parts that stay ONNX, {_MOST_PARTS} at most pay")
    wanted = _wanted(graph, phases)
    nodes: list[OnnxNode] = []
    number = 0
    for phase in sorted(groups):
        if not phase % 2:
            nodes += groups[phase]
            continue
        number += 1
        reasons = _told([failed[node.index] for node in groups[phase]])
        label = f"{name}.onnx, part {number} of {count}, as it is: {reasons}"
        part = Part(message, tuple(node.index for node in groups[phase]), ports, label)
        nodes.append(part_node(part, groups[phase], wanted))
    model = convert(msgspec.structs.replace(graph, nodes=tuple(nodes)), name)
    work = _multiply_adds(model)
    if work < _LEAST_WORK * count:
        raise ModelError(f"{work} multiply-adds beside {count} parts that stay ONNX do not pay")
    return model


def _told(reasons: Sequence[str]) -> str:
    """The first few reasons."""
    return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if reasons[3:] else "")


def _check_pays(graph: OnnxGraph, failed: Mapping[int, str]) -> None:
    heavy = Counter(node.index in failed for node in graph.nodes if node.type in _HEAVY)
    if not heavy[False] or heavy[True] > heavy[False]:
        raise ModelError(
            f"{heavy[True]} of its {heavy.total()} layers would stay ONNX, which does not pay"
        )


def _multiply_adds(model: Model) -> int:
    """The multiply-adds of the main subgraph."""
    total, operands = 0, model.main.operands
    for operation in model.main.operations:
        known = find_operation(model, operation.type)
        count = None if known is None else known.facts.multiply_adds
        if count is not None:
            shapes = [operands[index].dimensions for index in operation.inputs]
            total += count(shapes, operands[operation.outputs[0]].dimensions)
    return total


def _phases(graph: OnnxGraph, failed: Mapping[int, str]) -> dict[int, int]:
    """The phase of each operator by index: even ones are translated."""
    of_value: dict[str, int] = {}
    found: dict[int, int] = {}
    for node in graph.nodes:
        phase = max((of_value.get(name, 0) for name in node.reads), default=0)
        phase += phase % 2 != (node.index in failed)
        found[node.index] = phase
        of_value.update(dict.fromkeys(node.outputs, phase))
    return found


def _wanted(graph: OnnxGraph, phases: Mapping[int, int]) -> set[str]:
    """The values that are read in another phase than their own, or outside."""
    made = {name: phases[node.index] for node in graph.nodes for name in node.outputs}
    wanted = {port.name for port in graph.outputs}
    for node in graph.nodes:
        wanted.update(
            name for name in node.reads if made.get(name, phases[node.index]) != phases[node.index]
        )
    return wanted


# -- what cannot be translated


def _failing(graph: OnnxGraph, ports: Mapping[str, OnnxPort]) -> dict[int, str]:
    """Returns why operators are not translated, by index.

    Raises ModelError if that is not found out soon, and as soon as it is seen not to pay.
    """
    failed: dict[int, str] = {}
    for _ in range(_MOST_PASSES):
        more = _tried(graph, ports, failed)
        if not more:
            return failed
        failed |= more
        _check_pays(graph, failed)
    raise ModelError("is not translated: one operator after the other is found not to be")


def _tried(
    graph: OnnxGraph, ports: Mapping[str, OnnxPort], failed: Mapping[int, str]
) -> dict[int, str]:
    """Operators that are not translated beside those that are known, and why."""
    more: dict[int, str] = {}
    missing = [node for node in graph.nodes if node.index in failed]
    rest = [node for node in graph.nodes if node.index not in failed]
    read = {name for node in missing for name in node.reads}
    seen = tuple(OnnxPort(name, 0, None) for name in read)
    trial = msgspec.structs.replace(graph, nodes=tuple(rest), outputs=(*graph.outputs, *seen))
    trial = with_patterns(with_floats(trial, more))
    scope = OnnxScope(trial, ModelBuilder("trial"))
    for port in graph.inputs:
        scope.add_input(port)
    for node in missing:
        _assume(scope, node.outputs, ports)
    for step in prepare(scope.graph):
        try:
            convert_step(scope, step)
        except ModelError as error:
            more[step.node.place] = str(error)
            _assume(scope, [step.output, *step.node.outputs], ports)
    return more


def _assume(scope: OnnxScope, names: Sequence[str], ports: Mapping[str, OnnxPort]) -> None:
    """Take values to be given from outside where their types and shapes are known."""
    for name in dict.fromkeys(names):
        port = ports.get(name)
        held = None if port is None else operand_of(port.element)
        if port is None or held is None or port.shape is None or None in port.shape:
            continue
        if name and not scope.knows(name):
            shape = tuple(n or 0 for n in port.shape)
            type, scale = held
            value = scope.builder.input(name, operand_shape(shape), type=type, scale=scale)
            scope.define(name, value, shape)
