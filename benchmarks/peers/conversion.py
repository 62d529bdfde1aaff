"""A feed-forward model as ONNX, the form in which ONNX Runtime's users give it such networks.

ONNX Runtime does not read .tflite files. Images become NCHW, its native layout. Quantized tensors
become pairs of QuantizeLinear and DequantizeLinear around float operations, which ONNX Runtime
fuses into integer kernels; uint8 weights are shifted to int8, which changes no product and is up to
twice as fast there. It takes what the networks in question need and refuses the rest with
NoConversion, so that no number of a peer rests on a doubtful conversion.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync.engine import operand_value
from nnasync.hal import (
    Array,
    ChannelQuant,
    FusedActivationFunc,
    Model,
    Operand,
    Operation,
    OperationType,
    PaddingScheme,
    dtype_of,
    operation_name,
)

__all__ = ["NoConversion", "to_onnx"]


class NoConversion(Exception):
    """A model, or a part of one, that this converter does not know how to write."""


OPSET = 17
IR_VERSION = 8


def to_onnx(model: Model) -> bytes:
    """Returns the bytes of an .onnx file with input "input" and output "output".

    Raises NoConversion that names the operations which have no conversion.
    """
    missing = {
        operation_name(operation.type)
        for operation in model.main.operations
        if operation.type not in _RULES
    }
    if missing or model.state or len(model.main.input_indexes) != 1:
        raise NoConversion(f"no conversion of {', '.join(sorted(missing)) or 'states'}")
    return _Conversion(model).finish()


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of an image in NCHW; other shapes stay."""
    return (shape[0], shape[3], shape[1], shape[2]) if len(shape) == 4 else shape


class _Conversion:
    """An ONNX graph under construction; `names` has the float value of each operand."""

    def __init__(self, model: Model) -> None:
        import onnx

        self.onnx: Any = onnx
        self.model = model
        self.operands = model.main.operands
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names: dict[int, str] = {}
        self.codes: dict[int, str] = {}
        (source,) = model.main.input_indexes
        self.names[source] = self._dequantized("input", source)
        for operation in model.main.operations:
            _RULES[operation.type](self, operation)

    def finish(self) -> bytes:
        (source,), (result,) = self.model.main.input_indexes, self.model.main.output_indexes
        self.node("Identity", [self.codes.get(result, self.names[result])], "output")
        helper = self.onnx.helper
        graph = helper.make_graph(
            self.nodes,
            self.model.name or "graph",
            [self._port("input", source)],
            [self._port("output", result)],
            self.constants,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
        )
        self.onnx.checker.check_model(model)
        encoded: bytes = model.SerializeToString()
        return encoded

    def _port(self, name: str, index: int) -> Any:
        operand = self.operands[index]
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(dtype_of(operand.type))
        shape = channels_first(operand.dimensions)
        return self.onnx.helper.make_tensor_value_info(name, kind, shape)

    # -- parts

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name: str, array: Any) -> str:
        value = np.ascontiguousarray(array)
        self.constants.append(
            self.onnx.numpy_helper.from_array(value.reshape(np.shape(array)), name)
        )
        return name

    def shape(self, index: int) -> tuple[int, ...]:
        return self.operands[index].dimensions

    def number(self, index: int) -> Any:
        value = self.value(index)
        return value.reshape(-1)[0].item()

    def value(self, index: int) -> Array:
        value = operand_value(self.model, self.operands[index])
        if value is None:
            raise NoConversion(f"operand {index} is not a constant")
        return value

    def _quantization(self, index: int) -> list[str]:
        """Returns the names of constants for scale and zero point of an operand."""
        operand = self.operands[index]
        zero_point = np.array(operand.zero_point, dtype_of(operand.type))
        return [
            self.constant(f"scale{index}", np.float32(operand.scale)),
            self.constant(f"zero{index}", zero_point),
        ]

    def _dequantized(self, name: str, index: int) -> str:
        if not self.operands[index].scale:
            return name
        inputs = [name, *self._quantization(index)]
        return self.node("DequantizeLinear", inputs, f"input_value{index}")

    def weights(self, index: int, array: Array) -> str:
        """Adds a constant as float value, its output channels on axis 0; returns its name."""
        operand = self.operands[index]
        if array.dtype == np.float32:
            return self.constant(f"constant{index}", array)
        scale, zero_point = _scale_of(operand), operand.zero_point
        if array.dtype == np.uint8:
            array, zero_point = (array ^ 0x80).view(np.int8), zero_point - 128
        zeros = np.full(scale.shape, zero_point, array.dtype)
        return self._stored(index, array, scale, zeros)

    def bias(self, index: int, scale: Array) -> str:
        """Adds a bias, whose scale is the product of those of input and weights."""
        array = self.value(index)
        if array.dtype == np.float32:
            return self.constant(f"constant{index}", array)
        return self._stored(index, array, scale, np.zeros(scale.shape, np.int32))

    def _stored(self, index: int, array: Array, scale: Array, zeros: Array) -> str:
        inputs = [
            self.constant(f"constant{index}", array),
            self.constant(f"constant_scale{index}", scale.astype(np.float32)),
            self.constant(f"constant_zero{index}", zeros),
        ]
        axis = {"axis": 0} if scale.ndim else {}
        return self.node("DequantizeLinear", inputs, f"weights{index}", **axis)

    def give(self, index: int, value: str, activation: int = FusedActivationFunc.NONE) -> None:
        """Adds the result of an operation: activation, then quantization."""
        activation = self._needed(index, activation)
        if activation == FusedActivationFunc.RELU:
            value = self.node("Relu", [value], f"activated{index}")
        elif activation == FusedActivationFunc.RELU6:
            limits = [
                self.constant(f"low{index}", np.float32(0)),
                self.constant(f"high{index}", np.float32(6)),
            ]
            value = self.node("Clip", [value, *limits], f"activated{index}")
        elif activation:
            raise NoConversion(f"activation {activation}")
        if self.operands[index].scale:
            quantization = self._quantization(index)
            code = self.node("QuantizeLinear", [value, *quantization], f"code{index}")
            self.codes[index] = code
            value = self.node("DequantizeLinear", [code, *quantization], f"value{index}")
        self.names[index] = value

    def _needed(self, index: int, activation: int) -> int:
        """Returns the activation; none where the quantized type's own range clips as much."""
        operand = self.operands[index]
        if not operand.scale or activation == FusedActivationFunc.NONE:
            return activation
        limits = np.iinfo(dtype_of(operand.type))
        low = operand.scale * (limits.min - operand.zero_point)
        high = operand.scale * (limits.max - operand.zero_point)
        below = low >= -operand.scale / 2
        above = activation == FusedActivationFunc.RELU or high <= 6 + operand.scale / 2
        return FusedActivationFunc.NONE if below and above else activation

    def channels_last(self, index: int) -> str:
        """Returns an operand's value in NHWC order, where a reshape would see the difference."""
        shape = self.shape(index)
        if len(shape) == 4 and shape[3] > 1 and shape[1] * shape[2] > 1:
            name = f"last{index}"
            return self.node("Transpose", [self.names[index]], name, perm=[0, 2, 3, 1])
        return self.names[index]

    def operand(self, index: int) -> str:
        """Returns the name of an activation or a constant as float value."""
        if index not in self.names:
            array = self.value(index)
            if array.ndim == 4:
                array = array.transpose(0, 3, 1, 2)
            self.names[index] = self.weights(index, array)
        return self.names[index]

    # -- operations

    def convolution(self, operation: Operation) -> None:
        """Converts CONV_2D and DEPTHWISE_CONV_2D with implicit padding."""
        depthwise = operation.type == OperationType.DEPTHWISE_CONV_2D
        source, filter, bias, *rest = operation.inputs
        if len(rest) != (5 if depthwise else 4):
            raise NoConversion("explicit padding, a layout or a dilation")
        numbers = [self.number(index) for index in rest]
        scheme, stride_w, stride_h = numbers[:3]
        weights = self.value(filter)
        kernel, shape = weights.shape[1:3], self.shape(source)
        axes = (3, 0, 1, 2) if depthwise else (0, 3, 1, 2)
        inputs = [
            self.names[source],
            self.weights(filter, weights.transpose(axes)),
            self.bias(bias, self._bias_scale(source, filter)),
        ]
        (result,) = operation.outputs
        value = self.node(
            "Conv",
            inputs,
            f"result{result}",
            strides=[stride_h, stride_w],
            kernel_shape=list(kernel),
            pads=_pads(scheme, shape[1:3], kernel, (stride_h, stride_w)),
            group=shape[3] if depthwise else 1,
        )
        self.give(result, value, numbers[-1])

    def _bias_scale(self, source: int, filter: int) -> Array:
        scale = np.float32(self.operands[source].scale) * _scale_of(self.operands[filter])
        return np.asarray(scale)

    def dense(self, operation: Operation) -> None:
        source, weights, bias, activation = operation.inputs
        matrix, (result,) = self.value(weights), operation.outputs
        value = self.channels_last(source)
        if self.shape(source) != (self.shape(source)[0], matrix.shape[1]):
            shape = self.constant(f"flat{result}", np.array([-1, matrix.shape[1]], np.int64))
            value = self.node("Reshape", [value, shape], f"vector{result}")
        inputs = [
            value,
            self.weights(weights, matrix),
            self.bias(bias, self._bias_scale(source, weights)),
        ]
        value = self.node("Gemm", inputs, f"result{result}", transB=1)
        self.give(result, value, self.number(activation))

    def average(self, operation: Operation) -> None:
        source, _scheme, _sw, _sh, width, height, activation = operation.inputs[:7]
        if (self.number(height), self.number(width)) != self.shape(source)[1:3]:
            raise NoConversion("a pool that is not over the whole image")
        (result,) = operation.outputs
        value = self.node("GlobalAveragePool", [self.names[source]], f"result{result}")
        self.give(result, value, self.number(activation))

    def arithmetic(self, operation: Operation) -> None:
        a, b, activation = operation.inputs
        (result,) = operation.outputs
        kind = "Add" if operation.type == OperationType.ADD else "Mul"
        value = self.node(kind, [self.operand(a), self.operand(b)], f"result{result}")
        self.give(result, value, self.number(activation))

    def reshape(self, operation: Operation) -> None:
        source, (result,) = operation.inputs[0], operation.outputs
        shape = self.shape(result)
        wanted = self.constant(f"shape{result}", np.array(shape, np.int64))
        value = self.node("Reshape", [self.channels_last(source), wanted], f"result{result}")
        if len(shape) == 4:
            value = self.node("Transpose", [value], f"first{result}", perm=[0, 3, 1, 2])
        self.give(result, value)

    def softmax(self, operation: Operation) -> None:
        source, (result,) = operation.inputs[0], operation.outputs
        if self.number(operation.inputs[1]) != 1.0 or len(self.shape(source)) != 2:
            raise NoConversion("softmax of an image, or with a beta")
        self.give(result, self.node("Softmax", [self.names[source]], f"result{result}", axis=-1))

    def hard_swish(self, operation: Operation) -> None:
        (source,), (result,) = operation.inputs, operation.outputs
        self.give(result, self.node("HardSwish", [self.names[source]], f"result{result}"))


def _scale_of(operand: Operand) -> Array:
    """Returns the scale of a constant: one number, or one for each output channel."""
    if isinstance(operand.extra_params, ChannelQuant):
        return np.array(operand.extra_params.scales, np.float32)
    return np.array(operand.scale, np.float32)


def _pads(
    scheme: int, size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, int]
) -> list[int]:
    """Returns the padding above, left, below and right."""
    if scheme == PaddingScheme.VALID:
        return [0, 0, 0, 0]
    totals = [
        max((-(-length // step) - 1) * step + reach - length, 0)
        for length, reach, step in zip(size, kernel, stride, strict=True)
    ]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


_RULES: dict[int, Any] = {
    OperationType.CONV_2D: _Conversion.convolution,
    OperationType.DEPTHWISE_CONV_2D: _Conversion.convolution,
    OperationType.FULLY_CONNECTED: _Conversion.dense,
    OperationType.AVERAGE_POOL_2D: _Conversion.average,
    OperationType.ADD: _Conversion.arithmetic,
    OperationType.MUL: _Conversion.arithmetic,
    OperationType.RESHAPE: _Conversion.reshape,
    OperationType.SOFTMAX: _Conversion.softmax,
    OperationType.HARD_SWISH: _Conversion.hard_swish,
}
