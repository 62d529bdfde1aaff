"""A foreign file as a model of one operation, for the engine that the file was made for.

The operation is GRAPH of an extension. Its inputs are those of the file's graph, then the states,
then, if there are states, an INT32 constant with the engine's number for each of them, and last
the file itself, a constant TENSOR_OEM_BYTE. Its outputs are those of the graph and the next states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.errors import ModelError
from nnasync.hal import Model, OperandType, Struct
from nnasync.kernels.operation import Tensor
from nnasync.memory import Pool
from nnasync.model import ModelBuilder, Value
from nnasync.model.graph import Input

__all__ = ["Port", "State", "whole"]


class Port(Struct, frozen=True):
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
    operation: int,
    file: bytes | Pool,
    label: str,
    *,
    name: str,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
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
    values = builder.operation_outputs(
        builder.extension_type(extension, operation),
        *given,
        *kept,
        *numbers,
        _file(builder, file, label),
        outputs=[*(port.tensor for port in outputs), *(state.tensor for state in states)],
    )
    for port, value in zip(outputs, values, strict=False):
        builder.output(port.name, value)
    for old, new in zip(kept, values[len(outputs) :], strict=True):
        builder.update(old, new)
    return builder.build()


def _input(builder: ModelBuilder, port: Port) -> Value:
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


def _file(builder: ModelBuilder, file: bytes | Pool, label: str) -> Value:
    type = OperandType.TENSOR_OEM_BYTE
    if isinstance(file, Pool):
        return builder.mapped_constant(file, 0, Tensor(type=type, shape=(file.size,)), label)
    return builder.constant(np.frombuffer(file, np.uint8), type=type, name=label)
