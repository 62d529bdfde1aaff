"""A foreign file as a model of one operation, for the engine that the file was made for.

The operation is GRAPH of an extension. Its inputs are those of the file's graph, then the states,
then, if there are states, an INT32 constant with the engine's number for each of them, and last
the file itself, a constant TENSOR_OEM_BYTE. Its outputs are those of the graph and the next states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync import hal
from nnasync._core.model.constants import Constants
from nnasync._core.validation import validate_model
from nnasync.errors import ModelError
from nnasync.extensions import FileOperand, GraphOperation, encode, extension_of
from nnasync.hal import (
    DataLocation,
    ExtensionNameAndPrefix,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    StatePair,
    Struct,
    Subgraph,
)
from nnasync.kernels.tensor import Tensor

_PREFIX = 1
"""What stands for the extension in such a model, where it is the only one."""


def own_type(type: FileOperand) -> int:
    """A type of operands that the extension has, as it stands in such a model."""
    return encode(_PREFIX, type)


class FileContent:
    """The bytes of a file as memory that a model refers to, without a copy."""

    __slots__ = ("view",)

    name = "ashmem"

    def __init__(self, content: bytes) -> None:
        self.view = memoryview(content)

    @property
    def size(self) -> int:
        """Returns the number of bytes."""
        return self.view.nbytes


class WholePort(Struct, frozen=True):
    """An input or output of a file, as an operand; its type may be an `own_type`."""

    name: str
    tensor: Tensor


class State(Struct, frozen=True):
    """A state of a file, and the number by which its engine knows it."""

    name: str
    tensor: Tensor
    number: int


def whole(
    extension: str,
    file: bytes | Memory,
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
    kept = [WholePort(state.name, state.tensor) for state in states]
    following = [WholePort(f"{state.name}/next", state.tensor) for state in states]
    given, results = [*inputs, *kept], [*outputs, *following]
    constants, labels = Constants(), [label]
    if states:
        constants.add(np.asarray([state.number for state in states], np.int32))
        labels = ["", label]
    _add_file(constants, file)
    values, pools, places = constants.finish()
    operands = [
        *(_operand(port, OperandLifeTime.SUBGRAPH_INPUT, 1) for port in given),
        *(
            _constant(constants.array(number), name, *places[number])
            for number, name in enumerate(labels)
        ),
        *(_operand(port, OperandLifeTime.SUBGRAPH_OUTPUT, 0) for port in results),
    ]
    numbers, end = tuple(range(len(operands))), len(given) + len(labels)
    operation = Operation(encode(_PREFIX, GraphOperation.GRAPH), numbers[:end], numbers[end:])
    model = Model(
        main=Subgraph(tuple(operands), (operation,), numbers[: len(given)], numbers[end:]),
        operand_values=values,
        pools=pools,
        extension_name_to_prefix=(ExtensionNameAndPrefix(extension, _PREFIX),),
        state=tuple(
            StatePair(len(inputs) + number, len(outputs) + number) for number in range(len(states))
        ),
        name=name,
    )
    validate_model(model)
    return model


def _add_file(constants: Constants, file: bytes | Memory) -> None:
    if isinstance(file, bytes):
        constants.add(np.frombuffer(file, np.uint8))
    else:
        constants.add_mapped(file, 0, np.frombuffer(file.view, np.uint8))


def _operand(port: WholePort, lifetime: OperandLifeTime, consumers: int) -> Operand:
    tensor = port.tensor
    return Operand(
        type=int(tensor.type),
        dimensions=tuple(int(n) for n in tensor.shape),
        number_of_consumers=consumers,
        scale=float(tensor.scale),
        zero_point=int(tensor.zero_point),
        lifetime=lifetime,
        name=port.name,
    )


def _constant(
    array: hal.Array, name: str, lifetime: OperandLifeTime, location: DataLocation
) -> Operand:
    """The numbers of states, or else the file."""
    is_file = array.dtype == np.uint8
    return Operand(
        type=int(OperandType.TENSOR_OEM_BYTE if is_file else OperandType.TENSOR_INT32),
        dimensions=array.shape,
        number_of_consumers=1,
        lifetime=lifetime,
        location=location,
        name=name,
    )


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
    """Returns whether an operation is a file of an extension."""
    found = extension_of(model.extension_name_to_prefix, operation.type)
    return found == (extension, GraphOperation.GRAPH)


def file_of(model: Model, operation: Operation) -> bytes:
    """The bytes of the file that an operation runs; not copied where they are all of a memory."""
    operand = model.main.operands[operation.inputs[-1]]
    location = operand.location
    memory = memoryview(model.operand_values)
    if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        memory = model.pools[location.pool_index].view
    if location.length == memory.nbytes and isinstance(memory.obj, bytes):
        return memory.obj
    return bytes(memory[location.offset : location.offset + location.length])
