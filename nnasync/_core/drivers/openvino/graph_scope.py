"""An OpenVINO graph under construction: the values of operands as nodes.

A value is kept in one canonical form by operand type: floats as f32; quantized bytes as f32 that
holds q - zero_point, a whole number, so that padding with 0 is right and every product of a
convolution is exact in float32, and in bfloat16 too; TENSOR_INT32 as i32; TENSOR_BOOL8 as boolean.
Bytes are met only where the graph begins and ends. An operation ends in `store`, which rounds and
limits real numbers to what the output can hold; in the graph that is one FakeQuantize, which
OpenVINO fuses behind the convolution before it.

Images are NHWC to the HAL and NCHW to OpenVINO. An operation may state its result as `Planar`, the
NCHW form of an NHWC operand; a transposition is made only where somebody asks for the other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.drivers.openvino.fake_quantize import ends
from nnasync._core.drivers.openvino.package import element_type, opset
from nnasync.hal import Array, OperandType, Shape, is_quantized
from nnasync.kernels import Tensor, quantized_range

Node = Any
"""An output of a node of OpenVINO's graph."""

FLOATS = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.FLOAT32,
    OperandType.FLOAT16,
)
_TO_NCHW = (0, 3, 1, 2)
_TO_NHWC = (0, 2, 3, 1)

_VELTKAMP, _BEYOND_HALF = 2.0**13 + 1, 2.0**17
AXES = (0, 2, 3, 1)
"""Where each dimension of an NHWC operand is in its NCHW form."""


class Planar:
    """The NCHW form of an operand that is NHWC to the HAL."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node


Result = Node | Planar


def is_float(type: int) -> bool:
    """Returns whether values of a type are kept as they are, in f32."""
    return type in FLOATS


def zero_point(tensor: Tensor) -> int:
    """The zero point of a quantized tensor, 0 for the symmetric types."""
    return tensor.zero_point if is_quantized(tensor.type) else 0


class Scope:
    """The inputs of one operation as nodes, and what operations build graphs from."""

    def __init__(self, precision: str = "f32") -> None:
        """`precision` is that of products: f32, bf16, or int8 or int8-bf16 for those of bytes.

        With the latter those that can be are stated so that OpenVINO computes with bytes, and the
        others are computed in f32 or bf16.
        """
        self.op = opset()
        self.uses_bytes = precision in ("int8", "int8-bf16")
        self.is_product_of_reals = False
        self.is_for_products = False
        self.in_bfloat16 = precision in ("bf16", "int8-bf16")
        self.sums_are_exact = precision == "f32"
        self._tensors: dict[int, Tensor] = {}
        self._plain: dict[int, Node] = {}
        self._planar: dict[int, Node] = {}
        self._inputs: tuple[int, ...] = ()

    # -- values of operands

    def enter(self, inputs: Sequence[int], *, is_for_products: bool = False) -> None:
        """Go on with an operation that reads these operands, and what it is made for."""
        self._inputs = tuple(inputs)
        self.is_product_of_reals = False
        self.is_for_products = is_for_products

    def define(self, index: int, tensor: Tensor, result: Result | None = None) -> None:
        """State what an operand is, and its value unless that is a constant."""
        self._tensors[index] = tensor
        if isinstance(result, Planar):
            self._planar[index] = result.node
        elif result is not None:
            self._plain[index] = result

    def operand(self, index: int) -> Node:
        """The canonical value of an operand of the model, in its own layout."""
        if index not in self._plain:
            if index in self._planar:
                shape = self._tensors[index].shape
                self._plain[index] = self._moved(self._planar[index], _TO_NHWC, shape)
            else:
                self._plain[index] = self.constant(_canonical(self._tensors[index]))
        return self._plain[index]

    def tensor(self, position: int) -> Tensor:
        """Returns the tensor of an input."""
        return self._tensors[self._inputs[position]]

    def value(self, position: int) -> Node:
        """The canonical value of an input in its own layout."""
        return self.operand(self._inputs[position])

    def planar(self, position: int) -> Node:
        """The canonical value of an NHWC input, in the form NCHW."""
        index = self._inputs[position]
        if index not in self._planar:
            tensor = self._tensors[index]
            if tensor.value is not None:
                node = self.constant(_canonical(tensor).transpose(_TO_NCHW))
            else:
                shape = tuple(tensor.shape[axis] for axis in _TO_NCHW)
                node = self._moved(self.operand(index), _TO_NCHW, shape)
            self._planar[index] = node
        return self._planar[index]

    def prefers_planar(self, positions: Sequence[int]) -> bool:
        """Returns whether the NCHW form of these inputs exists, or costs nothing."""
        indexes = [self._inputs[position] for position in positions]
        if not any(index in self._planar and index not in self._plain for index in indexes):
            return False
        return all(self._tensors[index].rank == 4 for index in indexes)

    def real(self, position: int, *, planar: bool = False) -> Node:
        """An input as real numbers: quantized values times their scale."""
        tensor = self.tensor(position)
        node = self.planar(position) if planar else self.value(position)
        if tensor.channel_quant is not None:
            sizes = [1] * tensor.rank
            sizes[tensor.channel_quant.channel_dim] = -1
            scales = np.asarray(tensor.channel_quant.scales, np.float32).reshape(sizes)
            return self.op.multiply(node, self.constant(scales))
        if is_float(tensor.type) or not tensor.scale:
            return node
        return self.op.multiply(node, self.number(tensor.scale))

    def as_stored(self, node: Node, position: int) -> Node:
        """An input with the 11 bits of float16 where that is its type, which is computed in f32.

        Rounding hardly matters but where a function jumps: 0.99999 is 1 in float16, whose floor is
        another one. By Veltkamp's splitting, as OpenVINO takes conversions to f16 and back away;
        what is no number, or beyond float16, stays as it is: the splitting has no answer for that.
        """
        if self.tensor(position).dtype != np.float16:
            return node
        op = self.op
        scaled = op.multiply(node, self.number(_VELTKAMP))
        rounded = op.subtract(scaled, op.subtract(scaled, node))
        return op.select(op.less(op.abs(node), self.number(_BEYOND_HALF)), rounded, node)

    # -- ends of the graph

    def parameter(self, tensor: Tensor) -> tuple[Node, Node]:
        """A parameter in the type of the operand's memory, and its canonical value."""
        op, type = self.op, tensor.type
        memory = op.parameter(list(tensor.shape), element_type(_MEMORY_TYPES[tensor.dtype.name]))
        if type in (OperandType.TENSOR_BOOL8, OperandType.BOOL):
            return memory, op.not_equal(memory, self.constant(np.uint8(0)))
        if is_float(type):
            wide = tensor.dtype == np.float32
            return memory, memory if wide else op.convert(memory, "f32")
        if tensor.dtype == np.int32:
            return memory, memory
        return memory, self.centered(op.convert(memory, "f32"), tensor)

    def centered(self, raw: Node, tensor: Tensor) -> Node:
        """Canonical from raw quantized values."""
        zero = zero_point(tensor)
        return self.op.subtract(raw, self.number(zero)) if zero else raw

    def raw(self, node: Node, tensor: Tensor) -> Node:
        """Raw quantized values, as f32, from canonical ones."""
        zero = zero_point(tensor)
        return self.op.add(node, self.number(zero)) if zero else node

    def memory(self, node: Node, tensor: Tensor) -> Node:
        """A canonical value in the type of the operand's memory."""
        op, type = self.op, tensor.type
        if type in (OperandType.TENSOR_BOOL8, OperandType.BOOL):
            return op.convert(node, "u8")
        if is_float(type):
            return node if tensor.dtype == np.float32 else op.convert(node, "f16")
        if tensor.dtype == np.int32:
            return node
        return op.convert(self.raw(node, tensor), _MEMORY_TYPES[tensor.dtype.name])

    # -- parts of operations

    def constant(self, array: Array | np.generic) -> Node:
        """A constant node."""
        return self.op.constant(np.ascontiguousarray(array).reshape(np.shape(array)))

    def number(self, value: float) -> Node:
        """A constant f32 number."""
        return self.op.constant(np.float32(value))

    def integers(self, values: Sequence[int]) -> Node:
        """A constant list of integers, as shapes and axes are given."""
        return self.op.constant(np.asarray(values, np.int64))

    def reshape(self, node: Node, shape: Sequence[int]) -> Node:
        """Returns the same elements in another shape."""
        return self.op.reshape(node, self.integers(shape), False)

    def transpose(self, node: Node, order: Sequence[int]) -> Node:
        """The dimensions in another order."""
        return self.op.transpose(node, self.integers(order))

    def store(self, node: Node, tensor: Tensor, bounds: tuple[float, float] | None = None) -> Node:
        """Real numbers as the canonical value of an operand, within bounds of raw values."""
        if is_float(tensor.type):
            return self.limited(node, bounds)
        return self.quantize(node, tensor, 1 / np.float64(tensor.scale), bounds)

    def limited(self, node: Node, bounds: tuple[float, float] | None) -> Node:
        """Floats within bounds."""
        lower, upper = bounds or (-np.inf, np.inf)
        if lower == 0 and np.isinf(upper):
            return self.op.relu(node)
        return node if np.isinf(lower) else self.op.clamp(node, float(lower), float(upper))

    def quantize(
        self,
        node: Node,
        tensor: Tensor,
        multiplier: Any,
        bounds: tuple[float, float] | None = None,
        bias: Any = 0.0,
        *,
        whole: bool = False,
    ) -> Node:
        """A multiple of numbers plus a bias, rounded and limited, as an operand's canonical value.

        `multiplier` and `bias` are numbers or arrays that broadcast to the node's shape. `whole`
        says that the numbers are whole, which they are exactly.
        """
        lowest, highest = quantized_range(tensor.type)
        lower, upper = bounds or (lowest, highest)
        first, last = (float(bound) - tensor.zero_point for bound in (lower, upper))
        factor = np.asarray(multiplier, np.float64)
        if last <= first:
            return self.op.clamp(node, first, first)
        in_bytes = self.uses_bytes and not self.is_product_of_reals
        if in_bytes and np.any(bias):
            node, bias = self.op.add(node, self.constant(np.asarray(bias, np.float32))), 0.0
        if in_bytes and (lower, upper) != (lowest, highest):
            node = self._cut(node, factor, (first, last), (lower > lowest, upper < highest))
            first, last = float(lowest - tensor.zero_point), float(highest - tensor.zero_point)
        least, most = first / factor - bias, last / factor - bias
        if least.size == 1:
            least, most = least.reshape(()), most.reshape(())
        count = int(last - first) + 1
        low, high = (
            ends(least, most, count)
            if whole and not in_bytes
            else (least.astype(np.float32), most.astype(np.float32))
        )
        quantized = self.op.fake_quantize(
            node,
            self.constant(low),
            self.constant(high),
            self.number(first),
            self.number(last),
            count,
        )
        if least.ndim == 0 or in_bytes:
            return quantized
        # OpenVINO 2026.4 forgets to round what differs by channel behind some 1x1 convolutions.
        if not (self.uses_bytes and self.is_for_products):
            quantized = self.op.round(quantized, "half_to_even")
        if not self.uses_bytes:
            return quantized
        return self._as_bytes(quantized, lowest - tensor.zero_point)

    def rounded(self, node: Node) -> Node:
        """Whole numbers that are to be added or multiplied one by one.

        OpenVINO 2026.4 does that behind the convolution, and forgets there to round what the
        convolution gives, unless it computes in float32.
        """
        exact = not (self.uses_bytes or self.in_bfloat16)
        return node if exact else self.op.round(node, "half_to_even")

    def cut_off(self, node: Node, tensor: Tensor, count: int) -> Node:
        """Multiples of 1/count, cut off to whole numbers as an operand's canonical value."""
        return self.quantize(node, tensor, 1, bias=0.25 / count - 0.5)

    def _as_bytes(self, node: Node, lowest: float) -> Node:
        """Whole numbers from the lowest on, 256 at most, for products of bytes."""
        limits = self.number(lowest), self.number(lowest + 255)
        return self.op.fake_quantize(node, *limits, *limits, 256)

    def _cut(
        self, node: Node, factor: Array, limits: tuple[float, float], cuts: tuple[bool, bool]
    ) -> Node:
        """Limit numbers that are to be multiplied, so that 256 levels can stay behind them."""
        low, high = ((limit / factor).astype(np.float32) for limit in limits)
        if cuts[0]:
            is_zero = limits[0] == 0
            node = self.op.relu(node) if is_zero else self.op.maximum(node, self.constant(low))
        return self.op.minimum(node, self.constant(high)) if cuts[1] else node

    def _moved(self, node: Node, order: Sequence[int], shape: Shape) -> Node:
        """A transposition between NHWC and NCHW; of single pixels or channels only a new shape."""
        channels, height, width = (
            (shape[1], *shape[2:])
            if order == _TO_NCHW
            else (
                shape[3],
                *shape[1:3],
            )
        )
        if channels == 1 or height * width == 1:
            return self.reshape(node, shape)
        return self.transpose(node, order)


_MEMORY_TYPES = {
    "float32": "f32",
    "float16": "f16",
    "int32": "i32",
    "uint8": "u8",
    "int8": "i8",
    "bool": "u8",
}


def _canonical(tensor: Tensor) -> Array:
    """The canonical value of a constant."""
    value = tensor.value
    if value is None:
        raise ValueError(f"a value of {hal.type_name(tensor.type)} is no constant")
    if value.dtype == np.bool_:
        truth: Array = value.view(np.uint8) != 0
        return truth
    if value.dtype == np.int32:
        return value
    wide: Array = value.astype(np.float32)
    wide -= np.float32(zero_point(tensor))
    return wide
