"""A foreign file as a model of one operation, for the engine that the file was made for.

The operation is GRAPH of an extension. Its inputs are those of the file's graph, then the states,
then, if there are states, an INT32 constant with the engine's number for each of them, and last
the file itself, a constant TENSOR_OEM_BYTE. Its outputs are those of the graph and the next states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync import hal
from nnasync._core.model import ModelBuilder, Value
from nnasync._core.model.graph import GraphBuilder, Input
from nnasync.errors import ModelError
from nnasync.extensions import GraphOperation, extension_of
from nnasync.hal import Model, OperandLifeTime, OperandType, Operation, Struct
from nnasync.kernels.operation import Tensor
from nnasync.memory import Pool


class WholePort(Struct, frozen=True):
    """An input or output of a file, as an operand."""

    name: str
    tensor: Tensor


class State(Struct, frozen=True):
    """A state of a file, and the number by which its engine knows it."""

    name: str
    tensor: Tensor
    number: int


def whole(
    extension: str,
    file: bytes | Pool,
    label: str,
    *,
    name: str,
    inputs: Sequence[WholePort],
    outputs: Sequence[WholePort],
    states: Sequence[State] = (),
) -> Model:
    """The model that runs a file whole; `label` becomes the name of the operand with the file.

    Raises ModelError.
    """
    if not outputs:
        raise ModelError("has no outputs")
    builder = ModelBuilder(name)
    given: list[Input] = [_input(builder, port) for port in inputs]
    kept = [_state(builder, state) for state in states]
    numbers = [np.asarray([state.number for state in states], np.int32)] if states else []
    values = add_file(
        builder,
        extension,
        [*given, *kept, *numbers],
        file,
        label,
        [*(port.tensor for port in outputs), *(state.tensor for state in states)],
    )
    for port, value in zip(outputs, values, strict=False):
        builder.output(port.name, value)
    for old, new in zip(kept, values[len(outputs) :], strict=True):
        builder.update(old, new)
    return builder.build()


def add_file(
    builder: GraphBuilder,
    extension: str,
    inputs: Sequence[Input],
    file: bytes | Pool,
    label: str,
    outputs: Sequence[Tensor],
) -> tuple[Value, ...]:
    """Add the operation that runs a file; `label` is the name of the operand with the file."""
    type = builder.extension_type(extension, GraphOperation.GRAPH)
    return builder.operation_outputs(type, *inputs, _file(builder, file, label), outputs=outputs)


def _input(builder: ModelBuilder, port: WholePort) -> Value:
    tensor = port.tensor
    return builder.input(
        port.name,
        tensor.shape,
        type=OperandType(tensor.type),
        scale=tensor.scale,
        zero_point=tensor.zero_point,
    )


def _state(builder: ModelBuilder, state: State) -> Value:
    tensor = state.tensor
    return builder.state(
        state.name,
        tensor.shape,
        type=OperandType(tensor.type),
        scale=tensor.scale,
        zero_point=tensor.zero_point,
    )


def _file(builder: GraphBuilder, file: bytes | Pool, label: str) -> Value:
    type = OperandType.TENSOR_OEM_BYTE
    if isinstance(file, Pool):
        return builder.mapped_constant(file, 0, Tensor(type=type, shape=(file.size,)), label)
    return builder.constant(np.frombuffer(file, np.uint8), type=type, name=label)


def graph_of(model: Model, extension: str) -> Operation | None:
    """The operation of a model that is one file of an extension and nothing else, else None.

    Its outputs are those of the model, in any order.
    """
    operations = model.main.operations
    if len(operations) != 1 or not operations[0].inputs:
        return None
    (operation,) = operations
    if not is_file(model, operation, extension):
        return None
    *rest, file = (model.main.operands[index] for index in operation.inputs)
    is_one = (
        file.type == OperandType.TENSOR_OEM_BYTE
        and hal.is_constant(file)
        and sorted(operation.outputs) == sorted(model.main.output_indexes)
        and all(
            hal.is_constant(operand) or operand.lifetime == OperandLifeTime.SUBGRAPH_INPUT
            for operand in rest
        )
    )
    return operation if is_one else None


def is_file(model: Model, operation: Operation, extension: str) -> bool:
    """Whether an operation is a file of an extension."""
    found = extension_of(model.extension_name_to_prefix, operation.type)
    return found == (extension, GraphOperation.GRAPH)


def file_of(model: Model, operation: Operation) -> bytes:
    """The bytes of the file that an operation runs."""
    operand = model.main.operands[operation.inputs[-1]]
    location = operand.location
    memory = memoryview(model.operand_values)
    if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        memory = model.pools[location.pool_index].view
    return bytes(memory[location.offset : location.offset + location.length])
