"""Operations on float16, computed in float32: operands are widened before, results narrowed after.

numpy's own functions of float16 convert each element in software and round in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync.hal import Array, OperandType, Shape
from nnasync.kernels.kernel import Kernel, Step
from nnasync.kernels.tensor import ArraySpec, Tensor

_HALVES: dict[int, OperandType] = {
    OperandType.TENSOR_FLOAT16: OperandType.TENSOR_FLOAT32,
    OperandType.FLOAT16: OperandType.FLOAT32,
}

Specialize = Callable[[Sequence[Tensor | None], Sequence[Tensor]], tuple[list[Tensor], Kernel]]
"""From inputs and declared outputs to the outputs as they will be, and the kernel."""


def any_half(*tensors: Tensor | None) -> bool:
    """Returns whether an operand is of float16."""
    return any(tensor is not None and tensor.type in _HALVES for tensor in tensors)


def _widened(tensor: Tensor | None) -> Tensor | None:
    """The float32 twin of a float16 operand; others as they are."""
    if tensor is None or tensor.type not in _HALVES:
        return tensor
    value = None if tensor.value is None else tensor.value.astype(np.float32)
    type = _HALVES[tensor.type]
    return Tensor(type=type, shape=tensor.shape, value=value, exact=tensor.exact, widened=True)


def half_kernel(
    specialize: Specialize, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
) -> tuple[list[Tensor], Kernel]:
    """A kernel that converts float16 operands to float32, computes, and converts back."""
    wide_inputs = [_widened(tensor) for tensor in inputs]
    declared = [tensor for tensor in map(_widened, outputs) if tensor is not None]
    wide_outputs, inner = specialize(wide_inputs, declared)
    results = [
        msgspec.structs.replace(wide, type=tensor.type)
        for wide, tensor in zip(wide_outputs, outputs, strict=True)
    ]
    converted = [
        index
        for index, tensor in enumerate(inputs)
        if tensor is not None and tensor.type in _HALVES and tensor.value is None
    ]
    returned = [index for index, tensor in enumerate(outputs) if tensor.type in _HALVES]
    specs = [ArraySpec(_shape(wide_inputs[index])) for index in converted]
    specs += [ArraySpec(wide_outputs[index].shape) for index in returned]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        wide_in = [
            array if tensor is None or tensor.value is None else tensor.value
            for array, tensor in zip(inputs, wide_inputs, strict=True)
        ]
        wide_out = list(outputs)
        before: list[tuple[Array, Array]] = []
        after: list[tuple[Array, Array]] = []
        for index, wide in zip(converted, scratch, strict=False):
            narrow = inputs[index]
            before.append((wide, narrow))
            wide_in[index] = wide
        for index, wide in zip(returned, scratch[len(converted) :], strict=False):
            after.append((outputs[index], wide))
            wide_out[index] = wide
        compute = inner.bind(wide_in, wide_out, scratch[len(specs) :])
        return _converting(before, compute, after)

    return results, Kernel(bind, (*specs, *inner.scratch))


def _shape(tensor: Tensor | None) -> Shape:
    return () if tensor is None else tensor.shape


def _converting(
    before: Sequence[tuple[Array, Array]], compute: Step, after: Sequence[tuple[Array, Array]]
) -> Step:
    copyto = np.copyto

    def step() -> None:
        for target, source in before:
            copyto(target, source)
        compute()
        for target, source in after:
            copyto(target, source, casting="same_kind")

    return step
