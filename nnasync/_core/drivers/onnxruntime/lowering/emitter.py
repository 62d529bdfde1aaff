"""An ONNX graph under construction: values of operands in the forms and layouts that nodes want.

An operand of rank 4 may exist with its channels last, as the HAL has it, or first, as ONNX does; a
quantized one as integers or, behind a DequantizeLinear, as floats. Each form is made once, when it
is first wanted. ONNX Runtime fuses an operator between a DequantizeLinear and a QuantizeLinear into
one of integers.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync._core.drivers.onnxruntime.lowering.call import OrtUnsupported
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, FusedActivationFunc, OperandType, Shape, is_quantized
from nnasync.kernels import Tensor

OPSET = 17
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
AXIS_FIRST = (0, 2, 3, 1)
"""Where each axis of a tensor with channels last is, once they are first."""

_IR_VERSION = 8
_HALF, _SYMMETRIC = OperandType.TENSOR_FLOAT16, OperandType.TENSOR_QUANT8_SYMM
_PLAIN = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8)
_FLOAT32, _FLOAT16 = 1, 10
_Key = tuple[int, bool]
_Node = tuple[str, list[str], list[str], dict[str, Any]]


class Emitter:
    """Nodes and constants, and the names of operands' values by index and layout."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self.tensors = tensors
        self.nodes: list[_Node] = []
        self.constants: dict[str, Array] = {}
        self._whole: dict[_Key, str] = {}
        self._real: dict[_Key, str] = {}
        self._count = 0

    # -- nodes and constants

    def node(self, type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node of one output; returns its name."""
        return self.nodes_of(type, inputs, 1, **attributes)[0]

    def nodes_of(
        self, type: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node of several outputs; returns their names."""
        names = [self._name("v") for _ in range(outputs)]
        self.nodes.append((type, list(inputs), names, attributes))
        return names

    def nodes_to(self, name: str, source: str) -> None:
        """Give a value another name, that of an output of the graph."""
        self.nodes.append(("Identity", [source], [name], {}))

    def constant(self, array: Array) -> str:
        """The name of a constant; ONNX Runtime's optimizers stumble where two nodes share one."""
        name = self._name("c")
        self.constants[name] = array
        return name

    def integers(self, numbers: Sequence[int]) -> str:
        """The name of a constant of int64."""
        return self.constant(np.asarray(numbers, np.int64))

    # -- operands

    def tensor(self, index: int) -> Tensor:
        """Returns the tensor of an operand."""
        tensor = self.tensors[index]
        if tensor is None:
            raise OrtUnsupported("an input is omitted")
        return tensor

    def add_input(self, index: int, name: str) -> None:
        """Make an operand an input of the graph."""
        self._whole[index, False] = name

    def is_first(self, *indexes: int) -> bool:
        """Returns whether one of these operands is channels first, so that all had better be."""
        found = False
        for index in indexes:
            tensor = self.tensor(index)
            if tensor.value is not None or tensor.size == 1:
                continue
            if tensor.rank != 4:
                return False
            found = found or any((index, True) in names for names in (self._whole, self._real))
        return found

    def whole(self, index: int, *, first: bool = False) -> str:
        """An operand's value as it is, in a layout."""
        name = self._whole.get((index, first))
        if name is None:
            name = self._whole[index, first] = self._make_whole(index, first)
        return name

    def real(self, index: int, *, first: bool = False) -> str:
        """An operand's value as float32, in a layout; int32 and bool stay what they are."""
        tensor = self.tensor(index)
        if tensor.type in _PLAIN:
            return self.whole(index, first=first)
        name = self._real.get((index, first))
        if name is None:
            name = self._real[index, first] = self._made_real(
                self.whole(index, first=first), tensor
            )
        return name

    def _made_real(self, name: str, tensor: Tensor) -> str:
        if tensor.type == _HALF:
            return self.node("Cast", [name], to=_FLOAT32)
        if is_quantized(tensor.type) or tensor.type == _SYMMETRIC:
            return self.dequantized(name, tensor)
        raise OrtUnsupported(f"takes {OperandType(tensor.type).name}")

    def give(self, index: int, name: str, *, first: bool = False) -> None:
        """Make a value that is an operand's as it is, in a layout, the operand's."""
        self._whole[index, first] = name

    def give_real(self, index: int, name: str, *, first: bool = False) -> None:
        """Make floats an operand's value: a quantized operand is quantized here."""
        tensor = self.tensor(index)
        if is_quantized(tensor.type):
            name = self.node("QuantizeLinear", [name, *self.scale_of(tensor)])
        elif tensor.type == _HALF:
            name = self.node("Cast", [name], to=_FLOAT16)
        elif tensor.type not in _PLAIN:
            raise OrtUnsupported(f"gives {OperandType(tensor.type).name}")
        self.give(index, name, first=first)

    def scale_of(self, tensor: Tensor) -> list[str]:
        """Scale and zero point of a tensor, as constants."""
        zero_point = np.asarray(tensor.zero_point, tensor.dtype)
        return [self.constant(np.asarray(tensor.scale, np.float32)), self.constant(zero_point)]

    def dequantized(self, name: str, tensor: Tensor) -> str:
        """Integers as the floats that they stand for."""
        return self.node("DequantizeLinear", [name, *self.scale_of(tensor)])

    def activated(self, name: str, activation: int, result: Tensor | None = None) -> str:
        """A value behind a fused activation, if the range of its type does not clamp it alike."""
        if activation == FusedActivationFunc.NONE or (
            result is not None and is_redundant(activation, result)
        ):
            return name
        if activation == FusedActivationFunc.RELU:
            return self.node("Relu", [name])
        bounds = {FusedActivationFunc.RELU1: (-1, 1), FusedActivationFunc.RELU6: (0, 6)}
        if activation not in bounds:
            raise OrtUnsupported(f"has activation {activation}")
        limits = bounds[FusedActivationFunc(activation)]
        names = [self.constant(np.asarray(limit, np.float32)) for limit in limits]
        return self.node("Clip", [name, *names])

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """A value in another shape."""
        return self.node("Reshape", [name, self.integers(shape)])

    def finish(self, inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> bytes:
        """The file: inputs and outputs are (name, element type, shape)."""
        onnx = package()
        helper, to_tensor = onnx.helper, onnx.numpy_helper.from_array
        graph = helper.make_graph(
            [helper.make_node(t, names, made, **options) for t, names, made, options in self.nodes],
            name or "model",
            [helper.make_tensor_value_info(*entry) for entry in inputs],
            [helper.make_tensor_value_info(*entry) for entry in outputs],
            [to_tensor(np.array(array, order="C"), key) for key, array in self.constants.items()],
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
        file: bytes = model.SerializeToString()
        return file

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _make_whole(self, index: int, first: bool) -> str:
        tensor = self.tensor(index)
        value = tensor.value
        if value is not None:
            if first:
                value = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(FIRST)
            return self.constant(value)
        other = self._whole.get((index, not first))
        if other is None:
            raise OrtUnsupported("an input is computed by an operation that is not taken")
        if first and tensor.rank != 4:
            return other
        return self._moved(other, tensor.shape, first)

    def _moved(self, name: str, shape: Shape, first: bool) -> str:
        batch, height, width, channels = shape
        if channels == 1 or height * width == 1:
            target = (batch, channels, height, width) if first else shape
            return self.reshaped(name, target)
        return self.node("Transpose", [name], perm=FIRST if first else LAST)


def is_redundant(activation: int, tensor: Tensor) -> bool:
    """Returns whether the range of a quantized tensor clamps as an activation does."""
    if not is_quantized(tensor.type):
        return False
    info = np.iinfo(tensor.dtype)
    low = tensor.zero_point == info.min
    high = 6 / tensor.scale + tensor.zero_point >= info.max - 0.5
    return low and (
        activation == FusedActivationFunc.RELU or (activation == FusedActivationFunc.RELU6 and high)
    )


def shifted(numbers: Array, zero_point: int) -> tuple[Array, int]:
    """Unsigned bytes as signed ones, which stand for the same and are multiplied faster."""
    if numbers.dtype != np.uint8:
        return numbers, zero_point
    return (numbers.astype(np.int16) - 128).astype(np.int8), zero_point - 128


def package() -> Any:
    """The package onnx, which builds graphs; raises InvalidArgument where it is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise InvalidArgument(
            "onnx is not installed: pip install 'nnasync[onnxruntime]'"
        ) from error
