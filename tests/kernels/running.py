"""One operation by hand: tensors in, what the prepared kernel computes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Operation, Tensor

T = OperandType

TENSOR_TYPES: dict[str, OperandType] = {
    "float32": T.TENSOR_FLOAT32,
    "float16": T.TENSOR_FLOAT16,
    "int32": T.TENSOR_INT32,
    "uint8": T.TENSOR_QUANT8_ASYMM,
    "int8": T.TENSOR_QUANT8_ASYMM_SIGNED,
    "bool": T.TENSOR_BOOL8,
}


def tensor(
    value: Any,
    type: OperandType | None = None,
    *,
    scale: float = 0.0,
    zero_point: int = 0,
    scales: Sequence[float] | None = None,
    channel_dim: int = 0,
) -> Tensor:
    """A tensor with a value; with `scales`, of the per-channel type."""
    array = np.asarray(value)
    quant = None if scales is None else hal.ChannelQuant(tuple(scales), channel_dim)
    if type is None:
        type = TENSOR_TYPES[array.dtype.name]
        if quant is not None:
            type = T.TENSOR_QUANT8_SYMM_PER_CHANNEL
    return Tensor(
        type=type,
        shape=array.shape,
        scale=scale,
        zero_point=zero_point,
        channel_quant=quant,
        value=np.ascontiguousarray(array).reshape(array.shape),
    )


def scalar(value: float | bool, type: OperandType | None = None) -> Tensor:
    """A scalar: BOOL, INT32 or FLOAT32 by the Python type of the value."""
    if type is None:
        type = {bool: T.BOOL, int: T.INT32}.get(value.__class__, T.FLOAT32)
    return Tensor(type=type, value=np.asarray(value, hal.dtype_of(type)))


def integers(*values: int) -> Tensor:
    """A one-dimensional TENSOR_INT32."""
    return tensor(np.asarray(values, np.int32))


def without_value(given: Tensor) -> Tensor:
    """The same operand as an input of the model."""
    return msgspec.structs.replace(given, value=None, exact=True)


def run(
    operation: OperationType | Operation,
    *inputs: Tensor | None,
    runtime: Sequence[int] = (0,),
    scale: float = 0.0,
    zero_point: int = 0,
    output_types: Sequence[int] = (),
) -> list[Array]:
    """Infers, prepares, binds and runs twice; scratch is poisoned before each run.

    Inputs listed in `runtime` are given without their value to `prepare`.
    """
    known = operation if isinstance(operation, Operation) else OPERATIONS[operation]
    outputs = [
        Tensor(
            type=out.type,
            shape=out.shape,
            exact=out.exact,
            scale=out.scale or scale,
            zero_point=out.zero_point if out.scale else zero_point,
        )
        for out in known.infer(inputs, output_types)
    ]
    hidden = [
        without_value(given) if given is not None and index in runtime else given
        for index, given in enumerate(inputs)
    ]
    kernel = known.prepare(hidden, outputs)
    arrays = [None if given is None else given.value for given in inputs]
    before = [None if array is None else array.copy() for array in arrays]
    targets = [np.zeros(out.shape, out.dtype) for out in outputs]
    scratch = [np.zeros(spec.shape, spec.dtype) for spec in kernel.scratch]
    step = kernel.bind(arrays, targets, scratch)
    results = []
    for _ in range(2):
        for memory in (*scratch, *targets):
            memory.reshape(-1).view(np.uint8).fill(0x7B)
        step()
        results.append([target.copy() for target in targets])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    for array, old in zip(arrays, before, strict=True):
        if array is not None:
            np.testing.assert_array_equal(array, old)
    return results[1]
