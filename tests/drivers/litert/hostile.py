"""Models with scales that ended the process once: `python -m tests.drivers.litert.hostile`.

Each is given to the engine as a device does it; a line on stdout tells what became of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import nnasync as nn
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.model import Value
from nnasync.errors import NNError
from nnasync.hal import ChannelQuant, ExecutionPreference, Model, OperandType, OperationType
from nnasync.kernels import Tensor

__all__ = ["killers", "outcome"]

_BYTES = OperandType.TENSOR_QUANT8_ASYMM
_CHANNELS = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_WORDS = OperandType.TENSOR_QUANT16_SYMM
_DENORMAL = (1e-38, 1.4e-45)
_IMAGE = (1, 4, 4, 2)


def _bytes(shape: tuple[int, ...], scale: float, type: OperandType = _BYTES) -> Tensor:
    return Tensor(type=type, shape=shape, scale=float(np.float32(scale)))


def _named(name: str) -> nn.ModelBuilder:
    return nn.ModelBuilder(name)


def _built(builder: nn.ModelBuilder, result: Value) -> Model:
    builder.output("y", result)
    return builder.build()


def _given(builder: nn.ModelBuilder, name: str, tensor: Tensor) -> Value:
    return builder.input(name, tensor.shape, type=OperandType(tensor.type), scale=tensor.scale)


def _pair(
    type: OperationType,
    scales: tuple[float, float, float],
    *more: int,
    data: OperandType = _BYTES,
) -> Model:
    """An operation on two tensors; `scales` are theirs and that of the result."""
    builder = _named(f"{type.name} {scales}")
    a = _given(builder, "a", _bytes((2, 3), scales[0], data))
    b = _given(builder, "b", _bytes((2, 3), scales[1], data))
    shape = (4, 3) if type == OperationType.CONCATENATION else (2, 3)
    return _built(
        builder, builder.operation(type, a, b, *more, output=_bytes(shape, scales[2], data))
    )


def _quantize(scale: float) -> Model:
    builder = _named(f"QUANTIZE to {scale:g}")
    x = builder.input("x", _IMAGE)
    return _built(
        builder, builder.operation(OperationType.QUANTIZE, x, output=_bytes(_IMAGE, scale))
    )


def _convolution(type: OperationType, data: float, weights: float, result: float) -> Model:
    """A convolution with weights for each channel, of one tap."""
    builder = _named(f"{type.name} {data:g} {weights:g} {result:g}")
    x = _given(builder, "x", _bytes(_IMAGE, data))
    depthwise = type == OperationType.DEPTHWISE_CONV_2D
    quant = ChannelQuant((0.25, float(np.float32(weights))), 3 if depthwise else 0)
    shape = (1, 1, 1, 2) if depthwise else (2, 1, 1, 2)
    filter = builder.constant(np.ones(shape, np.int8), type=_CHANNELS, channel_quant=quant)
    bias = builder.constant(np.zeros(2, np.int32), type=OperandType.TENSOR_INT32)
    more = (1, 1, 1, 1, 0) if depthwise else (1, 1, 1, 0)
    made = builder.operation(type, x, filter, bias, *more, output=_bytes(_IMAGE, result))
    return _built(builder, made)


def killers() -> Iterator[Model]:
    """Models that are legal, and whose scales the engine does not survive."""
    large = 3e38
    for scale in _DENORMAL:
        yield _quantize(scale)
        yield _pair(OperationType.CONCATENATION, (scale, 6e-10, scale), 0)
        yield _pair(OperationType.MAXIMUM, (1e37, 1e37, scale))
        yield _pair(OperationType.MINIMUM, (scale, scale, scale))
        for type in (OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D):
            yield _convolution(type, 0.5, 0.5, scale)
            yield _convolution(type, scale, 0.5, 0.5)
            yield _convolution(type, 0.5, scale, 0.5)
            yield _convolution(type, 1e-30, 1e-30, 0.5)
    for type in (OperationType.ADD, OperationType.SUB):
        yield _pair(type, (1.0, large, large), 0)
        yield _pair(type, (large, 1.0, 1.0), 0)
        yield _pair(type, (0.5, 0.5, 1e37), 0)
        yield _pair(type, (0.5, 0.5, 1e-7), 0)
    yield _convolution(OperationType.CONV_2D, 1e30, 1e5, 1e-30)


def outcome(engine: LiteRTEngine, model: Model) -> str:
    """Whether the engine declines a model, and how its compilation ends."""
    supported = engine.supported_operations(model)
    try:
        engine.compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
    except NNError as error:
        return f"{'taken' if all(supported) else 'declined'}, {type(error).__name__}: {error}"
    return "compiled"


if __name__ == "__main__":
    _engine = LiteRTEngine()
    for _model in killers():
        print(f"{_model.name}: {outcome(_engine, _model)}", flush=True)
