"""The operations of a model with all that is known of their operands before a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync._core.drivers.litert.litert_program import Shapes
from nnasync._core.formats.litert_limits import LiteRTUnsupported
from nnasync._core.validation import find_operation, subgraph_tensors
from nnasync.errors import ModelError
from nnasync.hal import Model, OperationType, Shape, combine_dimensions
from nnasync.kernels import Arguments, Operation, Tensor


class Node:
    """One operation: the operands it reads and writes, by index and as tensors of known shape."""

    __slots__ = ("arguments", "inputs", "known", "outputs", "type")

    def __init__(
        self,
        type: int,
        known: Operation,
        inputs: Sequence[int],
        outputs: Sequence[int],
        arguments: Arguments,
    ) -> None:
        self.type = type
        self.known = known
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.arguments = arguments

    def tensor(self, position: int) -> Tensor:
        """An input that is there."""
        return self.arguments.tensor(position)

    def index(self, name: str) -> int | None:
        """The position of a named input; None where this form has none or it is omitted."""
        parameters = self.arguments.signature.parameters(len(self.inputs)) or ()
        names = [parameter.name for parameter in parameters]
        position = names.index(name) if name in names else -1
        return position if position >= 0 and self.arguments.has(position) else None

    def integer(self, name: str) -> int:
        """The value of a named integer scalar."""
        return self.arguments.integer(self._position(name))

    def number(self, name: str) -> float:
        """The value of a named real scalar."""
        return self.arguments.number(self._position(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """The values of a named integer tensor."""
        return self.arguments.integers(self._position(name))

    def flag(self, name: str) -> bool:
        """The value of a named boolean scalar, False where this form has none."""
        position = self.index(name)
        return position is not None and self.arguments.flag(position)

    def _position(self, name: str) -> int:
        position = self.index(name)
        if position is None:
            raise LiteRTUnsupported(f"{name} is not given")
        return position


def nodes_of(
    model: Model, shapes: Shapes | None = None
) -> tuple[list[Tensor | None], list[Node | str]]:
    """The operands of the main subgraph with their shapes, and its operations in their order.

    In place of an operation that cannot be prepared before a run stands the reason. `shapes` are
    those of the inputs in a run; without them an input of unknown shape counts as omitted where
    that is allowed.
    """
    tensors = subgraph_tensors(model, model.main)
    if shapes is not None:
        for index, shape in zip(model.main.input_indexes, shapes, strict=True):
            tensors[index] = _given(tensors[index], shape)
    found: list[Node | str] = []
    for operation in model.main.operations:
        try:
            found.append(_node(model, operation, tensors))
        except (ModelError, LiteRTUnsupported) as error:
            found.append(str(error))
    return tensors, found


def _given(tensor: Tensor | None, shape: Shape | None) -> Tensor | None:
    """An input of a run; one that is omitted or empty is None."""
    if tensor is None or shape is None or 0 in shape:
        return None
    return msgspec.structs.replace(tensor, shape=shape)


def _node(model: Model, operation: hal.Operation, tensors: list[Tensor | None]) -> Node:
    """One operation; the shapes of its outputs are noted in `tensors`."""
    if operation.type in (OperationType.IF, OperationType.WHILE):
        raise LiteRTUnsupported("control flow is left to the framework")
    known = find_operation(model, operation.type)
    if known is None:
        raise LiteRTUnsupported("the operation is not known")
    inputs = _inputs(model, operation, known, tensors)
    for position, tensor in enumerate(inputs):
        if tensor is not None and (not tensor.is_known or 0 in tensor.shape):
            raise LiteRTUnsupported(
                f"input {position} has shape {list(tensor.shape)}, not known or empty"
            )
    types = [model.main.operands[index].type for index in operation.outputs]
    results = known.infer(inputs, types)
    for index, result in zip(operation.outputs, results, strict=True):
        tensors[index] = _resolved(model, index, tensors[index], result)
    arguments = known.arguments(inputs, types)
    return Node(operation.type, known, operation.inputs, operation.outputs, arguments)


def _inputs(
    model: Model, operation: hal.Operation, known: Operation, tensors: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The inputs; an optional input of the model whose shape is not known counts as omitted."""
    inputs = [tensors[index] for index in operation.inputs]
    types = [model.main.operands[index].type for index in operation.inputs]
    signature = known.signature(types)
    parameters = signature.parameters(len(inputs)) or ()
    for position, (tensor, parameter) in enumerate(zip(inputs, parameters, strict=True)):
        is_input = operation.inputs[position] in model.main.input_indexes
        if parameter.optional and is_input and tensor is not None and not tensor.is_known:
            inputs[position] = None
    return inputs


def _resolved(model: Model, index: int, given: Tensor | None, rule: Tensor) -> Tensor:
    """An output as declared, with the shape that the rule says; Unsupported if they differ."""
    if given is None:
        raise LiteRTUnsupported(f"operand {index} is an output without a value")
    shape = combine_dimensions(given.shape, rule.shape)
    if shape is None:
        raise LiteRTUnsupported(
            f"an output has shape {list(given.shape)}, expected {list(rule.shape)}"
        )
    tensor = msgspec.structs.replace(given, shape=shape)
    if not tensor.is_known and not is_final(model, index):
        raise LiteRTUnsupported("the shape of an output depends on a value of the run")
    if rule.scale and (given.scale, given.zero_point) != (rule.scale, rule.zero_point):
        raise LiteRTUnsupported(
            f"an output has scale {given.scale} and zero point {given.zero_point}, expected"
            f" {rule.scale} and {rule.zero_point}"
        )
    return tensor


def is_final(model: Model, index: int) -> bool:
    """Returns whether an operand is an output of the model and no operation reads it."""
    final = index in model.main.output_indexes
    return final and not model.main.operands[index].number_of_consumers
