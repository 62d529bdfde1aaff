"""Shapes of values between operations that the model leaves open, and the rules know.

What a step reads is all that its engine knows of what came before, so a shape that follows from
operations of other steps has to be written down.
"""

from __future__ import annotations

import msgspec

from nnasync import hal
from nnasync._core.validation.reading import resolved
from nnasync.hal import Model, OperandLifeTime


def with_inferred_shapes(model: Model) -> Model:
    """Returns the model with the dimensions of temporaries that follow from what it states.

    A shape that depends on values, or on an input of unknown shape, stays as it is.
    """
    operands = model.main.operands
    if all(hal.is_fully_specified(each.type, each.dimensions) for each in operands):
        return model
    tensors = resolved(model)
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
