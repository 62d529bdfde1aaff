"""Questions about types and shapes, and about the memory of requests."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nnasync._core.deferred import deferred
from nnasync.hal.enums import HalVersion, OperandLifeTime, OperandType
from nnasync.hal.structs import Memory, Operand, RequestArgument, Shape

if TYPE_CHECKING:
    from nnasync.hal import operations
else:
    operations = deferred("nnasync.hal.operations")

_NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    OperandType.FLOAT32: np.dtype(np.float32),
    OperandType.INT32: np.dtype(np.int32),
    OperandType.UINT32: np.dtype(np.uint32),
    OperandType.TENSOR_FLOAT32: np.dtype(np.float32),
    OperandType.TENSOR_INT32: np.dtype(np.int32),
    OperandType.TENSOR_QUANT8_ASYMM: np.dtype(np.uint8),
    OperandType.BOOL: np.dtype(np.bool_),
    OperandType.TENSOR_QUANT16_SYMM: np.dtype(np.int16),
    OperandType.TENSOR_FLOAT16: np.dtype(np.float16),
    OperandType.TENSOR_BOOL8: np.dtype(np.bool_),
    OperandType.FLOAT16: np.dtype(np.float16),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: np.dtype(np.int8),
    OperandType.TENSOR_QUANT16_ASYMM: np.dtype(np.uint16),
    OperandType.TENSOR_QUANT8_SYMM: np.dtype(np.int8),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: np.dtype(np.int8),
    OperandType.TENSOR_OEM_BYTE: np.dtype(np.uint8),
}

_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64", "complex64"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
)
_NARROW_FLOATS = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
}
"""Numbers that the package ml_dtypes gives to numpy, and their bytes."""

_SCALARS = frozenset(
    {
        OperandType.FLOAT32,
        OperandType.INT32,
        OperandType.UINT32,
        OperandType.BOOL,
        OperandType.FLOAT16,
        OperandType.SUBGRAPH,
        OperandType.OEM,
    }
)

_ZERO_POINTS: dict[int, tuple[int, int]] = {
    OperandType.TENSOR_QUANT8_ASYMM: (0, 255),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: (-128, 127),
    OperandType.TENSOR_QUANT16_ASYMM: (0, 65535),
    OperandType.TENSOR_QUANT8_SYMM: (0, 0),
    OperandType.TENSOR_QUANT16_SYMM: (0, 0),
}

_LAST_OPERAND_TYPES = (
    (OperandType.TENSOR_QUANT8_ASYMM, HalVersion.V1_0),
    (OperandType.TENSOR_QUANT8_SYMM, HalVersion.V1_2),
    (OperandType.SUBGRAPH, HalVersion.V1_3),
)


class SizedType(int):
    """An operand type of an extension, as it stands in a model, with the size that a device states.

    It equals the plain number. Where the device does not say which numbers its elements are, a
    value is bytes of which only the vendor knows the meaning, and its numpy type void of that size
    (`V3`). Models that are stored or sent have plain numbers.
    """

    byte_size: int
    is_tensor: bool
    dtype: np.dtype[Any]

    def __new__(
        cls, type: int, byte_size: int, *, is_tensor: bool, dtype: np.dtype[Any] | None = None
    ) -> SizedType:
        """`byte_size` is that of a scalar, or of one element."""
        sized = super().__new__(cls, type)
        sized.byte_size = byte_size
        sized.is_tensor = is_tensor
        sized.dtype = np.dtype((np.void, byte_size)) if dtype is None else dtype
        return sized


def number_dtype(name: str) -> np.dtype[Any] | None:
    """The numpy type of a name in an extension's description; KeyError for one that is no number's.

    None for one of ml_dtypes where that is not installed.
    """
    if name in _NUMBERS:
        return np.dtype(name)
    if name not in _NARROW_FLOATS:
        raise KeyError(name)
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError):
        return None
    return dtype


def number_size(name: str) -> int:
    """The bytes of a number of such a name; KeyError for one that is no number's."""
    return np.dtype(name).itemsize if name in _NUMBERS else _NARROW_FLOATS[name]


def is_extension(type: int) -> bool:
    """Returns whether an operand or operation type belongs to a vendor extension."""
    return type > 0xFFFF


def is_scalar(type: int) -> bool:
    """Returns whether an operand type has no dimensions by its nature."""
    return type in _SCALARS or (isinstance(type, SizedType) and not type.is_tensor)


def is_constant(operand: Operand) -> bool:
    """Returns whether the model itself holds the operand's value."""
    return operand.lifetime in (
        OperandLifeTime.CONSTANT_COPY,
        OperandLifeTime.CONSTANT_REFERENCE,
    )


def dtype_of(type: int) -> np.dtype[Any]:
    """Numpy type of one element.

    Raises KeyError for SUBGRAPH, OEM, and extension types of which nobody has stated the size.
    """
    if isinstance(type, SizedType):
        return type.dtype
    return _NUMPY_TYPES[type]


def has_dtype(type: int) -> bool:
    """Returns whether an element of this operand type has a numpy type."""
    return type in _NUMPY_TYPES or isinstance(type, SizedType)


def is_fully_specified(type: int, dimensions: Sequence[int]) -> bool:
    """Returns whether every dimension is known, so that the size in bytes is."""
    return is_scalar(type) or (len(dimensions) > 0 and 0 not in dimensions)


def byte_size(type: int, dimensions: Sequence[int]) -> int:
    """Size in bytes of a value; 0 where a dimension or the rank is unknown."""
    if is_scalar(type):
        return dtype_of(type).itemsize if has_dtype(type) else 0
    if not dimensions:
        return 0
    return dtype_of(type).itemsize * math.prod(dimensions)


def type_name(type: int) -> str:
    """Name of an operand type for messages."""
    try:
        return OperandType(type).name
    except ValueError:
        return f"operand type {type:#x}"


def operation_name(type: int) -> str:
    """Name of an operation type for messages."""
    try:
        return operations.OperationType(type).name
    except ValueError:
        return f"operation type {type:#x}"


def operand_type_since(type: int) -> HalVersion | None:
    """The HAL version that introduced an operand type, extension types included; None if none."""
    if type in (OperandType.OEM, OperandType.TENSOR_OEM_BYTE):
        return HalVersion.V1_0
    return _since(type, _LAST_OPERAND_TYPES)


def operation_since(type: int) -> HalVersion | None:
    """The HAL version that introduced an operation, those of extensions included; None if none."""
    if type == operations.OperationType.OEM_OPERATION:
        return HalVersion.V1_0
    return _since(type, _last_operations())


def version_name(version: HalVersion) -> str:
    """Name of a HAL version for messages."""
    return f"HAL {version.name[1:].replace('_', '.')}"


def zero_points(type: int) -> tuple[int, int] | None:
    """Smallest and largest zero point of a type with one scale above 0; None for other types."""
    return _ZERO_POINTS.get(type)


@functools.cache
def _last_operations() -> tuple[tuple[int, HalVersion], ...]:
    known = operations.OperationType
    return (
        (known.TANH, HalVersion.V1_0),
        (known.TRANSPOSE, HalVersion.V1_1),
        (known.RESIZE_NEAREST_NEIGHBOR, HalVersion.V1_2),
        (max(type for type in known if type != known.OEM_OPERATION), HalVersion.V1_3),
    )


def _since(type: int, table: Sequence[tuple[int, HalVersion]]) -> HalVersion | None:
    if is_extension(type):
        return HalVersion.V1_2
    if type < 0:
        return None
    return next((version for last, version in table if type <= last), None)


def combine_dimensions(first: Shape, second: Shape) -> Shape | None:
    """The dimensions that satisfy both, where 0 and an empty shape are unknown; None if none do."""
    if not first or not second:
        return first or second
    if len(first) != len(second):
        return None
    if any(a != b and a and b for a, b in zip(first, second, strict=True)):
        return None
    return tuple(a or b for a, b in zip(first, second, strict=True))


def has_dimensions(shape: Sequence[int], stated: Sequence[int]) -> bool:
    """Returns whether a shape is as stated, where 0 and an empty list of dimensions are unknown."""
    return not stated or (
        len(stated) == len(shape) and all(a in (0, b) for a, b in zip(stated, shape, strict=True))
    )


def is_quantized(type: int) -> bool:
    """Returns whether a tensor type is one of the two asymmetric 8-bit types."""
    return type in (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)


def shares_memory(
    pools: Sequence[Memory | int],
    inputs: Sequence[RequestArgument],
    outputs: Sequence[RequestArgument],
) -> bool:
    """Returns whether an input and an output share memory; pools may be tokens or slots."""
    written = [_span(pools, each) for each in outputs if not each.has_no_value]
    for argument in inputs:
        if argument.has_no_value:
            continue
        pool, start, end = _span(pools, argument)
        if any(pool == other and start < stop and begin < end for other, begin, stop in written):
            return True
    return False


def _span(pools: Sequence[Memory | int], argument: RequestArgument) -> tuple[int, int, float]:
    """Pool, begin and end of an argument; a length of 0 stands for the rest of the pool."""
    location = argument.location
    index = location.pool_index
    pool = pools[index] if 0 <= index < len(pools) else -1
    end = location.offset + location.length if location.length else float("inf")
    return (pool if isinstance(pool, int) else id(pool)), location.offset, end
