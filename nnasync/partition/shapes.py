"""Shapes of values between operations that the model leaves open, and the rules know.

What a step reads is all that its engine knows of what came before, so a shape that follows from
operations of other steps has to be written down.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, Operation
from nnasync.kernels import Tensor
from nnasync.validation import find_operation, subgraph_tensors

__all__ = ["with_inferred_shapes"]


def with_inferred_shapes(model: Model) -> Model:
    """The model with the dimensions of temporaries that follow from what it states.

    A shape that depends on values, or on an input of unknown shape, stays as it is.
    """
    operands = model.main.operands
    if all(hal.is_fully_specified(each.type, each.dimensions) for each in operands):
        return model
    tensors = subgraph_tensors(model, model.main)
    for operation in model.main.operations:
        _infer(model, operation, tensors)
    changed = tuple(
        msgspec.structs.replace(operand, dimensions=tensor.shape)
        if operand.lifetime == OperandLifeTime.TEMPORARY_VARIABLE
        and tensor is not None
        and hal.is_fully_specified(tensor.type, tensor.shape)
        else operand
        for operand, tensor in zip(operands, tensors, strict=True)
    )
    main = msgspec.structs.replace(model.main, operands=changed)
    return msgspec.structs.replace(model, main=main)


def _infer(model: Model, operation: Operation, tensors: list[Tensor | None]) -> None:
    """Complete `tensors` with what the rule of an operation says of its outputs."""
    rule = find_operation(model, operation.type)
    outputs = _known_types(tensors, operation.outputs)
    if rule is None or outputs is None:
        return
    try:
        inferred = rule.infer([tensors[index] for index in operation.inputs], outputs)
    except ModelError:
        return
    for index, found in zip(operation.outputs, inferred, strict=True):
        given = tensors[index]
        if given is not None and not given.is_known and found.is_known:
            tensors[index] = msgspec.structs.replace(given, shape=found.shape, exact=found.exact)


def _known_types(tensors: Sequence[Tensor | None], indexes: Sequence[int]) -> list[int] | None:
    found = [tensor.type for index in indexes if (tensor := tensors[index]) is not None]
    return found if len(found) == len(indexes) else None
