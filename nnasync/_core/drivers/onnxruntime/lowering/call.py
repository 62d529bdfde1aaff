"""The operations of a model with everything known about their operands before a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync._core.validation import find_operation, subgraph_tensors
from nnasync.errors import ModelError
from nnasync.extensions import operation_key
from nnasync.hal import Array, Model, Operation, Shape, is_quantized
from nnasync.kernels import Arguments, NotConstant, Tensor
from nnasync.kernels.windows.window import position


class OrtUnsupported(Exception):
    """Why an operation is not taken."""


class OperationCall:
    """One operation with its operands; all shapes are known."""

    def __init__(
        self,
        key: int | tuple[str, int],
        operation: Operation,
        arguments: Arguments,
        outputs: Sequence[Tensor],
    ) -> None:
        """`key` is the type, or the extension and the type within it."""
        self.key = key
        self.inputs = operation.inputs
        self.outputs = operation.outputs
        self.arguments = arguments
        self.results = tuple(outputs)

    def place(self, name: str) -> int:
        """Index of a named argument, or one past the last where this form does not have it."""
        return position(self.arguments, name)

    def has(self, position: int) -> bool:
        """Returns whether an argument exists and is not omitted."""
        return self.arguments.has(position)

    def tensor(self, position: int) -> Tensor:
        """An argument, which must be there."""
        return self.arguments.tensor(position)

    def integer(self, position: int) -> int:
        """A scalar argument; Unsupported where it is computed."""
        return int(self.array(position).reshape(-1)[0])

    def flag(self, position: int) -> bool:
        """A boolean argument, False where this form does not have it."""
        return self.has(position) and bool(self.array(position).reshape(-1)[0])

    def number(self, position: int) -> float:
        """A scalar argument of floats."""
        return float(self.array(position).reshape(-1)[0])

    def integers(self, position: int) -> list[int]:
        """The values of an integer tensor."""
        return [int(n) for n in self.array(position).reshape(-1)]

    def array(self, position: int) -> Array:
        """The value of an argument; Unsupported where it is computed."""
        value = self.tensor(position).value
        if value is None:
            raise OrtUnsupported(f"input {position} is computed")
        return value

    def shape(self, position: int) -> Shape:
        """The shape of an argument."""
        return self.tensor(position).shape

    @property
    def result(self) -> Tensor:
        """The first output."""
        return self.results[0]

    @property
    def keeps_numbers(self) -> bool:
        """Returns whether input 0 and output 0 stand for the same values by the same numbers."""
        source, result = self.tensor(0), self.result
        return not is_quantized(source.type) or (
            (source.type, source.scale, source.zero_point)
            == (result.type, result.scale, result.zero_point)
        )


def read_calls(model: Model) -> tuple[list[OperationCall | str], list[Tensor | None]]:
    """Returns a call for each operation, or why it has none; and the tensors of all operands."""
    tensors = subgraph_tensors(model, model.main)
    found: list[OperationCall | str] = []
    for operation in model.main.operations:
        try:
            found.append(_read(model, operation, tensors))
        except (OrtUnsupported, ModelError, NotConstant) as error:
            found.append(str(error) or "a shape depends on values that are computed")
    return found, tensors


def _read(model: Model, operation: Operation, tensors: list[Tensor | None]) -> OperationCall:
    known = find_operation(model, operation.type)
    key = operation_key(model.extension_name_to_prefix, operation.type)
    if known is None or key is None:
        raise OrtUnsupported("is not translated to ONNX")
    inputs = [tensors[index] for index in operation.inputs]
    types = [model.main.operands[index].type for index in operation.outputs]
    if not all(tensor is None or tensor.is_known for tensor in inputs):
        raise OrtUnsupported("a shape is not known before the run")
    outputs = []
    for index, rule in zip(operation.outputs, known.infer(inputs, types), strict=True):
        given = tensors[index]
        if given is None or not rule.is_known:
            raise OrtUnsupported("the shape of an output is not known before the run")
        if not given.is_known:
            given = msgspec.structs.replace(given, shape=rule.shape)
            tensors[index] = given
        outputs.append(given)
    if any(0 in t.shape for t in [*inputs, *outputs] if t is not None):
        raise OrtUnsupported("a tensor is empty")
    return OperationCall(key, operation, known.arguments(inputs, types), outputs)
