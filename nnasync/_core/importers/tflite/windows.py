"""Layers and what slides over images: convolutions, dense layers, pools, resizing.

Weights of 8 bits on floats ("dynamic range") become float32 when the file is read. LiteRT would
round the activations to 8 bits for them; here they are not rounded.
"""

from __future__ import annotations

from nnasync._core.importers.tflite.converter import (
    FLOATS,
    PLAIN,
    Convert,
    Converter,
    Kinds,
    fused,
    option,
    refuse_fused,
    reshaped,
    target_of,
    with_shape,
)
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import Value
from nnasync._core.model.graph import Input, int32_array
from nnasync._core.model.layers import bias_scale
from nnasync.errors import ModelError
from nnasync.hal import OperationType, PaddingScheme, Shape

_PADDINGS: dict[int, PaddingScheme] = {0: PaddingScheme.SAME, 1: PaddingScheme.VALID}
_WEIGHTED: Kinds = (
    ("FLOAT32",),
    ("FLOAT32", "INT8", "FLOAT32"),
    ("FLOAT32", "UINT8", "FLOAT32"),
    ("UINT8", "UINT8", "INT32"),
    ("INT8", "INT8", "INT32"),
)
_TRANSPOSED: Kinds = (
    ("INT32", "FLOAT32"),
    ("INT32", "INT8", "FLOAT32", "FLOAT32"),
    ("INT32", "UINT8", "UINT8", "INT32"),
    ("INT32", "INT8", "INT8", "INT32"),
)


def _convolution(tensors: Tensors, operator: OperatorInfo) -> None:
    x, weights = tensors.input(operator, 0), tensors.weights(operator, 1)
    bias = tensors.bias(operator, 2, bias_scale(x.scale, weights.scale), weights.shape[0])
    inputs: list[Input] = [x, weights, bias, *_window(operator)]
    # The filter decides how many channels there are, also where the file leaves that open.
    channels = x.shape[-1] or tensors.graph.tensors[operator.inputs[0]].shape[-1]
    groups = channels // max(weights.shape[-1], 1)
    dilation = _dilation(operator)
    if groups > 1:
        if dilation:
            raise ModelError("has groups and a dilation")
        inputs += [groups, fused(operator), False]
        tensors.emit(operator, OperationType.GROUPED_CONV_2D, inputs)
    else:
        tensors.emit(operator, OperationType.CONV_2D, [*inputs, fused(operator), *dilation])


def _depthwise(tensors: Tensors, operator: OperatorInfo) -> None:
    x, weights = tensors.input(operator, 0), tensors.weights(operator, 1)
    channels = weights.shape[-1]
    bias = tensors.bias(operator, 2, bias_scale(x.scale, weights.scale), channels)
    multiplier = option(operator, "DepthMultiplier") or channels // max(x.shape[-1], 1)
    inputs: list[Input] = [x, weights, bias, *_window(operator), multiplier, fused(operator)]
    tensors.emit(operator, OperationType.DEPTHWISE_CONV_2D, [*inputs, *_dilation(operator)])


def _dilation(operator: OperatorInfo) -> list[Input]:
    """The layout and the dilation, or nothing."""
    dilation = (option(operator, "DilationWFactor"), option(operator, "DilationHFactor"))
    return [] if dilation == (1, 1) else [False, *dilation]


def _transpose_convolution(tensors: Tensors, operator: OperatorInfo) -> None:
    shape, weights = tensors.input(operator, 0), tensors.weights(operator, 1)
    x = tensors.input(operator, 2)
    bias = tensors.bias(operator, 3, bias_scale(x.scale, weights.scale), weights.shape[0], x)
    inputs = [x, weights, bias, shape, *_window(operator), fused(operator), False]
    tensors.emit(operator, OperationType.TRANSPOSE_CONV_2D, inputs)


def _refuse_transpose_convolution(graph: Graph, operator: OperatorInfo) -> str | None:
    weights = graph.tensors[operator.inputs[1]]
    if len(weights.shape) != 4:
        return "without weights of rank 4"
    return refuse_fused(graph, operator)


def _refuse_convolution(graph: Graph, operator: OperatorInfo) -> str | None:
    return _refuse_weights(graph, operator, rank=4) or refuse_fused(graph, operator)


def _refuse_weights(graph: Graph, operator: OperatorInfo, *, rank: int) -> str | None:
    given = [*operator.inputs, -1, -1, -1][:3]
    weights = graph.tensors[given[1]]
    if given[1] < 0 or len(weights.shape) != rank:
        return f"without weights of rank {rank}"
    if given[2] < 0 and 0 in weights.open_shape:
        return "without a bias and with weights of an open shape"
    return None


def _fully_connected(tensors: Tensors, operator: OperatorInfo) -> None:
    x, weights = tensors.input(operator, 0), tensors.weights(operator, 1)
    units, size = weights.shape
    target = _dense_shape(tensors, operator, x, weights)
    if weights.tensor.channel_quant is not None:
        _dense_as_convolution(tensors, operator, x, target)
        return
    if len(x.shape) < 2 or len(x.shape) > 4:
        x = reshaped(tensors, x, (-1, size))
    bias = tensors.bias(operator, 2, bias_scale(x.scale, weights.scale), units)
    inputs: list[Input] = [x, weights, bias, fused(operator)]
    if len(target) in (0, 2):
        tensors.emit(operator, OperationType.FULLY_CONNECTED, inputs)
        return
    flat = with_shape(tensors.described(tensors.result(operator)), ())
    y = tensors.builder.operation(OperationType.FULLY_CONNECTED, *inputs, output=flat)
    tensors.emit(operator, OperationType.RESHAPE, [y, int32_array(target_of(target, y))])


def _dense_shape(tensors: Tensors, operator: OperatorInfo, x: Value, weights: Value) -> Shape:
    """The shape of the result; -1 is what only the run tells."""
    shape = tensors.described(tensors.result(operator)).shape
    if not shape and option(operator, "KeepNumDims"):
        shape = (*(n or -1 for n in x.shape[:-1]), weights.shape[0])
    return shape


def _dense_as_convolution(
    tensors: Tensors, operator: OperatorInfo, x: Value, target: Shape
) -> None:
    """A dense layer with a scale for each unit, which the HAL has for convolutions only."""
    units, size = tensors.graph.tensors[operator.inputs[1]].shape
    weights = tensors.weights(operator, 1, (units, 1, 1, size))
    bias = tensors.bias(operator, 2, 0.0, units)
    image = reshaped(tensors, x, (-1, 1, 1, size))
    window = [int(PaddingScheme.VALID), 1, 1, fused(operator)]
    flat = with_shape(tensors.described(tensors.result(operator)), ())
    inputs: list[Input] = [image, weights, bias, *window]
    y = tensors.builder.operation(OperationType.CONV_2D, *inputs, output=flat)
    shape = int32_array(target_of(target or (-1, units), y))
    tensors.emit(operator, OperationType.RESHAPE, [y, shape])


def _refuse_fully_connected(graph: Graph, operator: OperatorInfo) -> str | None:
    fault = _refuse_weights(graph, operator, rank=2)
    if fault is None and operator.options["WeightsFormat"]:
        fault = "with shuffled weights"
    return fault or refuse_fused(graph, operator)


def _pool(type: OperationType) -> Convert:
    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        size = (option(operator, "FilterWidth"), option(operator, "FilterHeight"))
        inputs = [tensors.input(operator, 0), *_window(operator), *size, fused(operator)]
        tensors.emit(operator, type, inputs)

    return convert


def _resize(type: OperationType) -> Convert:
    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        height, width = tensors.constant(operator, 1)
        options = [option(operator, name) for name in ("AlignCorners", "HalfPixelCenters")]
        inputs: list[Input] = [tensors.input(operator, 0), width, height, False]
        tensors.emit(operator, type, [*inputs, *options] if any(options) else inputs)

    return convert


def _window(operator: OperatorInfo) -> list[Input]:
    """Padding scheme and strides."""
    scheme = _PADDINGS.get(option(operator, "Padding"))
    if scheme is None:
        raise ModelError(f"padding {option(operator, 'Padding')} is neither SAME nor VALID")
    return [int(scheme), option(operator, "StrideW"), option(operator, "StrideH")]


_RESIZED: Kinds = tuple((kind[0], "INT32") for kind in PLAIN)

CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "CONV_2D": (Converter(_WEIGHTED, _convolution, _refuse_convolution),),
    "DEPTHWISE_CONV_2D": (Converter(_WEIGHTED, _depthwise, _refuse_convolution),),
    "TRANSPOSE_CONV": (
        *(
            Converter(
                _TRANSPOSED,
                _transpose_convolution,
                _refuse_transpose_convolution,
                outputs=(type,),
            )
            for type in ("FLOAT32", "UINT8", "INT8")
        ),
    ),
    "FULLY_CONNECTED": (Converter(_WEIGHTED, _fully_connected, _refuse_fully_connected),),
    "AVERAGE_POOL_2D": (Converter(PLAIN, _pool(OperationType.AVERAGE_POOL_2D)),),
    "MAX_POOL_2D": (Converter(PLAIN, _pool(OperationType.MAX_POOL_2D)),),
    "L2_POOL_2D": (Converter(FLOATS, _pool(OperationType.L2_POOL_2D)),),
    "RESIZE_BILINEAR": (Converter(_RESIZED, _resize(OperationType.RESIZE_BILINEAR)),),
    "RESIZE_NEAREST_NEIGHBOR": (
        Converter(
            _RESIZED,
            _resize(OperationType.RESIZE_NEAREST_NEIGHBOR),
        ),
    ),
}
