"""What the converters of all families share: their form, kinds of types, options and small steps.

An operator has one converter or several; the first that takes the types of its tensors is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import Value
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import FusedActivationFunc, OperandType, OperationType, Shape, Struct
from nnasync.kernels.operation import Tensor

Convert = Callable[[Tensors, OperatorInfo], None]
Refuse = Callable[[Graph, OperatorInfo], str | None]
Kinds = tuple[tuple[str, ...], ...]
"""The types of the inputs, one tuple a choice; the last of each stands for all further inputs."""

FLOATS: Kinds = (("FLOAT32",),)
BYTES: Kinds = (("UINT8",), ("INT8",))
PLAIN: Kinds = (*FLOATS, *BYTES)
NUMBERS: Kinds = (*PLAIN, ("INT32",))
BOOLEANS: Kinds = (("BOOL",),)

ACTIVATIONS: dict[int, FusedActivationFunc] = {
    0: FusedActivationFunc.NONE,
    1: FusedActivationFunc.RELU,
    2: FusedActivationFunc.RELU1,
    3: FusedActivationFunc.RELU6,
}
"""TFLite's fused activations that the HAL can fuse too; 4 is tanh, 5 the sign bit."""


def refuse_fused(graph: Graph, operator: OperatorInfo) -> str | None:
    """Returns why the fused activation of an operator has no counterpart, or None."""
    activation = operator.options.get("FusedActivationFunction", 0)
    if activation not in ACTIVATIONS:
        return f"with fused activation {activation}"
    return None


def refuse_nothing(graph: Graph, operator: OperatorInfo) -> str | None:
    """Returns None, since the types alone decide."""
    return None


class Converter(Struct, frozen=True):
    """Turns one operator on tensors of some types into operations, and says when it cannot.

    INT64 counts as INT32; without `kinds` it takes any types. Outputs have the type of the first
    input unless `outputs` says otherwise.
    """

    kinds: Kinds
    convert: Convert
    refuse: Refuse = refuse_fused
    outputs: tuple[str, ...] = ()

    def takes(self, types: Sequence[str], results: set[str]) -> bool:
        """Returns whether it takes these types of inputs ("" for an omitted one) and outputs."""
        if not self.kinds:
            return True
        given = [_narrow(type) for type in types]
        legal = set(self.outputs or given[:1])
        return {_narrow(type) for type in results} <= legal and any(
            _fits(given, kind) for kind in self.kinds
        )


def _narrow(type: str) -> str:
    return "INT32" if type == "INT64" else type


def _fits(types: Sequence[str], kind: tuple[str, ...]) -> bool:
    wanted = [*kind, *[kind[-1]] * len(types)]
    return all(a in ("", b) for a, b in zip(types, wanted, strict=False))


def option(operator: OperatorInfo, name: str) -> Any:
    """An operator's parameter by the schema's name."""
    return operator.options[name]


def fused(operator: OperatorInfo) -> int:
    """The fused activation, as the HAL has it."""
    return int(ACTIVATIONS[option(operator, "FusedActivationFunction")])


def axis_of(axis: Any, rank: int) -> int:
    """An axis that may count from the end, counted from the start; raises ModelError."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not one of a tensor of rank {rank}")
    return int(axis) % rank


def target_of(shape: Shape, x: Value) -> Shape:
    """A shape to give to x: the HAL has no rank 0, which in TFLite is a single number."""
    return shape or (1,) * (math.prod(x.shape) == 1)


def with_shape(tensor: Tensor, shape: Shape) -> Tensor:
    """Returns a tensor of the same type and quantization with another shape."""
    return msgspec.structs.replace(tensor, shape=shape, value=None)


def reshaped(tensors: Tensors, x: Value, shape: Shape) -> Value:
    """Returns the same numbers in another shape."""
    if x.shape == shape:
        return x
    return tensors.builder.operation(OperationType.RESHAPE, x, int32_array(shape), like=x)


def dequantized(tensors: Tensors, x: Value) -> Value:
    """A quantized value as float32."""
    result = Tensor(type=OperandType.TENSOR_FLOAT32, shape=x.shape)
    return tensors.builder.operation(OperationType.DEQUANTIZE, x, output=result)


def define_rescaled(tensors: Tensors, operator: OperatorInfo, y: Value) -> None:
    """Make y the operator's output, quantized as the file says."""
    wanted = tensors.described(tensors.result(operator))
    if (wanted.scale, wanted.zero_point) == (y.scale, y.zero_point):
        tensors.define(operator, y)
    else:
        tensors.emit(operator, OperationType.QUANTIZE, [dequantized(tensors, y)])
