"""The tensors of a TFLite graph as values of a model under construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo, TensorInfo, labeled
from nnasync._core.model import ModelBuilder, Value
from nnasync._core.model.control_flow import ControlFlow
from nnasync._core.model.graph import Input, int32_array
from nnasync.errors import ModelError
from nnasync.hal import Array, ChannelQuant, OperandType, Shape
from nnasync.kernels.operation import Tensor
from nnasync.memory import Pool

TENSOR_TYPES: dict[str, OperandType] = {
    "FLOAT32": OperandType.TENSOR_FLOAT32,
    "FLOAT16": OperandType.TENSOR_FLOAT16,
    "INT32": OperandType.TENSOR_INT32,
    "INT64": OperandType.TENSOR_INT32,
    "BOOL": OperandType.TENSOR_BOOL8,
    "UINT8": OperandType.TENSOR_QUANT8_ASYMM,
    "INT8": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    "INT16": OperandType.TENSOR_QUANT16_SYMM,
}
"""The operand types of TFLite's; the HAL has no integers of 64 bits, so they have 32 inside."""

DTYPES: dict[str, np.dtype[Any]] = {
    **{name: hal.dtype_of(type) for name, type in TENSOR_TYPES.items()},
    "INT64": np.dtype(np.int64),
}
"""How the numbers of a constant are stored in a file."""

_QUANTIZED = ("UINT8", "INT8", "INT16")

Part = Callable[[int, ControlFlow, Sequence[Value]], list[Value]]
"""Converts another subgraph, by its number, with these inputs; gives its outputs."""


FirstValues = Callable[[int], Mapping[str, Array]]
"""The first values of variables that a subgraph, by its number, assigns."""


class Variables:
    """The resource variables of a graph by name: first values, states, and values so far."""

    def __init__(self) -> None:
        self.handles: dict[int, str] = {}
        self.first: dict[str, Array] = {}
        self.states: list[tuple[str, Value]] = []
        self.current: dict[str, Value] = {}

    def name(self, operator: OperatorInfo) -> str:
        """The name of the variable whose handle is an operator's first input."""
        handle = operator.inputs[0] if operator.inputs else -1
        if handle not in self.handles:
            raise ModelError("takes a handle that is not known before the run")
        return self.handles[handle]


class Tensors:
    """Finds or makes the value of each tensor; converters read from it and write to it.

    `numbers_of` holds what operators give that were computed while the file was read: arrays, which
    are masked where a number depends on a dimension that is open.
    """

    def __init__(
        self,
        graph: Graph,
        pool: Pool,
        builder: ControlFlow,
        part: Part,
        first_values: FirstValues,
    ) -> None:
        self.graph = graph
        self.builder = builder
        self.part = part
        self.first_values = first_values
        self.variables = Variables()
        self.numbers_of: dict[int, Array] = {}
        self._pool = pool
        self._values: dict[int, Value] = {}
        self._scaled_integers = {
            operator.inputs[0]
            for operator in graph.operators
            if operator.name == "QUANTIZE" and operator.inputs
        }

    def add_input(self, index: int, name: str, shape: Shape) -> None:
        """Make a tensor an input of the model; 0 is an open dimension."""
        if index in self._values:
            raise ModelError(f"tensor {index} is an input of the model twice")
        tensor = self._stored(index)
        self._values[index] = self.builder.input(
            name,
            shape or (1,),
            type=OperandType(tensor.type),
            scale=tensor.scale,
            zero_point=tensor.zero_point,
        )

    def give(self, index: int, value: Value) -> None:
        """Make a value that of an input of a subgraph."""
        self._values[index] = value

    def add_output(self, index: int, name: str) -> None:
        """Make a tensor an output of the model."""
        self._stored(index)
        self.builder.output(name, self.required(index))

    def described(self, index: int) -> Tensor:
        """Returns a tensor as the file describes it, without its value.

        A shape that the file leaves open is not known, whatever the file fills in.
        """
        info = self.graph.tensors[index]
        if info.type not in TENSOR_TYPES:
            raise ModelError(f"{labeled(index, info)} is {info.type}, which is not supported")
        type, quantization = TENSOR_TYPES[info.type], info.quantization
        shape = () if 0 in info.open_shape and not info.length else info.shape
        if info.type not in _QUANTIZED:
            return Tensor(type=type, shape=shape)
        scales, zero_points = quantization.scales, quantization.zero_points
        if len(scales) > 1:
            return _per_channel(index, info)
        if not scales:
            raise ModelError(f"{labeled(index, info)} is {info.type} without quantization")
        zero_point = zero_points[0] if zero_points else 0
        if info.type == "INT16" and zero_point:
            type, zero_point = OperandType.TENSOR_QUANT16_ASYMM, zero_point + 2**15
        return Tensor(type=type, shape=shape, scale=scales[0], zero_point=zero_point)

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
            if index in self.numbers_of:
                value = self._computed(index)
            elif info.length:
                value = self._constant(index, self._stored(index))
            elif info.is_variable:
                value = self._state(index)
            else:
                raise ModelError(f"{labeled(index, info)} has no value")
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

    def weights(self, operator: OperatorInfo, position: int, shape: Shape | None = None) -> Value:
        """The weights of a layer; those of 8 bits on floats as floats, in this shape if given."""
        index = operator.inputs[position] if position < len(operator.inputs) else -1
        if index < 0:
            raise ModelError(f"input {position} is missing")
        info, main = self.graph.tensors[index], self.graph.tensors[self.result(operator)]
        if info.type in _QUANTIZED and main.type == "FLOAT32":
            return self._floats(index)
        if shape is None:
            return self.required(index)
        tensor = msgspec.structs.replace(self._stored(index), shape=shape)
        return self._constant(index, tensor)

    def _floats(self, index: int) -> Value:
        """A quantized constant as floats: what it stands for."""
        info, numbers = self.graph.tensors[index], self.numbers(index)
        if numbers is None:
            raise ModelError(f"{labeled(index, info)} must be a constant")
        return self.builder.constant(dequantized_numbers(info, numbers), name=info.name)

    def bias(
        self,
        operator: OperatorInfo,
        position: int,
        scale: float,
        channels: int,
        x: Value | None = None,
    ) -> Value:
        """The bias of a layer on x: its scale follows from the layer; zeros where it is left out.

        x is the operator's first input unless given.
        """
        index = operator.inputs[position] if position < len(operator.inputs) else -1
        if index < 0:
            x = x or self.input(operator, 0)
            dtype = np.float32 if x.scale == 0 else np.int32
            zeros = np.zeros(channels, dtype)
            return self.builder.constant(zeros, scale=0.0 if dtype == np.float32 else scale)
        tensor = self.described(index)
        if tensor.type != OperandType.TENSOR_INT32 or not self.graph.tensors[index].length:
            return self.required(index)
        return self._constant(index, Tensor(type=tensor.type, shape=tensor.shape, scale=scale))

    def is_given(self, operator: OperatorInfo, position: int) -> bool:
        """Returns whether an operator's input is there and holds anything."""
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return False
        return 0 not in self.graph.tensors[operator.inputs[position]].shape

    def numbers(self, index: int) -> Array | None:
        """The value of a constant tensor, in its own type; None where it is no constant."""
        info = self.graph.tensors[index]
        if index in self.numbers_of:
            return self.numbers_of[index]
        if not info.length or info.is_sparse:
            return None
        if info.type not in DTYPES:
            raise ModelError(f"{labeled(index, info)} is {info.type}, which is not supported")
        self._check_length(index, DTYPES[info.type].itemsize, info.shape)
        return self._pool.array(DTYPES[info.type], info.shape, info.offset)

    def integers(self, operator: OperatorInfo, position: int) -> list[int] | None:
        """The values of an operator's constant integer input; None where it is not there."""
        if position >= len(operator.inputs) or operator.inputs[position] < 0:
            return None
        numbers = self.numbers(operator.inputs[position])
        if numbers is None or np.ma.is_masked(numbers):
            return None
        return [int(n) for n in numbers.reshape(-1)]

    def constant(self, operator: OperatorInfo, position: int) -> list[int]:
        """The values of an operator's integer input; raises ModelError where it is computed."""
        numbers = self.integers(operator, position)
        if numbers is None:
            raise ModelError(f"input {position} must be a constant")
        return numbers

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
        self._values[self.result(operator)] = value

    def define_all(self, operator: OperatorInfo, values: Sequence[Value]) -> None:
        """Make values the operator's outputs."""
        if len(values) != len(operator.outputs):
            raise ModelError(f"has {len(operator.outputs)} outputs, expected {len(values)}")
        self._values.update(zip(operator.outputs, values, strict=True))

    def result(self, operator: OperatorInfo) -> int:
        """The tensor that is the operator's first output."""
        if not operator.outputs:
            raise ModelError("has no output")
        return operator.outputs[0]

    def _computed(self, index: int) -> Value:
        """The constant that was computed while the file was read."""
        info, numbers = self.graph.tensors[index], self.numbers_of[index]
        if np.ma.is_masked(numbers):
            raise ModelError(f"{labeled(index, info)} depends on an open dimension")
        if numbers.size == 0:
            raise ModelError(f"{labeled(index, info)} is empty")
        tensor = self.described(index)
        return self.builder.constant(
            int32_array(numbers) if numbers.dtype == np.int64 else numbers,
            type=OperandType(tensor.type),
            scale=tensor.scale,
            zero_point=tensor.zero_point,
            name=info.name,
        )

    def _constant(self, index: int, tensor: Tensor) -> Value:
        info = self.graph.tensors[index]
        if info.is_sparse:
            raise ModelError(f"{labeled(index, info)} is sparse, which is not supported")
        shape = tensor.shape or (1,)
        if info.type == "INT64":
            self._check_length(index, 8, shape)
            numbers = int32_array(self._pool.array(DTYPES[info.type], shape, info.offset))
            return self.builder.constant(numbers.reshape(shape), name=info.name)
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
                f"{labeled(index, info)} of {info.type} {list(info.shape)} takes {needed} bytes, "
                f"its buffer has {info.length}"
            )

    def _stored(self, index: int) -> Tensor:
        """Returns the description of a tensor that is seen from outside, so that its bytes matter.

        One of INT32 has a scale where an operator asks for it; elsewhere that says nothing.
        """
        tensor = self.described(index)
        if tensor.type == OperandType.TENSOR_INT32 and index in self._scaled_integers:
            scale = self.graph.tensors[index].quantization.scales[0]
            return msgspec.structs.replace(tensor, scale=scale)
        if tensor.type == OperandType.TENSOR_QUANT16_ASYMM:
            info = self.graph.tensors[index]
            raise ModelError(
                f"{labeled(index, info)} is INT16 with zero point"
                f" {info.quantization.zero_points[0]}; only values inside the network can be"
            )
        return tensor

    def _state(self, index: int) -> Value:
        if not isinstance(self.builder, ModelBuilder):
            raise ModelError(f"{labeled(index, self.graph.tensors[index])} is a state of a part")
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
            f"{labeled(index, info)} is {info.type} quantized per channel; only INT8 with zero "
            "points of 0 can be"
        )
    return Tensor(
        type=OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        shape=info.shape,
        channel_quant=ChannelQuant(quantization.scales, quantization.dimension),
    )


def dequantized_numbers(info: TensorInfo, numbers: Array) -> Array:
    """Returns the real values of a quantized tensor's numbers, as float32."""
    scales, zero_points = info.quantization.scales, info.quantization.zero_points
    if not scales or len(zero_points) not in (0, 1, len(scales)):
        raise ModelError(f'tensor "{info.name}" is {info.type} without quantization')
    shape = [1] * numbers.ndim
    if len(scales) > 1:
        axis = info.quantization.dimension
        if not 0 <= axis < numbers.ndim or numbers.shape[axis] != len(scales):
            raise ModelError(f'tensor "{info.name}" has {len(scales)} scales')
        shape[axis] = len(scales)
    scale = np.asarray(scales, np.float32).reshape(shape if len(scales) > 1 else ())
    zero = np.asarray(zero_points or [0], np.float32)
    zero = zero.reshape(shape if len(zero_points) > 1 else ())
    found: Array = (numbers.astype(np.float32) - zero) * scale
    return found
