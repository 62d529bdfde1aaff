"""Common operations by name, with the conventions of Python: keywords, strings, (height, width).

Each method adds one operation, with its parameters in the HAL's order, width before height. A
quantized result whose scale no rule fixes needs `scale` and `zero_point`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nnasync._core.model.graph import GraphBuilder, Input, Value, int32_array
from nnasync.errors import InvalidArgument
from nnasync.hal import (
    Array,
    FusedActivationFunc,
    OperandType,
    OperationType,
    PaddingScheme,
    Shape,
)
from nnasync.kernels.operation import Tensor

Size = int | tuple[int, int]
"""One number for both directions, or (height, width)."""
Padding = str | tuple[int, int, int, int]
""""same", "valid", or the number of rows and columns (left, right, top, bottom)."""

_ACTIVATIONS = {
    "none": FusedActivationFunc.NONE,
    "relu": FusedActivationFunc.RELU,
    "relu1": FusedActivationFunc.RELU1,
    "relu6": FusedActivationFunc.RELU6,
}
_RECURRENT_ACTIVATIONS = {"none": 0, "relu": 1, "relu6": 3, "tanh": 4, "sigmoid": 6}
_PADDINGS = {"same": PaddingScheme.SAME, "valid": PaddingScheme.VALID}
_FLOATS: dict[int, npt.DTypeLike] = {
    OperandType.TENSOR_FLOAT32: np.float32,
    OperandType.TENSOR_FLOAT16: np.float16,
}
_Gates = Sequence[Input]


class Layers(GraphBuilder):
    """The named operations of a subgraph under construction."""

    def conv_2d(
        self,
        x: Value,
        weights: Input,
        bias: Input = None,
        *,
        stride: Size = 1,
        padding: Padding = "same",
        dilation: Size = 1,
        activation: str = "none",
        scale: float | None = None,
        zero_point: int | None = None,
        name: str = "",
    ) -> Value:
        """Convolution of x [N, H, W, Cin] with weights [Cout, h, w, Cin] and bias [Cout]."""
        filter = self._value(weights, x)
        return self.operation(
            OperationType.CONV_2D,
            x,
            filter,
            self._bias(bias, x, filter, filter.shape[0]),
            *_padding(padding),
            *_width_first(stride),
            _choice(_ACTIVATIONS, activation, "activation"),
            *_dilation(dilation),
            scale=scale,
            zero_point=zero_point,
            name=name,
        )

    def depthwise_conv_2d(
        self,
        x: Value,
        weights: Input,
        bias: Input = None,
        *,
        stride: Size = 1,
        padding: Padding = "same",
        dilation: Size = 1,
        activation: str = "none",
        scale: float | None = None,
        zero_point: int | None = None,
        name: str = "",
    ) -> Value:
        """Convolution of each channel of x [N, H, W, C] with weights [1, h, w, C * multiplier]."""
        filter = self._value(weights, x)
        return self.operation(
            OperationType.DEPTHWISE_CONV_2D,
            x,
            filter,
            self._bias(bias, x, filter, filter.shape[-1]),
            *_padding(padding),
            *_width_first(stride),
            filter.shape[-1] // max(x.shape[-1], 1),
            _choice(_ACTIVATIONS, activation, "activation"),
            *_dilation(dilation),
            scale=scale,
            zero_point=zero_point,
            name=name,
        )

    def fully_connected(
        self,
        x: Value,
        weights: Input,
        bias: Input = None,
        *,
        activation: str = "none",
        scale: float | None = None,
        zero_point: int | None = None,
        name: str = "",
    ) -> Value:
        """x, flattened to [batch, inputs], times weights [units, inputs], plus bias [units]."""
        matrix = self._value(weights, x)
        return self.operation(
            OperationType.FULLY_CONNECTED,
            x,
            matrix,
            self._bias(bias, x, matrix, matrix.shape[0]),
            _choice(_ACTIVATIONS, activation, "activation"),
            scale=scale,
            zero_point=zero_point,
            name=name,
        )

    def average_pool_2d(
        self,
        x: Value,
        size: Size,
        *,
        stride: Size | None = None,
        padding: Padding = "valid",
        activation: str = "none",
        name: str = "",
    ) -> Value:
        """Mean over windows of x [N, H, W, C]; padding does not count. The stride is the size."""
        type = OperationType.AVERAGE_POOL_2D
        return self._pool(type, x, size, stride, padding, activation, name)

    def max_pool_2d(
        self,
        x: Value,
        size: Size,
        *,
        stride: Size | None = None,
        padding: Padding = "valid",
        activation: str = "none",
        name: str = "",
    ) -> Value:
        """Maximum over windows of x [N, H, W, C]; the stride is the size, unless given."""
        type = OperationType.MAX_POOL_2D
        return self._pool(type, x, size, stride, padding, activation, name)

    def _pool(
        self,
        type: OperationType,
        x: Value,
        size: Size,
        stride: Size | None,
        padding: Padding,
        activation: str,
        name: str,
    ) -> Value:
        return self.operation(
            type,
            x,
            *_padding(padding),
            *_width_first(size if stride is None else stride),
            *_width_first(size),
            _choice(_ACTIVATIONS, activation, "activation"),
            like=x,
            name=name,
        )

    def add(self, a: Value, b: Input, **options: Any) -> Value:
        """Sum a + b; takes `activation`, `scale`, `zero_point`, `name`."""
        return self._binary(OperationType.ADD, a, b, **options)

    def sub(self, a: Value, b: Input, **options: Any) -> Value:
        """Difference a - b; takes `activation`, `scale`, `zero_point`, `name`."""
        return self._binary(OperationType.SUB, a, b, **options)

    def mul(self, a: Value, b: Input, **options: Any) -> Value:
        """Product a * b; takes `activation`, `scale`, `zero_point`, `name`."""
        return self._binary(OperationType.MUL, a, b, **options)

    def _binary(
        self,
        type: OperationType,
        a: Value,
        b: Input,
        *,
        activation: str = "none",
        scale: float | None = None,
        zero_point: int | None = None,
        name: str = "",
    ) -> Value:
        b = self._value(b, a)
        fused = _choice(_ACTIVATIONS, activation, "activation")
        return self.operation(type, a, b, fused, scale=scale, zero_point=zero_point, name=name)

    def relu(self, x: Value, *, name: str = "") -> Value:
        """max(x, 0)."""
        return self.operation(OperationType.RELU, x, like=x, name=name)

    def relu6(self, x: Value, *, name: str = "") -> Value:
        """x, limited to [0, 6]."""
        return self.operation(OperationType.RELU6, x, like=x, name=name)

    def logistic(self, x: Value, *, name: str = "") -> Value:
        """1 / (1 + exp(-x))."""
        return self.operation(OperationType.LOGISTIC, x, name=name)

    def tanh(self, x: Value, *, name: str = "") -> Value:
        """Hyperbolic tangent."""
        return self.operation(OperationType.TANH, x, name=name)

    def softmax(self, x: Value, beta: float = 1.0, *, name: str = "") -> Value:
        """exp(beta * x), normalized over the last axis."""
        return self.operation(OperationType.SOFTMAX, x, float(beta), name=name)

    def reshape(self, x: Value, shape: Shape, *, name: str = "") -> Value:
        """Returns the same numbers in another shape; one dimension may be -1."""
        target = int32_array(shape)
        return self.operation(OperationType.RESHAPE, x, target, like=x, name=name)

    def concatenation(self, values: Sequence[Value], axis: int, *, name: str = "") -> Value:
        """Values one after the other along an axis, quantized like the first."""
        if not values:
            raise InvalidArgument("concatenation needs at least one value")
        axis %= max(len(values[0].shape), 1)
        return self.operation(OperationType.CONCATENATION, *values, axis, like=values[0], name=name)

    def mean(
        self, x: Value, axes: Sequence[int], *, keep_dims: bool = False, name: str = ""
    ) -> Value:
        """Mean over some axes."""
        chosen = int32_array(axes)
        return self.operation(OperationType.MEAN, x, chosen, int(keep_dims), like=x, name=name)

    def pad(self, x: Value, paddings: npt.ArrayLike, *, name: str = "") -> Value:
        """Put zeros before and after each axis of x; paddings [rank, 2]."""
        amounts = int32_array(paddings)
        return self.operation(OperationType.PAD, x, amounts, like=x, name=name)

    def quantize(
        self,
        x: Value,
        scale: float,
        zero_point: int = 0,
        *,
        type: OperandType = OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        name: str = "",
    ) -> Value:
        """Make x 8-bit numbers: x / scale + zero_point, rounded."""
        result = Tensor(type=type, shape=x.shape, scale=scale, zero_point=zero_point)
        return self.operation(OperationType.QUANTIZE, x, output=result, name=name)

    def dequantize(self, x: Value, *, name: str = "") -> Value:
        """(x - zero_point) * scale as float32."""
        result = Tensor(type=OperandType.TENSOR_FLOAT32, shape=x.shape)
        return self.operation(OperationType.DEQUANTIZE, x, output=result, name=name)

    def lstm(
        self,
        x: Value,
        h: Value,
        c: Value,
        *,
        input_weights: _Gates,
        recurrent_weights: _Gates,
        biases: _Gates,
        peephole: _Gates = (None, None, None),
        projection: Input = None,
        projection_bias: Input = None,
        activation: str = "tanh",
        cell_clip: float = 0.0,
        projection_clip: float = 0.0,
        name: str = "",
    ) -> tuple[Value, Value, Value]:
        """One step of an LSTM: (output, new h, new c).

        Gates are in the order input, forget, cell, output: weights [units, inputs], recurrent
        weights [units, outputs], biases [units]; None for the input gate couples it to the forget
        gate. Peephole weights [units] are those of input, forget and output gate.
        """
        _, h_next, c_next, y = self.operation_outputs(
            OperationType.LSTM,
            x,
            *_gates(input_weights, 4, "input_weights"),
            *_gates(recurrent_weights, 4, "recurrent_weights"),
            *_gates(peephole, 3, "peephole"),
            *_gates(biases, 4, "biases"),
            projection,
            projection_bias,
            h,
            c,
            _choice(_RECURRENT_ACTIVATIONS, activation, "activation"),
            float(cell_clip),
            float(projection_clip),
            names=["", "", "", name],
        )
        return y, h_next, c_next

    def _value(self, value: Input, x: Value) -> Value:
        """A handle, or numbers as a tensor of the type of x."""
        if isinstance(value, Value):
            return value
        if value is None:
            raise InvalidArgument("a tensor that the operation needs is None")
        array = np.asarray(value)
        if x.type in _FLOATS and array.dtype.kind in "iuf":
            array = array.astype(_FLOATS[x.type])
        return self.constant(array.reshape(array.shape or (1,)))

    def _bias(self, bias: Input, x: Value, weights: Value, channels: int) -> Value:
        """The bias as an operand; of a quantized layer its scale is the product of both."""
        if isinstance(bias, Value):
            return bias
        if x.type in _FLOATS:
            return self._value(np.zeros(channels) if bias is None else bias, x)
        numbers: Array = np.zeros(channels, np.int32) if bias is None else np.asarray(bias)
        return self.constant(numbers, scale=bias_scale(x.scale, weights.scale))


def bias_scale(input_scale: float, weights_scale: float) -> float:
    """Scale of the bias of a quantized layer, in float32 as the HAL has it."""
    return float(np.float32(input_scale * weights_scale))


def _width_first(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[1], size[0])


def _padding(padding: Padding) -> tuple[int, ...]:
    if isinstance(padding, str):
        return (_choice(_PADDINGS, padding, "padding"),)
    if len(padding) != 4:
        raise InvalidArgument(f"padding is (left, right, top, bottom), not {padding}")
    return tuple(padding)


def _dilation(dilation: Size) -> tuple[bool | int, ...]:
    """The trailing parameters of a convolution: data layout and dilation, or nothing."""
    factors = _width_first(dilation)
    return () if factors == (1, 1) else (False, *factors)


def _gates(values: _Gates, count: int, name: str) -> tuple[Input, ...]:
    if len(values) != count:
        raise InvalidArgument(f"{name} has {len(values)} entries, expected {count}")
    return tuple(values)


def _choice(choices: dict[str, Any], name: str, what: str) -> int:
    if name not in choices:
        raise InvalidArgument(f"{what} {name!r} is none of {', '.join(choices)}")
    return int(choices[name])
