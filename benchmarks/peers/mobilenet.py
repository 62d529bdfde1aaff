"""MobileNet v1 1.0 224 in float32 with random weights, as the bytes of a .tflite file.

Written with the schema's own classes and not with ours, so that what the peers load owes nothing to
what is measured beside them. The weights are scaled as fresh ones are (He), which keeps the
activations of all layers in the range of a trained network.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array

__all__ = ["NAME", "mobilenet_v1"]

NAME = "mobilenet_v1_1.0_224_float"
SEED = 1
CLASSES = 1001
BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
"""Channels after each depthwise and pointwise pair, and the stride of the depthwise one."""


def mobilenet_v1(image: int = 224, width: float = 1.0) -> bytes:
    """The file for images of this size; raises ImportError without LiteRT's schema."""
    graph = _Graph()
    channels, side = int(32 * width), -(-image // 2)
    source = graph.tensor("input", (1, image, image, 3))
    value = graph.convolution("conv0", source, (side, 3, channels), kernel=3, stride=2)
    for number, (wide, stride) in enumerate(BLOCKS):
        side = -(-side // stride)
        value = graph.depthwise(f"depthwise{number}", value, (side, channels), stride)
        after = int(wide * width)
        value = graph.convolution(f"pointwise{number}", value, (side, channels, after))
        channels = after
    value = graph.average("pool", value, side, channels)
    value = graph.convolution("logits", value, (1, channels, CLASSES), is_last=True)
    value = graph.flat("flat", value, CLASSES)
    return graph.finish(source, graph.softmax("probabilities", value, CLASSES))


class _Graph:
    """A .tflite file under construction."""

    def __init__(self) -> None:
        schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
        self.schema = schema
        self.random = np.random.default_rng(SEED)
        self.model, self.graph = schema.ModelT(), schema.SubGraphT()
        self.model.version, self.model.subgraphs = 3, [self.graph]
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.graph.tensors, self.graph.operators = [], []

    def tensor(self, name: str, shape: Sequence[int], value: Array | None = None) -> int:
        """A tensor, constant if it has a value; returns its index."""
        types = self.schema.TensorType
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape, tensor.buffer = name, list(shape), 0
        tensor.type = types.FLOAT32
        if value is not None:
            buffer = self.schema.BufferT()
            buffer.data = np.frombuffer(value.tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            tensor.buffer = len(self.model.buffers) - 1
            tensor.type = types.INT32 if value.dtype == np.int32 else types.FLOAT32
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def operator(self, kind: str, inputs: list[int], output: int, name: str, options: Any) -> int:
        """An operator whose options are of the schema's type `name`; returns its output."""
        code, operator = self.schema.OperatorCodeT(), self.schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, kind)
        code.version = 1
        self.model.operatorCodes.append(code)
        operator.opcodeIndex = len(self.model.operatorCodes) - 1
        operator.inputs, operator.outputs = inputs, [output]
        operator.builtinOptions = options
        operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, name)
        self.graph.operators.append(operator)
        return output

    def weights(self, name: str, shape: tuple[int, ...], terms: int, channels: int) -> list[int]:
        """Random weights for sums of so many terms, and a small bias."""
        value = self.random.standard_normal(shape) * np.sqrt(2 / terms)
        bias = np.full(channels, 0.01, np.float32)
        return [
            self.tensor(f"{name}/weights", shape, value.astype(np.float32)),
            self.tensor(f"{name}/bias", (channels,), bias),
        ]

    def convolution(
        self,
        name: str,
        source: int,
        sizes: tuple[int, int, int],
        *,
        kernel: int = 1,
        stride: int = 1,
        is_last: bool = False,
    ) -> int:
        """CONV_2D to `sizes`: side of the result, channels before and after."""
        side, before, after = sizes
        options = self.schema.Conv2DOptionsT()
        options.strideH = options.strideW = stride
        options.dilationHFactor = options.dilationWFactor = 1
        kinds = self.schema.ActivationFunctionType
        options.fusedActivationFunction = kinds.NONE if is_last else kinds.RELU6
        shape = (after, kernel, kernel, before)
        inputs = [source, *self.weights(name, shape, kernel * kernel * before, after)]
        output = self.tensor(name, (1, side, side, after))
        return self.operator("CONV_2D", inputs, output, "Conv2DOptions", options)

    def depthwise(self, name: str, source: int, sizes: tuple[int, int], stride: int) -> int:
        """DEPTHWISE_CONV_2D of 3 by 3 to `sizes`: side of the result, channels."""
        side, channels = sizes
        options = self.schema.DepthwiseConv2DOptionsT()
        options.strideH = options.strideW = stride
        options.depthMultiplier = options.dilationHFactor = options.dilationWFactor = 1
        options.fusedActivationFunction = self.schema.ActivationFunctionType.RELU6
        inputs = [source, *self.weights(name, (1, 3, 3, channels), 9, channels)]
        output = self.tensor(name, (1, side, side, channels))
        return self.operator("DEPTHWISE_CONV_2D", inputs, output, "DepthwiseConv2DOptions", options)

    def average(self, name: str, source: int, side: int, channels: int) -> int:
        """AVERAGE_POOL_2D over the whole image."""
        options = self.schema.Pool2DOptionsT()
        options.padding = self.schema.Padding.VALID
        options.strideH = options.strideW = options.filterHeight = options.filterWidth = side
        output = self.tensor(name, (1, 1, 1, channels))
        return self.operator("AVERAGE_POOL_2D", [source], output, "Pool2DOptions", options)

    def flat(self, name: str, source: int, size: int) -> int:
        """RESHAPE to a vector."""
        options = self.schema.ReshapeOptionsT()
        options.newShape = [1, size]
        shape = self.tensor(f"{name}/shape", (2,), np.array([1, size], np.int32))
        output = self.tensor(name, (1, size))
        return self.operator("RESHAPE", [source, shape], output, "ReshapeOptions", options)

    def softmax(self, name: str, source: int, size: int) -> int:
        """SOFTMAX over a vector."""
        options = self.schema.SoftmaxOptionsT()
        options.beta = 1.0
        output = self.tensor(name, (1, size))
        return self.operator("SOFTMAX", [source], output, "SoftmaxOptions", options)

    def finish(self, source: int, result: int) -> bytes:
        """The bytes of the file."""
        import flatbuffers

        self.graph.inputs, self.graph.outputs = [source], [result]
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
