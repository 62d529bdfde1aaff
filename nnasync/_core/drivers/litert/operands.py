"""Operands as tensors of the file, and in another shape, scale or 8-bit type."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.drivers.litert.flatbuffer import FileTensor
from nnasync._core.formats.litert_limits import LiteRTUnsupported, check_scales
from nnasync.hal import OperandType
from nnasync.kernels import Tensor

_TYPES: dict[int, str] = {
    OperandType.FLOAT32: "FLOAT32",
    OperandType.TENSOR_FLOAT32: "FLOAT32",
    OperandType.FLOAT16: "FLOAT32",
    OperandType.TENSOR_FLOAT16: "FLOAT32",
    OperandType.INT32: "INT32",
    OperandType.TENSOR_INT32: "INT32",
    OperandType.BOOL: "BOOL",
    OperandType.TENSOR_BOOL8: "BOOL",
    OperandType.TENSOR_QUANT8_ASYMM: "UINT8",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "INT8",
    OperandType.TENSOR_QUANT8_SYMM: "INT8",
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: "INT8",
    OperandType.TENSOR_QUANT16_SYMM: "INT16",
    OperandType.TENSOR_QUANT16_ASYMM: "INT16",
}
HALVES = (OperandType.FLOAT16, OperandType.TENSOR_FLOAT16)
_OFFSET_OF_WORDS = 1 << 15
_LARGEST_SIZE = 2**31 - 1


def reshaped(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns the same tensor in another shape, without a value."""
    return msgspec.structs.replace(tensor, shape=tuple(shape), value=None)


def rescaled(tensor: Tensor, like: Tensor) -> Tensor:
    """Returns the same tensor with type and quantization of another, without a value."""
    return msgspec.structs.replace(like, shape=tensor.shape, value=None)


def retyped(tensor: Tensor, type: OperandType) -> Tensor:
    """An 8-bit tensor as the other 8-bit type, its value shifted with it."""
    if tensor.type == type:
        return tensor
    offset = 128 if type == OperandType.TENSOR_QUANT8_ASYMM else -128
    value = tensor.value
    if value is not None:
        value = (value.view(np.uint8) ^ np.uint8(128)).view(hal.dtype_of(type))
    return msgspec.structs.replace(
        tensor, type=int(type), zero_point=tensor.zero_point + offset, value=value
    )


def file_tensor(tensor: Tensor) -> FileTensor:
    """A tensor as the file has it."""
    name = _TYPES.get(tensor.type)
    if name is None:
        raise LiteRTUnsupported(f"the engine has no {hal.type_name(tensor.type)}")
    if any(size > _LARGEST_SIZE for size in tensor.shape):
        raise LiteRTUnsupported(
            f"shape {list(tensor.shape)}, whose sizes the engine has in 32 bits"
        )
    value = tensor.value
    if value is not None and value.dtype == np.float16:
        value = value.astype(np.float32)
    if value is not None and tensor.type == OperandType.TENSOR_QUANT16_ASYMM:
        raise LiteRTUnsupported("a constant of TENSOR_QUANT16_ASYMM")
    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    dimension = 0
    if tensor.channel_quant is not None:
        scales, dimension = tensor.channel_quant.scales, tensor.channel_quant.channel_dim
        zero_points = (0,) * len(scales)
    elif tensor.scale:
        words = tensor.type == OperandType.TENSOR_QUANT16_ASYMM
        scales = (tensor.scale,)
        zero_points = (tensor.zero_point - _OFFSET_OF_WORDS * words,)
    check_scales(scales)
    return FileTensor(name, tensor.shape, scales, zero_points, dimension, value)
