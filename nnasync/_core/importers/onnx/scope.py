"""The values of an ONNX graph while it becomes a model: computed, constant, or quantized.

ONNX says that something is quantized by pairs of QuantizeLinear and DequantizeLinear around float
operators. What comes out of a DequantizeLinear is kept as a view of the integers before it: an
operation that can takes the integers, for anybody else they are converted.

A value has the shape that ONNX gives it (`shape`) and that of its operand, which differ in two
cases: the HAL has no tensors of rank 0, so their operand has shape [1], and few of its operations
take more than four axes, so the operand of a tensor may have any shape with as many elements.
It is brought to the one in the file for who asks for it (`value`), and to another one for
converters that know what suits them (`reshaped`), which are all that can take high ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.formats.onnx import DOUBLE, element_name, operand_of
from nnasync._core.importers.onnx.folding import Budget
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode, OnnxPort
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.model import Value
from nnasync._core.model.broadcasting import reshape_to
from nnasync._core.model.control_flow import ControlFlow
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType, Shape
from nnasync.kernels.operation import Tensor

MOST_AXES = 4
"""The highest rank that all operations take which a rank does not matter to."""

_CONSTANTS = frozenset({"float16", "float32", "float64", "int32", "int64", "bool"})
_BYTES: dict[np.dtype[Any], OperandType] = {
    np.dtype(np.uint8): OperandType.TENSOR_QUANT8_ASYMM,
    np.dtype(np.int8): OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}


class QuantizedView(msgspec.Struct, frozen=True, eq=False):
    """A float value that exists as quantized integers."""

    value: Value


class QuantizedConstant(msgspec.Struct, frozen=True, eq=False):
    """Constant integers with one scale and zero point, or one of each per index of an axis."""

    numbers: Array
    scales: Array
    zero_points: Array
    axis: int

    @property
    def array(self) -> Array:
        """The numbers that they stand for."""
        shape = [1] * self.numbers.ndim
        if self.scales.size > 1:
            shape[self.axis] = -1
        zero_points, scales = (each.reshape(shape) for each in (self.zero_points, self.scales))
        centered = self.numbers.astype(np.float64) - zero_points
        return (centered * scales.astype(np.float64)).astype(np.float32)


class Target(msgspec.Struct, frozen=True, eq=False):
    """How the result of a step is quantized right behind it, and by which operator."""

    name: str
    type: OperandType
    scale: float
    zero_point: int
    node: int

    def tensor(self, shape: Shape = ()) -> Tensor:
        """The result as an operand."""
        return Tensor(type=self.type, shape=shape, scale=self.scale, zero_point=self.zero_point)


class OnnxScope:
    """Finds or makes the value of each name; converters read from it and write to it."""

    def __init__(self, graph: OnnxGraph, builder: ControlFlow) -> None:
        self.graph = graph
        self.builder = builder
        self.budget = Budget()
        self.done: set[int] = set()
        self._values: dict[str, Value | Array | QuantizedView | QuantizedConstant] = dict(
            graph.constants
        )
        self._made: dict[str, Value] = {}
        self._uses = Counter(name for node in graph.nodes for name in node.reads)
        self._shapes: dict[str, Shape] = {}
        self._reshaped: dict[tuple[int, Shape], Value] = {}
        self._uses.update(port.name for port in graph.outputs)
        self._followers = {name: node for node in graph.nodes for name in node.reads}

    # -- the model's border

    def add_input(self, port: OnnxPort) -> None:
        """Make a port an input of the model; raises ModelError where the HAL has none like it."""
        held = operand_of(port.element)
        if held is None or port.element == DOUBLE:
            raise ModelError(f'input "{port.name}" is {element_name(port.element)}')
        if port.shape is None or None in port.shape:
            raise ModelError(f'input "{port.name}" has open dimensions')
        type, scale = held
        zero_point = 0
        if scale:
            scale, zero_point = self._stated(port)
        shape = tuple(n or 0 for n in port.shape)
        if len(shape) > MOST_AXES:
            raise ModelError(f'input "{port.name}" has rank {len(shape)}')
        value = self.builder.input(
            port.name, shape or (1,), type=type, scale=scale, zero_point=zero_point
        )
        self.define(port.name, value, shape)

    def add_output(self, port: OnnxPort) -> None:
        """Make a port an output of the model; its shape must be the one that the file states."""
        value = self.value(port.name)
        self._check_output(port, value)
        stated = tuple(n or 0 for n in port.shape or ()) or value.shape
        if not hal.has_dimensions(value.shape, stated):
            raise ModelError(
                f'output "{port.name}" would have shape {list(value.shape)}, the file says'
                f" {list(stated)}"
            )
        self.builder.output(port.name, value)

    def _check_output(self, port: OnnxPort, value: Value) -> None:
        held = operand_of(port.element)
        if held is None or held[0] != value.type:
            raise ModelError(f'output "{port.name}" is {element_name(port.element)}')

    def _stated(self, port: OnnxPort) -> tuple[float, int]:
        """Scale and zero point of integers, which what dequantizes them states; else 1 and 0."""
        node = self._followers.get(port.name)
        if node is None or node.type != "DequantizeLinear" or node.inputs[0] != port.name:
            return 1.0, 0
        scale, zero_point, _ = self.parameters(node)
        return scale, zero_point

    # -- reading

    def has(self, node: OnnxNode, position: int) -> bool:
        """Returns whether an operator's input is there."""
        return position < len(node.inputs) and bool(node.inputs[position])

    def array(self, name: str) -> Array | None:
        """The value of a constant, None where it is computed."""
        found = self._values.get(name)
        if isinstance(found, QuantizedConstant):
            return found.array
        return found if isinstance(found, np.ndarray) else None

    def constant(self, node: OnnxNode, position: int, what: str) -> Array:
        """The value of an operator's input, which must be constant."""
        found = self.array(node.inputs[position]) if self.has(node, position) else None
        if found is None:
            raise ModelError(f"its {what} must be constant")
        return found

    def integers(self, node: OnnxNode, position: int, what: str) -> list[int]:
        """The values of an operator's constant integer input."""
        return [int(n) for n in self.constant(node, position, what).reshape(-1)]

    def value(self, name: str) -> Value:
        """A name's value as an operand; integers that stand for floats are converted.

        Raises ModelError where its rank is more than an operation takes.
        """
        found, shape = self._operand(name), self._shapes.get(name)
        if shape is None or found.shape == (shape or (1,)):
            return found
        if len(shape) > MOST_AXES:
            raise ModelError(f"has an input of rank {len(shape)}")
        return self.reshape(found, shape or (1,))

    def reshaped(self, name: str, shape: Sequence[int]) -> Value:
        """A name's value as an operand of another shape with as many elements."""
        known = self.array(name)
        if known is not None:
            wanted = np.ascontiguousarray(known.reshape(shape))
            return self._made_of(name, wanted)
        return self.reshape(self._operand(name), shape)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """An operand in another shape with as many elements; each is made once."""
        key = value.index, tuple(shape)
        made = self._reshaped.get(key)
        if made is None:
            made = self._reshaped[key] = reshape_to(self, value, key[1])
        return made

    def value_of_any_rank(self, name: str) -> Value:
        """A name's value as an operand, which has another shape where its rank is 0 or high."""
        return self._operand(name)

    def _operand(self, name: str) -> Value:
        found = self._values.get(name)
        if isinstance(found, Value):
            return found
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(name, found)
        return made

    def input(self, node: OnnxNode, position: int) -> Value:
        """An operator's input as an operand."""
        if not self.has(node, position):
            raise ModelError(f"input {position} is missing")
        return self.value(node.inputs[position])

    def knows(self, name: str) -> bool:
        """Returns whether a name has its value."""
        return name in self._values

    def operand(self, name: str) -> Value | None:
        """The operand behind a name as it is; None for a constant.

        Raises ModelError where the name is not known.
        """
        found = self._values.get(name)
        if found is None:
            raise ModelError(f'"{name}" is used before an operator writes it')
        if isinstance(found, QuantizedView):
            return found.value
        return found if isinstance(found, Value) else None

    def quantized(self, name: str) -> Value | None:
        """The integers behind a name, if it is a view of some or a constant of one scale."""
        found = self._values.get(name)
        if isinstance(found, QuantizedView):
            return found.value
        if isinstance(found, QuantizedConstant) and found.scales.size == 1:
            type = _BYTES.get(found.numbers.dtype)
            if type is not None:
                return self.builder.constant(
                    found.numbers,
                    type=type,
                    scale=float(found.scales.reshape(-1)[0]),
                    zero_point=int(found.zero_points.reshape(-1)[0]),
                )
        return None

    def quantized_constant(self, name: str) -> QuantizedConstant | None:
        """Constant integers, if a name stands for them."""
        found = self._values.get(name)
        return found if isinstance(found, QuantizedConstant) else None

    def shape(self, name: str) -> Shape:
        """The shape of a name's value in the file; () where it has rank 0."""
        if name in self._shapes:
            return self._shapes[name]
        found = self._values.get(name)
        if isinstance(found, QuantizedView):
            return found.value.shape
        if isinstance(found, QuantizedConstant):
            return found.numbers.shape
        if found is None:
            raise ModelError(f'"{name}" is not known')
        return tuple(found.shape)

    def target(self, step: Step) -> Target | None:
        """Returns how a step's result is quantized, if nothing else uses it; else None."""
        node = self._followers.get(step.output)
        if node is None or node.type != "QuantizeLinear" or self._uses[step.output] != 1:
            return None
        try:
            scale, zero_point, dtype = self.parameters(node)
        except ModelError:
            return None
        type = _BYTES.get(dtype)
        if type is None:
            return None
        return Target(node.outputs[0], type, scale, zero_point, node.index)

    def parameters(self, node: OnnxNode) -> tuple[float, int, np.dtype[Any]]:
        """Scale, zero point and type of a QuantizeLinear or DequantizeLinear of one scale."""
        scales = self.constant(node, 1, "scale")
        zeros = self.constant(node, 2, "zero point") if self.has(node, 2) else np.zeros(1, np.uint8)
        if scales.size != 1 or zeros.size != 1:
            raise ModelError("scales per channel are for constants only")
        return float(scales.reshape(-1)[0]), int(zeros.reshape(-1)[0]), zeros.dtype

    # -- writing

    def define(
        self,
        name: str,
        value: Value | Array | QuantizedView | QuantizedConstant,
        shape: Shape | None = None,
    ) -> None:
        """Give a name its value; `shape` is the one in the file, where the operand has another."""
        if name in self._values:
            raise ModelError(f'"{name}" is written twice')
        self._values[name] = value
        operand = value.value if isinstance(value, QuantizedView) else value
        if shape is not None and isinstance(operand, Value) and operand.shape != shape:
            if math.prod(shape) != math.prod(operand.shape):
                raise ModelError(f"gives shape {list(operand.shape)} instead of {list(shape)}")
            self._shapes[name] = shape

    def alias(self, name: str, other: str, shape: Shape | None = None) -> None:
        """Give a name the value of another, in another shape if one is given."""
        if other not in self._values:
            raise ModelError(f'"{other}" is used before an operator writes it')
        self.define(name, self._values[other], self.shape(other) if shape is None else shape)

    def borrow(
        self, other: OnnxScope, name: str, operand: Value | None = None, as_name: str = ""
    ) -> None:
        """Give a name the value that it has in another scope.

        There `operand` stands for the one of that scope, where it is of another subgraph.
        """
        found = other._values.get(name)
        if found is None:
            raise ModelError(f'"{name}" is used before an operator writes it')
        if operand is not None:
            found = QuantizedView(operand) if isinstance(found, QuantizedView) else operand
        self.define(as_name or name, found, other.shape(name))

    def emit(self, step: Step, type: int, *inputs: Input, shape: Shape | None = None) -> Value:
        """Add a float operation whose result is the step's, of this shape in the file."""
        value = self.builder.operation(type, *inputs, name=step.output)
        self.define(step.output, value, shape)
        return value

    def emit_quantized(
        self, target: Target, type: OperationType, *inputs: Input, shape: Shape = ()
    ) -> Value:
        """Add a quantized operation whose result is that of the operator that quantizes."""
        tensor = target.tensor(shape)
        value = self.builder.operation(type, *inputs, output=tensor, name=target.name)
        self.finish(target, value)
        return value

    def finish(self, target: Target, value: Value) -> None:
        """Make a value the result of the operator that quantizes, which is done thereby."""
        self.define(target.name, value)
        self.done.add(target.node)

    def _make(self, name: str, found: Array | QuantizedView | QuantizedConstant | None) -> Value:
        if found is None:
            raise ModelError(f'"{name}" is used before an operator writes it')
        if isinstance(found, QuantizedView):
            tensor = Tensor(type=OperandType.TENSOR_FLOAT32, shape=found.value.shape)
            return self.builder.operation(OperationType.DEQUANTIZE, found.value, output=tensor)
        if isinstance(found, QuantizedConstant):
            found = found.array
        return self._made_of(name, np.ascontiguousarray(found))

    def _made_of(self, name: str, array: Array) -> Value:
        if array.dtype.name not in _CONSTANTS or not array.size:
            raise ModelError(f'constant "{name}" is {array.dtype}{list(array.shape)}')
        return self.builder.constant(array, name=name)
