"""A TFLite graph becomes a model: inputs, operators in their order, outputs, states."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.importers.tflite.converter import Converter
from nnasync._core.importers.tflite.folding import fold, may_fold
from nnasync._core.importers.tflite.interface import Interface
from nnasync._core.importers.tflite.operators import OPERATORS
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import File, Graph, OperatorInfo
from nnasync._core.importers.tflite.variables import finish_variables
from nnasync._core.model import ModelBuilder, Value
from nnasync._core.model.control_flow import ControlFlow
from nnasync.errors import ModelError
from nnasync.hal import Array, Model
from nnasync.memory import Pool

_UNFIT = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""What comes of an operator whose inputs or parameters are not those that it should have."""

_DEEPEST = 32
"""How deep parts of a file may lie in each other."""


def convert(file: File, interface: Interface, pool: Pool, name: str) -> Model:
    """The model of a file whose constants lie in `pool`.

    Raises ModelError that lists the operators which are not translated, or says where it failed.
    """
    found = untranslated(file, interface.graph)
    if found:
        raise ModelError(f"has operators that are not translated: {'; '.join(found)}")
    builder = ModelBuilder(name)
    conversion = _Conversion(file, pool)
    tensors = conversion.tensors(interface.graph, builder)
    for port in interface.inputs:
        tensors.add_input(port.tensor, port.name, port.shape)
    conversion.run(tensors)
    finish_variables(tensors)
    for port in interface.outputs:
        tensors.add_output(port.tensor, port.name)
    return builder.build()


class _Conversion:
    """Converts the subgraphs of one file, those of branches and loops inside their operators."""

    def __init__(self, file: File, pool: Pool) -> None:
        self._file = file
        self._pool = pool
        self._depth = 0

    def tensors(self, number: int, builder: ControlFlow) -> Tensors:
        """The tensors of a subgraph that is to be built there."""
        return Tensors(self._graph(number), self._pool, builder, self._part, self._first)

    def run(self, tensors: Tensors) -> None:
        """Convert all operators in their order; raises ModelError that names one."""
        for operator in tensors.graph.operators:
            try:
                if not fold(tensors, operator):
                    _converter(tensors.graph, operator).convert(tensors, operator)
            except (ModelError, *_UNFIT) as error:
                where = f"operator {operator.index} ({operator.name})"
                raise ModelError(f"{where}: {str(error) or type(error).__name__}") from error

    def _part(self, number: int, builder: ControlFlow, inputs: Sequence[Value]) -> list[Value]:
        graph = self._graph(number)
        if len(graph.inputs) != len(inputs):
            raise ModelError(f"subgraph {number} has {len(graph.inputs)} inputs")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ModelError(f"has subgraphs more than {_DEEPEST} deep in each other")
        tensors = self.tensors(number, builder)
        for index, value in zip(graph.inputs, inputs, strict=True):
            tensors.give(index, value)
        self.run(tensors)
        self._depth -= 1
        return [tensors.required(index) for index in graph.outputs]

    def _graph(self, number: int) -> Graph:
        if not 0 <= number < len(self._file.graphs):
            raise ModelError(f"refers to subgraph {number} of {len(self._file.graphs)}")
        return self._file.graphs[number]

    def _first(self, number: int) -> dict[str, Array]:
        """Returns the values that a subgraph assigns to variables.

        Raises ModelError if it must run.
        """
        tensors = self.tensors(number, ModelBuilder())
        first: dict[str, Array] = {}
        for operator in tensors.graph.operators:
            if operator.name == "ASSIGN_VARIABLE":
                numbers = tensors.numbers(operator.inputs[1])
                if numbers is None:
                    raise ModelError("assigns a value that is no constant")
                first[tensors.variables.name(operator)] = numbers
            elif operator.name == "VAR_HANDLE":
                _converter(tensors.graph, operator).convert(tensors, operator)
            elif not fold(tensors, operator):
                raise ModelError(f"needs {operator.name} before the first run")
        return first


def untranslated(file: File, number: int) -> list[str]:
    """Returns each kind of operator that no converter takes, with its count and the reason.

    Operators that may be computed while the file is read are left out.
    """
    graph = file.graphs[number]
    found: dict[str, list[OperatorInfo]] = {}
    for operator in graph.operators:
        choice = _choice(graph, operator)
        results = [graph.tensors[index].type for index in operator.outputs]
        if isinstance(choice, str) and not all(may_fold(type, operator) for type in results):
            found.setdefault(f"{operator.name} {choice}".strip(), []).append(operator)
    return [
        f"{len(operators)} x {what}, first operator {operators[0].index}"
        for what, operators in found.items()
    ]


def _converter(graph: Graph, operator: OperatorInfo) -> Converter:
    choice = _choice(graph, operator)
    if isinstance(choice, Converter):
        return choice
    raise ModelError(f"is not translated {choice or ''}".strip())


def _choice(graph: Graph, operator: OperatorInfo) -> Converter | str:
    """The converter of an operator, to the HAL's operations if it can be; or why there is none."""
    if operator.name not in OPERATORS:
        return ""
    types = [graph.tensors[index].type if index >= 0 else "" for index in operator.inputs]
    results = {graph.tensors[index].type for index in operator.outputs}
    for converter in OPERATORS[operator.name]:
        if converter.takes(types, results):
            try:
                return converter.refuse(graph, operator) or converter
            except _UNFIT:
                return "with inputs or parameters that it cannot have"
    given = "/".join(dict.fromkeys(filter(None, types)))
    return f"of {given} to {'/'.join(sorted(results))}"
