"""Whatever the operands, an operation computes or says what is wrong: it never breaks otherwise."""

from __future__ import annotations

import random

import numpy as np
import pytest

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import OperandType
from nnasync.kernels import (
    EXTENSION_OPERATIONS,
    OPERATIONS,
    Operation,
    Parameter,
    Signature,
    Tensor,
)

INTEGERS = (0, 1, 2, 3, 1, 1, -1, 4, 2**31 - 1)
FLOATS = (0.0, 1.0, 0.5, -1.0)


def some_shape(rng: random.Random, *sizes: int) -> hal.Shape:
    return tuple(rng.choice(sizes) for _ in range(rng.choice([1, 2, 3, 4, 4, 4])))


def operand(rng: random.Random, parameter: Parameter, usual: hal.Shape) -> Tensor | None:
    if parameter.optional and rng.random() < 0.5:
        return None
    dtype = hal.dtype_of(parameter.type)
    if hal.is_scalar(parameter.type):
        value = rng.choice(INTEGERS if dtype.kind == "i" else FLOATS)
        return Tensor(type=parameter.type, value=np.asarray(value).astype(dtype))
    shape = usual if rng.random() < 0.6 else some_shape(rng, 1, 2, 3, 4)
    values = np.random.default_rng(rng.randrange(2**32)).integers(-2, 4, shape).astype(dtype)
    quant = hal.ChannelQuant((0.1,) * rng.choice([1, 2, 3, 4]), rng.choice([0, 3]))
    per_channel = parameter.type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    return Tensor(
        type=parameter.type,
        shape=shape,
        scale=rng.choice([0, 0.5, 0.25, 0.25]),
        zero_point=0 if dtype == np.int32 else rng.choice([0, 3]),
        channel_quant=quant if per_channel else None,
        value=values if rng.random() < 0.7 else None,
    )


def attempt(operation: Operation, signature: Signature, rng: random.Random) -> bool:
    """Prepares and runs; False where it is refused with the error that is meant for it."""
    more = rng.randint(0, 2) if signature.variadic else 0
    parameters = signature.parameters(len(signature.inputs) + more) or ()
    usual = some_shape(rng, 1, 2, 3, 4, 8)
    inputs = [operand(rng, parameter, usual) for parameter in parameters]
    try:
        inferred = operation.infer(inputs, [p.type for p in signature.outputs])
        outputs = [Tensor(t.type, t.shape or (1,), t.scale or 0.5, t.zero_point) for t in inferred]
        kernel = operation.prepare(inputs, outputs)
        sources = [
            None if t is None else np.zeros(t.shape, t.dtype) if t.value is None else t.value
            for t in inputs
        ]
        targets = [np.zeros(t.shape, t.dtype) for t in outputs]
        scratch = [np.zeros(spec.shape, spec.dtype) for spec in kernel.scratch]
        with np.errstate(all="ignore"):
            kernel.bind(sources, targets, scratch)()
    except ModelError as error:
        assert str(error).startswith(operation.name)
        return False
    return True


@pytest.mark.parametrize(
    "operation", [*OPERATIONS.values(), *EXTENSION_OPERATIONS.values()], ids=lambda each: each.name
)
def test_computes_or_says_what_is_wrong(operation: Operation) -> None:
    rng = random.Random(operation.type)
    for _ in range(300):
        attempt(operation, rng.choice(operation.signatures), rng)
