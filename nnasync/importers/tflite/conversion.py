"""A TFLite graph becomes a model: inputs, operators in their order, outputs, states."""

from __future__ import annotations

from nnasync.errors import ModelError
from nnasync.formats.tflite import OPERATORS
from nnasync.hal import Model
from nnasync.importers.tflite.operators import CONVERTERS
from nnasync.importers.tflite.reader import Graph, OperatorInfo
from nnasync.importers.tflite.tensors import Tensors
from nnasync.memory import Pool

__all__ = ["convert"]


def convert(graph: Graph, pool: Pool, name: str) -> Model:
    """The model of a graph whose constants lie in `pool`; raises ModelError."""
    _refuse_unsupported(graph)
    tensors = Tensors(graph, pool, name)
    for position, index in enumerate(graph.inputs):
        tensors.add_input(index, position)
    for operator in graph.operators:
        try:
            CONVERTERS[operator.name].convert(tensors, operator)
        except ModelError as error:
            raise ModelError(f"operator {operator.index} ({operator.name}): {error}") from error
    for position, index in enumerate(graph.outputs):
        tensors.add_output(index, position)
    return tensors.builder.build()


def _refuse_unsupported(graph: Graph) -> None:
    """Raise one ModelError that lists every kind of operator without a counterpart in the HAL."""
    found: dict[str, list[OperatorInfo]] = {}
    for operator in graph.operators:
        reason = _reason(graph, operator)
        if reason is not None:
            found.setdefault(f"{operator.name} {reason}".strip(), []).append(operator)
    if found:
        lines = [
            f"{len(operators)} x {what}, first operator {operators[0].index}"
            for what, operators in found.items()
        ]
        raise ModelError(f"has operators that the HAL does not have: {'; '.join(lines)}")


def _reason(graph: Graph, operator: OperatorInfo) -> str | None:
    """Why an operator is not supported, or None."""
    if operator.name not in CONVERTERS:
        return ""
    entry = OPERATORS[operator.name]
    types = [graph.tensors[index].type for index in operator.inputs if index >= 0]
    results = {graph.tensors[index].type for index in operator.outputs}
    legal_results = set(entry.outputs or types[:1])
    fits = any(_fits(types, kind) for kind in entry.kinds)
    if not fits or not results <= legal_results:
        return f"of {'/'.join(dict.fromkeys(types))} to {'/'.join(sorted(results))}"
    return CONVERTERS[operator.name].refuse(graph, operator)


def _fits(types: list[str], kind: tuple[str, ...]) -> bool:
    wanted = [*kind, *[kind[-1]] * len(types)]
    return bool(types) and all(a == b for a, b in zip(types, wanted, strict=False))
