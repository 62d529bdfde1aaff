"""Whether each operand is legal by itself: type, dimensions, quantization, where its value is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nnasync import hal
from nnasync._core.deferred import deferred
from nnasync._core.validation.place import Place
from nnasync.errors import ModelError
from nnasync.hal import ChannelQuant, DataLocation, Model, Operand, OperandLifeTime, OperandType

if TYPE_CHECKING:
    from nnasync import extensions
else:
    extensions = deferred("nnasync.extensions")

MAX_DIMENSION = 2**32 - 1
NOWHERE = DataLocation()

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-149, (2 - 2.0**-23) * 2.0**127
"""The range of float32, in which the HAL states scales."""
_OEM = (OperandType.OEM, OperandType.TENSOR_OEM_BYTE)


def check_operands(place: Place) -> None:
    """Raise ModelError for the first operand that is not legal."""
    for index, operand in enumerate(place.subgraph.operands):
        fault = (
            _type_fault(place.model, operand)
            or _dimensions_fault(operand)
            or _quantization_fault(operand)
            or _location_fault(place.model, operand)
        )
        if fault:
            raise ModelError(f"{place.operand(index)}: {fault}")


def _type_fault(model: Model, operand: Operand) -> str | None:
    type = operand.type
    if hal.is_extension(type):
        if extensions.extension_of(model.extension_name_to_prefix, type) is None:
            return f"extension type {type:#x} has a prefix that the model does not name"
    elif hal.operand_type_since(type) is None:
        return f"unknown operand type {type}"
    if (type == OperandType.SUBGRAPH) != (operand.lifetime == OperandLifeTime.SUBGRAPH):
        return "type SUBGRAPH and lifetime SUBGRAPH belong together"
    return None


def _dimensions_fault(operand: Operand) -> str | None:
    type, dimensions = operand.type, operand.dimensions
    if any(not 0 <= n <= MAX_DIMENSION for n in dimensions):
        return f"dimensions {list(dimensions)} must be in [0, 2^32 - 1]"
    if hal.is_extension(type):
        return None
    if hal.is_scalar(type):
        if dimensions:
            return (
                f"{hal.type_name(type)} is a scalar and has no dimensions, not {list(dimensions)}"
            )
        return None
    known = math.prod(n for n in dimensions if n) * hal.dtype_of(type).itemsize
    if known > hal.MAX_TENSOR_BYTES:
        return f"dimensions {list(dimensions)} take {known} bytes; at most 2^32 - 1 are allowed"
    sized = bool(dimensions) and (type in _OEM or 0 not in dimensions)
    if hal.is_constant(operand) and not sized:
        return f"a constant needs known dimensions, not {list(dimensions)}"
    return None


def _quantization_fault(operand: Operand) -> str | None:
    type, scale, zero_point = operand.type, operand.scale, operand.zero_point
    name = hal.type_name(type)
    if type in _OEM:
        return None
    span = hal.zero_points(type)
    lowest, highest = span or (0, 0)
    if not lowest <= zero_point <= highest:
        legal = f"in [{lowest}, {highest}]" if lowest < highest else "0"
        return f"{name} has zero point {zero_point}; it must be {legal}"
    if span is not None:
        if not _is_scale(scale):
            return f"{name} has scale {scale}; it must be above 0 and finite as a float32"
    elif type == OperandType.TENSOR_INT32:
        if scale != 0 and not _is_scale(scale):
            return f"{name} has scale {scale}; it must be 0, or above and finite as a float32"
    elif scale != 0:
        return f"{name} has scale {scale}; it must be 0"
    return _extra_params_fault(operand)


def _extra_params_fault(operand: Operand) -> str | None:
    extra, name = operand.extra_params, hal.type_name(operand.type)
    if operand.type != OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        if isinstance(extra, ChannelQuant):
            return f"{name} cannot have scales per channel"
        if extra is not None and not hal.is_extension(operand.type):
            return f"{name} cannot have extra parameters"
        return None
    if not isinstance(extra, ChannelQuant):
        return f"{name} needs scales per channel"
    if not 0 <= extra.channel_dim < len(operand.dimensions):
        return f"channel dimension {extra.channel_dim} is not one of {list(operand.dimensions)}"
    channels = operand.dimensions[extra.channel_dim]
    if channels == 0 or len(extra.scales) != channels:
        return f"{len(extra.scales)} scales for {channels} channels"
    if not all(map(_is_scale, extra.scales)):
        return "scales per channel must be above 0 and finite as float32"
    return None


def _is_scale(scale: float) -> bool:
    return _SMALLEST_SCALE <= scale <= _LARGEST_SCALE


def _location_fault(model: Model, operand: Operand) -> str | None:
    location, lifetime = operand.location, operand.lifetime
    if lifetime == OperandLifeTime.SUBGRAPH:
        if location.pool_index or location.length:
            return "a subgraph's location has only an offset, its index"
        if not 0 <= location.offset < len(model.referenced):
            return f"refers to subgraph {location.offset} of {len(model.referenced)}"
        return None
    if not hal.is_constant(operand):
        return None if location == NOWHERE else f"{lifetime.name} has no location, not {location}"
    if lifetime == OperandLifeTime.CONSTANT_COPY:
        pool, size = "operand_values", len(model.operand_values)
        if location.pool_index != 0:
            return f"a copied constant has pool index 0, not {location.pool_index}"
    elif 0 <= location.pool_index < len(model.pools):
        pool, size = f"pool {location.pool_index}", model.pools[location.pool_index].size
    else:
        return f"its value is in pool {location.pool_index} of {len(model.pools)}"
    if location.offset < 0 or location.length < 0 or location.offset + location.length > size:
        return (
            f"its value is {location.length} bytes at {location.offset} of {pool}, "
            f"which has {size} bytes"
        )
    return _length_fault(operand)


def _length_fault(operand: Operand) -> str | None:
    if hal.is_extension(operand.type) or operand.type in _OEM:
        return None
    needed = hal.byte_size(operand.type, operand.dimensions)
    if operand.location.length == needed:
        return None
    shape = f"{hal.type_name(operand.type)} {list(operand.dimensions)}"
    return f"its value has {operand.location.length} bytes, but {shape} takes {needed}"
