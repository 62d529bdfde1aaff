"""Convolutions, dense layers, pools and resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.drivers.onnxruntime.lowering.call import OperationCall, OrtUnsupported
from nnasync._core.drivers.onnxruntime.lowering.emitter import Emitter, shifted
from nnasync.hal import OperandType, OperationType, Shape, is_quantized
from nnasync.kernels import Tensor, quantized_range
from nnasync.kernels.windows.resize import Places
from nnasync.kernels.windows.window import (
    Window,
    filter_window,
    image_shape,
    is_implicit,
    is_nchw,
    is_same,
    pooling_window,
)

Lower = Callable[[Emitter, OperationCall], None]
"""Adds the nodes of an operation; raises Unsupported for a form that is not taken."""

_CONVOLUTION, _DEPTHWISE = (0, 3, 1, 2), (3, 0, 1, 2)
_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_TINY = 2.0**-14
"""How far below a whole number a bilinear result may be by rounding, in steps."""


def _image(emitter: Emitter, call: OperationCall) -> str:
    """Input 0 with channels first: as they come, or moved."""
    index = call.inputs[0]
    if is_nchw(call.arguments):
        return emitter.real(index)
    return emitter.real(index, first=True)


def _give_image(emitter: Emitter, call: OperationCall, name: str) -> None:
    emitter.give_real(call.outputs[0], name, first=not is_nchw(call.arguments))


def _geometry(window: Window) -> dict[str, Any]:
    height, width = window.height, window.width
    return {
        "kernel_shape": [height.filter, width.filter],
        "strides": [height.stride, width.stride],
        "pads": [height.head, width.head, height.tail, width.tail],
    }


def _weights(emitter: Emitter, index: int, order: tuple[int, ...]) -> str:
    """Weights as floats, with their axes moved by `order`."""
    tensor = emitter.tensor(index)
    quant = tensor.channel_quant if tensor.type == _PER_CHANNEL else None
    if quant is not None:
        scales = np.asarray(quant.scales, np.float32)
        if tensor.value is None:
            name = emitter.node("Transpose", [emitter.whole(index)], perm=order)
        else:
            name = emitter.constant(tensor.value.transpose(order))
        names = [name, *(emitter.constant(a) for a in (scales, np.zeros(scales.size, np.int8)))]
        return emitter.node("DequantizeLinear", names, axis=order.index(quant.channel_dim))
    if tensor.value is None:
        return emitter.node("Transpose", [emitter.real(index)], perm=order)
    numbers = tensor.value.transpose(order)
    if is_quantized(tensor.type):
        signed, zero_point = shifted(numbers, tensor.zero_point)
        scale = np.asarray(tensor.scale, np.float32)
        names = [emitter.constant(a) for a in (signed, scale, np.asarray(zero_point, signed.dtype))]
        return emitter.node("DequantizeLinear", names)
    return emitter.constant(numbers.astype(np.float32, copy=False))


def _bias(emitter: Emitter, index: int, source: Tensor, weights: Tensor) -> str:
    """The bias as floats."""
    tensor = emitter.tensor(index)
    if tensor.type != OperandType.TENSOR_INT32:
        return emitter.real(index)
    quant = weights.channel_quant
    scales = np.asarray(weights.scale if quant is None else quant.scales, np.float32)
    scales = np.float32(source.scale) * scales
    axis = {"axis": 0} if scales.ndim else {}
    names = [emitter.whole(index), emitter.constant(np.asarray(scales))]
    return emitter.node("DequantizeLinear", names, **axis)


def _convolution(order: tuple[int, ...]) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        shape, weights = image_shape(call.arguments), call.tensor(1)
        window = filter_window(call.arguments)
        groups = 1
        if call.key == OperationType.DEPTHWISE_CONV_2D:
            groups = shape[3]
        elif call.key == OperationType.GROUPED_CONV_2D:
            groups = call.integer(call.place("groups"))
        names = [
            _image(emitter, call),
            _weights(emitter, call.inputs[1], order),
            _bias(emitter, call.inputs[2], call.tensor(0), weights),
        ]
        dilations = [window.height.dilation, window.width.dilation]
        name = emitter.node("Conv", names, **_geometry(window), group=groups, dilations=dilations)
        activation = call.integer(call.place("activation"))
        _give_image(emitter, call, emitter.activated(name, activation, call.result))

    return lower


def _transposed(emitter: Emitter, call: OperationCall) -> None:
    """A transposed convolution: its padding is taken from what it would give without."""
    shape, weights, result = image_shape(call.arguments), call.tensor(1), call.result.shape
    sizes = result[2:] if is_nchw(call.arguments) else result[1:3]
    first = call.place("stride_width")
    strides = (call.integer(first + 1), call.integer(first))
    heads = _heads(call)
    pads, extra = [[0, 0], [0, 0]], [0, 0]
    for axis in range(2):
        whole = (shape[1 + axis] - 1) * strides[axis] + weights.shape[1 + axis]
        total = whole - sizes[axis]
        head = max(total, 0) // 2 if heads is None else heads[axis]
        tail = total - head
        extra[axis] = max(-tail, 0)
        pads[0][axis], pads[1][axis] = head, max(tail, 0)
        if extra[axis] >= strides[axis]:
            raise OrtUnsupported("gives more rows or columns than its windows reach")
    names = [
        _image(emitter, call),
        _weights(emitter, call.inputs[1], (3, 0, 1, 2)),
        _bias(emitter, call.inputs[2], call.tensor(0), weights),
    ]
    name = emitter.node(
        "ConvTranspose",
        names,
        strides=list(strides),
        pads=[*pads[0], *pads[1]],
        output_padding=extra,
        kernel_shape=list(weights.shape[1:3]),
    )
    activation = call.integer(call.place("activation"))
    _give_image(emitter, call, emitter.activated(name, activation, call.result))


def _heads(call: OperationCall) -> tuple[int, int] | None:
    """Padding at top and left; None where it is half of what there is."""
    if is_implicit(call.arguments):
        return None if is_same(call.arguments) else (0, 0)
    first = call.place("padding_left")
    return call.integer(first + 2), call.integer(first)


def _l2_pool(emitter: Emitter, call: OperationCall) -> None:
    """The root of the mean of squares."""
    window = pooling_window(call.arguments)
    image = _image(emitter, call)
    squares = emitter.node("Mul", [image, image])
    means = emitter.node("AveragePool", [squares], **_geometry(window))
    roots = emitter.node("Sqrt", [means])
    activation = call.integer(call.place("activation"))
    _give_image(emitter, call, emitter.activated(roots, activation, call.result))


def _dense(emitter: Emitter, call: OperationCall) -> None:
    source, weights = call.tensor(0), call.tensor(1)
    rows = (source.size // weights.shape[1], weights.shape[1])
    quantized, index = is_quantized(source.type), call.inputs[0]
    name = emitter.whole(index) if quantized else emitter.real(index)
    if source.shape != rows:
        name = emitter.reshaped(name, rows)
    if quantized:
        name = emitter.dequantized(name, source)
    names = [
        name,
        _weights(emitter, call.inputs[1], (0, 1)),
        _bias(emitter, call.inputs[2], source, weights),
    ]
    name = emitter.node("Gemm", names, transB=1)
    activated = emitter.activated(name, call.integer(call.place("activation")), call.result)
    emitter.give_real(call.outputs[0], activated)


def _pool(type: str) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        window = pooling_window(call.arguments)
        activation = call.integer(call.place("activation"))
        if type == "AveragePool" and window.is_global:
            name = emitter.node("GlobalAveragePool", [_image(emitter, call)])
        else:
            name = emitter.node(type, [_image(emitter, call)], **_geometry(window))
        _give_image(emitter, call, emitter.activated(name, activation, call.result))

    return lower


def _resize(mode: str) -> Lower:
    def lower(emitter: Emitter, call: OperationCall) -> None:
        first = call.place("align_corners")
        corners, half = call.flag(first), call.flag(first + 1)
        shape = image_shape(call.arguments)
        result = call.result.shape
        sizes = result[2:] if is_nchw(call.arguments) else result[1:3]
        form = "align_corners" if corners else "half_pixel" if half else "asymmetric"
        if mode == "nearest":
            if half:
                raise OrtUnsupported("takes the nearest pixel of half pixel centers")
            axes = [Places(a, b, corners, half) for a, b in zip(shape[1:3], sizes, strict=True)]
            if not all(_takes_nearest(axis) for axis in axes):
                _give_nearest(emitter, call, axes)
                return
        target: Shape = (shape[0], shape[3], *sizes)
        cuts = mode == "linear" and is_quantized(call.result.type)
        image = _raw_image(emitter, call) if cuts else _image(emitter, call)
        name = emitter.node(
            "Resize",
            [image, "", "", emitter.integers(target)],
            mode=mode,
            coordinate_transformation_mode=form,
            nearest_mode="floor",
        )
        if cuts:
            _give_cut_off(emitter, call, name)
        else:
            _give_image(emitter, call, name)

    return lower


def _takes_nearest(axis: Places) -> bool:
    """Returns whether the engine, which divides by the scale, takes the pixels of the rule."""
    if axis.align_corners:
        return axis.input == axis.output
    places = np.arange(axis.output, dtype=np.float32)
    taken = np.floor(places / (np.float32(axis.output) / np.float32(axis.input)))
    return bool((np.minimum(taken, axis.input - 1) == axis.nearest).all())


def _give_nearest(emitter: Emitter, call: OperationCall, axes: Sequence[Places]) -> None:
    """Look pixels up at known places, row by row and column by column."""
    first = not is_nchw(call.arguments)
    name = emitter.whole(call.inputs[0], first=first)
    for number, axis in enumerate(axes, 2):
        if axis.input != axis.output:
            places = emitter.constant(axis.nearest.astype(np.int64))
            name = emitter.node("Gather", [name, places], axis=number)
    emitter.give(call.outputs[0], name, first=first)


def _raw_image(emitter: Emitter, call: OperationCall) -> str:
    """Input 0 of bytes as floats from 0 to 255, whatever they stand for, with channels first."""
    name = emitter.whole(call.inputs[0], first=not is_nchw(call.arguments))
    return emitter.dequantized(name, _in_steps(call.tensor(0)))


def _give_cut_off(emitter: Emitter, call: OperationCall, name: str) -> None:
    """Make floats from 0 to 255 the output's bytes: the next lower whole number."""
    shift = emitter.constant(np.asarray(_TINY - 0.5, np.float32))
    inputs = [emitter.node("Add", [name, shift]), *emitter.scale_of(_in_steps(call.result))]
    bytes_ = emitter.node("QuantizeLinear", inputs)
    emitter.give(call.outputs[0], bytes_, first=not is_nchw(call.arguments))


def _in_steps(tensor: Tensor) -> Tensor:
    """Returns a quantized tensor whose lowest byte stands for 0 and the next for 1."""
    lowest, _ = quantized_range(tensor.type)
    return msgspec.structs.replace(tensor, scale=1.0, zero_point=lowest, value=None)


LOWERINGS: dict[int | tuple[str, int], Lower] = {
    OperationType.CONV_2D: _convolution(_CONVOLUTION),
    OperationType.GROUPED_CONV_2D: _convolution(_CONVOLUTION),
    OperationType.DEPTHWISE_CONV_2D: _convolution(_DEPTHWISE),
    OperationType.TRANSPOSE_CONV_2D: _transposed,
    OperationType.FULLY_CONNECTED: _dense,
    OperationType.L2_POOL_2D: _l2_pool,
    OperationType.AVERAGE_POOL_2D: _pool("AveragePool"),
    OperationType.MAX_POOL_2D: _pool("MaxPool"),
    OperationType.RESIZE_BILINEAR: _resize("linear"),
    OperationType.RESIZE_NEAREST_NEIGHBOR: _resize("nearest"),
}
"""How each operation becomes nodes."""
