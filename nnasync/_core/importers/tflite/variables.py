"""Resource variables: values that a network keeps by name, which become states of the model.

A state begins as zeros. Where CALL_ONCE gives a variable another value at first, a second state
says whether the network ran before: it begins as false, and chooses between that value and the
state.
"""

from __future__ import annotations

import numpy as np

from nnasync._core.importers.tflite.converter import Converter, option, refuse_nothing
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import OperatorInfo
from nnasync._core.model import ModelBuilder, Value
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType


def _handle(tensors: Tensors, operator: OperatorInfo) -> None:
    names = [str(option(operator, name)) for name in ("Container", "SharedName")]
    tensors.variables.handles[tensors.result(operator)] = "/".join(filter(None, names))


def _once(tensors: Tensors, operator: OperatorInfo) -> None:
    """The first values of variables, which another subgraph computes of constants."""
    first = tensors.first_values(option(operator, "InitSubgraphIndex"))
    tensors.variables.first.update(first)


def _assign(tensors: Tensors, operator: OperatorInfo) -> None:
    name = tensors.variables.name(operator)
    tensors.variables.current[name] = tensors.input(operator, 1)


def _read(tensors: Tensors, operator: OperatorInfo) -> None:
    name, variables = tensors.variables.name(operator), tensors.variables
    if name not in variables.current:
        variables.current[name] = _started(tensors, operator, name)
    tensors.define(operator, variables.current[name])


def _started(tensors: Tensors, operator: OperatorInfo, name: str) -> Value:
    """The value of a variable before the run."""
    builder, like = tensors.builder, tensors.described(tensors.result(operator))
    if not isinstance(builder, ModelBuilder):
        raise ModelError("reads a variable inside a part")
    first = tensors.variables.first.get(name)
    shape = like.shape or (first.shape if first is not None else ())
    if not shape:
        raise ModelError(f"variable {name!r} has a shape that is not known")
    type, scale, zero = OperandType(like.type), like.scale, like.zero_point
    state = builder.state(name, shape, type=type, scale=scale, zero_point=zero)
    tensors.variables.states.append((name, state))
    if first is None or not (first != zero).any():
        return state
    constant = builder.constant(first.reshape(shape), type=type, scale=scale, zero_point=zero)
    has_run = builder.state(f"{name}/has run", shape, type=OperandType.TENSOR_BOOL8)
    builder.update(has_run, builder.constant(np.ones(shape, np.bool_)))
    return builder.operation(OperationType.SELECT, has_run, state, constant, like=state)


def finish_variables(tensors: Tensors) -> None:
    """Make the last value of each variable the next state."""
    for name, state in tensors.variables.states:
        if isinstance(tensors.builder, ModelBuilder):
            tensors.builder.update(state, tensors.variables.current[name])


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "VAR_HANDLE": (Converter((), _handle, refuse_nothing),),
    "CALL_ONCE": (Converter((), _once, refuse_nothing),),
    "ASSIGN_VARIABLE": (Converter((), _assign, refuse_nothing),),
    "READ_VARIABLE": (Converter((), _read, refuse_nothing),),
}
