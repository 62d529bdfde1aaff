"""The tensors of a TFLite graph as values of a model under construction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.formats.tflite import TENSOR_TYPES
from nnasync.hal import Array, ChannelQuant, OperandType, Shape
from nnasync.importers.tflite.reader import Graph, OperatorInfo, TensorInfo
from nnasync.kernels.operation import Tensor
from nnasync.memory import Pool
from nnasync.model import ModelBuilder, Value
from nnasync.model.graph import Input

__all__ = ["Tensors"]

_QUANTIZED = ("UINT8", "INT8", "INT16")
_DTYPES: dict[str, np.dtype[Any]] = {"INT64": np.dtype(np.int64)}


class Tensors:
    """Finds or makes the value of each tensor; converters read from it and write to it."""

    def __init__(self, graph: Graph, pool: Pool, name: str) -> None:
        self.graph = graph
        self.builder = ModelBuilder(name)
        self._pool = pool
        self._values: dict[int, Value] = {}
        self._scaled_integers = {
            operator.inputs[0]
            for operator in graph.operators
            if operator.name == "QUANTIZE" and operator.inputs
        }

    def add_input(self, index: int, position: int) -> None:
        """Make a tensor an input of the model."""
        if index in self._values:
            raise ModelError(f"tensor {index} is an input of the model twice")
        tensor = self._stored(index)
        self._values[index] = self.builder.input(
            self.graph.tensors[index].name or f"input{position}",
            tensor.shape or (1,),
            type=OperandType(tensor.type),
            scale=tensor.scale,
            zero_point=tensor.zero_point,
        )

    def add_output(self, index: int, position: int) -> None:
        """Make a tensor an output of the model."""
        self._stored(index)
        name = self.graph.tensors[index].name or f"output{position}"
        self.builder.output(name, self.required(index))

    def described(self, index: int) -> Tensor:
        """What the file says of a tensor, without its value."""
        info = self.graph.tensors[index]
        if info.type not in TENSOR_TYPES:
            raise ModelError(f"{_named(index, info)} is {info.type}, which is not supported")
        type, quantization = TENSOR_TYPES[info.type], info.quantization
        if info.type not in _QUANTIZED:
            return Tensor(type=type, shape=info.shape)
        scales, zero_points = quantization.scales, quantization.zero_points
        if len(scales) > 1:
            return _per_channel(index, info)
        if not scales:
            raise ModelError(f"{_named(index, info)} is {info.type} without quantisation")
        zero_point = zero_points[0] if zero_points else 0
        if info.type == "INT16" and zero_point:
            type, zero_point = OperandType.TENSOR_QUANT16_ASYMM, zero_point + 2**15
        return Tensor(type=type, shape=info.shape, scale=scales[0], zero_point=zero_point)

    def optional(self, operator: OperatorInfo, position: int) -> Value | None:
        """The value of an operator's input, or None where it is left out."""
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return None
        return self.required(operator.inputs[position])

    def input(self, operator: OperatorInfo, position: int) -> Value:
        """The value of an operator's input, which must be there."""
        value = self.optional(operator, position)
        if value is None:
            raise ModelError(f"input {position} is missing")
        return value

    def required(self, index: int) -> Value:
        """The value of a tensor: computed before, a constant, or a state."""
        value = self._values.get(index)
        if value is None:
            info = self.graph.tensors[index]
            if info.length:
                value = self._constant(index, self._stored(index))
            elif info.is_variable:
                value = self._state(index)
            else:
                raise ModelError(f"{_named(index, info)} is used before an operator writes it")
            self._values[index] = value
        return value

    def symmetric(self, operator: OperatorInfo, position: int) -> Value | None:
        """Constant 8-bit weights without a zero point, or None where they are left out."""
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return None
        index = operator.inputs[position]
        tensor = self.described(index)
        plain = Tensor(type=OperandType.TENSOR_QUANT8_SYMM, shape=tensor.shape, scale=tensor.scale)
        if tensor.zero_point or not self.graph.tensors[index].length:
            raise ModelError(f"input {position} must be constant, with zero point 0")
        return self._constant(index, plain)

    def bias(self, operator: OperatorInfo, position: int, scale: float, channels: int) -> Value:
        """The bias of a layer: its scale follows from the layer; zeros where it is left out."""
        index = operator.inputs[position] if position < len(operator.inputs) else -1
        if index < 0:
            dtype = np.float32 if self.input(operator, 0).scale == 0 else np.int32
            zeros = np.zeros(channels, dtype)
            return self.builder.constant(zeros, scale=0.0 if dtype == np.float32 else scale)
        tensor = self.described(index)
        if tensor.type != OperandType.TENSOR_INT32 or not self.graph.tensors[index].length:
            return self.required(index)
        return self._constant(index, Tensor(type=tensor.type, shape=tensor.shape, scale=scale))

    def is_given(self, operator: OperatorInfo, position: int) -> bool:
        """Whether an operator's input is there and holds anything."""
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return False
        return 0 not in self.graph.tensors[operator.inputs[position]].shape

    def numbers(self, index: int) -> Array | None:
        """The value of a constant tensor, in its own type; None where it is no constant."""
        info = self.graph.tensors[index]
        if not info.length:
            return None
        dtype = _DTYPES.get(info.type)
        if info.type in TENSOR_TYPES:
            dtype = hal.dtype_of(TENSOR_TYPES[info.type])
        if dtype is None:
            raise ModelError(f"{_named(index, info)} is {info.type}, which is not supported")
        self._check_length(index, dtype.itemsize, info.shape)
        return self._pool.array(dtype, info.shape, info.offset)

    def integers(self, operator: OperatorInfo, position: int) -> list[int] | None:
        """The values of an operator's constant integer input; None where it is not there."""
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return None
        numbers = self.numbers(operator.inputs[position])
        return None if numbers is None else [int(n) for n in numbers.reshape(-1)]

    def emit(
        self,
        operator: OperatorInfo,
        type: int,
        inputs: Sequence[Input],
        *,
        results: int = 1,
        position: int = 0,
        others: Mapping[int, Tensor] = {},
    ) -> tuple[Value, ...]:
        """Add the operation; its result `position` is the operator's output.

        `others` describes further results, where no rule of the operation does.
        """
        stated = [others.get(number) for number in range(results)]
        names = [""] * results
        index = self.result(operator)
        stated[position] = self.described(index)
        names[position] = self.graph.tensors[index].name
        values = self.builder.operation_outputs(type, *inputs, outputs=stated, names=names)
        self.define(operator, values[position])
        return values

    def define(self, operator: OperatorInfo, value: Value) -> None:
        """Make a value the operator's output."""
        index = self.result(operator)
        if index in self._values:
            raise ModelError(f"{_named(index, self.graph.tensors[index])} is written twice")
        self._values[index] = value

    def result(self, operator: OperatorInfo) -> int:
        """The tensor that is the operator's first output."""
        if not operator.outputs:
            raise ModelError("has no output")
        return operator.outputs[0]

    def _constant(self, index: int, tensor: Tensor) -> Value:
        info = self.graph.tensors[index]
        shape = tensor.shape or (1,)
        self._check_length(index, tensor.dtype.itemsize, shape)
        whole = Tensor(
            type=tensor.type,
            shape=shape,
            scale=tensor.scale,
            zero_point=tensor.zero_point,
            channel_quant=tensor.channel_quant,
        )
        if info.offset % tensor.dtype.itemsize == 0:
            return self.builder.mapped_constant(self._pool, info.offset, whole, info.name)
        raw = self._pool.array(np.uint8, (info.length,), info.offset).tobytes()
        return self.builder.constant(
            np.frombuffer(raw, tensor.dtype).reshape(shape),
            type=OperandType(tensor.type),
            scale=tensor.scale,
            zero_point=tensor.zero_point,
            channel_quant=tensor.channel_quant,
            name=info.name,
        )

    def _check_length(self, index: int, itemsize: int, shape: Shape) -> None:
        info = self.graph.tensors[index]
        needed = itemsize * math.prod(shape)
        if info.length != needed:
            raise ModelError(
                f"{_named(index, info)} of {info.type} {list(info.shape)} takes {needed} bytes, "
                f"its buffer has {info.length}"
            )

    def _stored(self, index: int) -> Tensor:
        """What the file says of a tensor that is seen from outside, so that its bytes matter.

        One of INT32 has a scale where an operator asks for it; elsewhere that says nothing.
        """
        tensor = self.described(index)
        if tensor.type == OperandType.TENSOR_INT32 and index in self._scaled_integers:
            scale = self.graph.tensors[index].quantization.scales[0]
            return msgspec.structs.replace(tensor, scale=scale)
        if tensor.type == OperandType.TENSOR_QUANT16_ASYMM:
            info = self.graph.tensors[index]
            raise ModelError(
                f"{_named(index, info)} is INT16 with zero point"
                f" {info.quantization.zero_points[0]}; only values inside the network can be"
            )
        return tensor

    def _state(self, index: int) -> Value:
        tensor = self._stored(index)
        return self.builder.state(
            self.graph.tensors[index].name or f"state{index}",
            tensor.shape,
            type=OperandType(tensor.type),
            scale=tensor.scale,
            zero_point=tensor.zero_point,
        )


def _per_channel(index: int, info: TensorInfo) -> Tensor:
    quantization = info.quantization
    if info.type != "INT8" or any(quantization.zero_points):
        raise ModelError(
            f"{_named(index, info)} is {info.type} quantised per channel; only INT8 with zero "
            "points of 0 can be"
        )
    return Tensor(
        type=OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        shape=info.shape,
        channel_quant=ChannelQuant(quantization.scales, quantization.dimension),
    )


def _named(index: int, info: TensorInfo) -> str:
    return f'tensor {index} "{info.name}"'
