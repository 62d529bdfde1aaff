"""IF and WHILE, whose parts are other subgraphs of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnasync._core.importers.tflite.converter import Converter, option
from nnasync._core.importers.tflite.tensor_values import TENSOR_TYPES, Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import Value
from nnasync._core.model.control_flow import ControlFlow

_Build = Callable[..., Sequence[Value]]


def _parts(tensors: Tensors, operator: OperatorInfo, one: str, other: str) -> tuple[_Build, _Build]:
    names = (f"{name}SubgraphIndex" for name in (one, other))
    first, second = (_part(tensors, option(operator, name)) for name in names)
    return first, second


def _part(tensors: Tensors, number: int) -> _Build:
    """Returns a function that builds a subgraph of the file."""

    def build(builder: ControlFlow, *inputs: Value) -> Sequence[Value]:
        return tensors.part(number, builder, inputs)

    return build


def _values(tensors: Tensors, operator: OperatorInfo, first: int) -> list[Value]:
    return [tensors.input(operator, place) for place in range(first, len(operator.inputs))]


def _if(tensors: Tensors, operator: OperatorInfo) -> None:
    condition = tensors.input(operator, 0)
    then, otherwise = _parts(tensors, operator, "Then", "Else")
    values = _values(tensors, operator, 1)
    results = tensors.builder.cond(condition, then, otherwise, *values)
    _define(tensors, operator, results)


def _while(tensors: Tensors, operator: OperatorInfo) -> None:
    condition, body = _parts(tensors, operator, "Cond", "Body")
    results = tensors.builder.while_loop(condition, body, *_values(tensors, operator, 0))
    _define(tensors, operator, results)


def _define(tensors: Tensors, operator: OperatorInfo, results: Value | tuple[Value, ...]) -> None:
    tensors.define_all(operator, (results,) if isinstance(results, Value) else results)


def _refuse(graph: Graph, operator: OperatorInfo) -> str | None:
    """The types are those of the parts, which are converted like any subgraph."""
    for index in (*operator.inputs, *operator.outputs):
        if index >= 0 and graph.tensors[index].type not in TENSOR_TYPES:
            return f"on {graph.tensors[index].type}"
    return None


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "IF": (Converter((), _if, _refuse),),
    "WHILE": (Converter((), _while, _refuse),),
}
