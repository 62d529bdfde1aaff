"""A TFLite graph becomes a model: inputs, operators in their order, outputs, states."""

from __future__ import annotations

from nnasync.errors import ModelError
from nnasync.formats.tflite import EXTENSION_OPERATORS, OPERATORS, Operator
from nnasync.hal import Model
from nnasync.importers.tflite.extension import EXTENSION_CONVERTERS
from nnasync.importers.tflite.operators import CONVERTERS, Converter
from nnasync.importers.tflite.reader import Graph, OperatorInfo
from nnasync.importers.tflite.tensors import Tensors
from nnasync.memory import Pool

__all__ = ["convert"]


def convert(graph: Graph, pool: Pool, name: str) -> Model:
    """The model of a graph whose constants lie in `pool`; raises ModelError."""
    converters = _converters(graph)
    tensors = Tensors(graph, pool, name)
    for position, index in enumerate(graph.inputs):
        tensors.add_input(index, position)
    for operator, converter in zip(graph.operators, converters, strict=True):
        try:
            converter.convert(tensors, operator)
        except ModelError as error:
            raise ModelError(f"operator {operator.index} ({operator.name}): {error}") from error
    for position, index in enumerate(graph.outputs):
        tensors.add_output(index, position)
    return tensors.builder.build()


def _converters(graph: Graph) -> list[Converter]:
    """The converter of each operator; one ModelError lists every kind that has none."""
    chosen = []
    found: dict[str, list[OperatorInfo]] = {}
    for operator in graph.operators:
        choice = _choice(graph, operator)
        if isinstance(choice, Converter):
            chosen.append(choice)
        else:
            found.setdefault(f"{operator.name} {choice}".strip(), []).append(operator)
    if found:
        lines = [
            f"{len(operators)} x {what}, first operator {operators[0].index}"
            for what, operators in found.items()
        ]
        raise ModelError(f"has operators that the HAL does not have: {'; '.join(lines)}")
    return chosen


def _choice(graph: Graph, operator: OperatorInfo) -> Converter | str:
    """The converter of an operator, to the HAL's operations if it can be; or why there is none."""
    if operator.name not in CONVERTERS:
        return ""
    types = [graph.tensors[index].type if index >= 0 else "" for index in operator.inputs]
    results = {graph.tensors[index].type for index in operator.outputs}
    converter = CONVERTERS[operator.name]
    if not _takes(OPERATORS[operator.name], types, results):
        others = EXTENSION_OPERATORS.get(operator.name, ())
        if not any(_takes(entry, types, results) for entry in others):
            given = "/".join(dict.fromkeys(filter(None, types)))
            return f"of {given} to {'/'.join(sorted(results))}"
        converter = EXTENSION_CONVERTERS[operator.name]
    return converter.refuse(graph, operator) or converter


def _takes(entry: Operator, types: list[str], results: set[str]) -> bool:
    """Whether an entry has these types of inputs, "" where one is left out, and of outputs."""
    legal = set(entry.outputs or types[:1])
    return results <= legal and any(_fits(types, kind) for kind in entry.kinds)


def _fits(types: list[str], kind: tuple[str, ...]) -> bool:
    wanted = [*kind, *[kind[-1]] * len(types)]
    return any(types) and all(a in ("", b) for a, b in zip(types, wanted, strict=False))
