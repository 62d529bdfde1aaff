"""Whether a request fits a model: numbers of arguments, shapes, places in its memory pools.

A dimension of 0 is an unknown one in requests as in models, and inputs have none. There is one
exception: an input whose location has length 0 and whose dimensions contain a 0 is an empty tensor.
It is legal where the model does not know that dimension either.

An image is an input or an output as a whole, of one byte a channel, and the argument has its
height, width and channels. YCbCr is none: whoever has it converts it (`memory.to_rgb`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnasync import hal
from nnasync._core.validation.operands import MAX_DIMENSION, NOWHERE
from nnasync._core.validation.pools import pool_fault
from nnasync.errors import InvalidArgument
from nnasync.hal import HalVersion, Memory, Model, Operand, Request, RequestArgument
from nnasync.memory import IMAGE, Pool

if TYPE_CHECKING:
    from nnasync.memory import ImageLayout


def validate_request(
    model: Model,
    request: Request,
    *,
    unspecified_outputs: bool = True,
    version: HalVersion = HalVersion.V1_3,
) -> None:
    """Raise InvalidArgument unless the request fits the model's inputs and outputs.

    With `unspecified_outputs`, dimensions of outputs may stay unknown; a fenced execution, a
    driver-managed buffer and every request before HAL 1.2 need them. An output that is too small is
    left to the execution, which answers OutputInsufficientSize. An input of length 0 takes the rest
    of its pool, unless it is an empty tensor: see above.
    """
    main = model.main
    pool_sizes = _pool_sizes(request.pools, version)
    dynamic_outputs = unspecified_outputs and version >= HalVersion.V1_2
    for kind, arguments, indexes, dynamic in (
        ("input", request.inputs, main.input_indexes, False),
        ("output", request.outputs, main.output_indexes, dynamic_outputs),
    ):
        if len(arguments) != len(indexes):
            raise InvalidArgument(
                f"request has {len(arguments)} {kind}s, the model has {len(indexes)}"
            )
        for position, (argument, index) in enumerate(zip(arguments, indexes, strict=True)):
            operand = main.operands[index]
            fault = _location_fault(argument, pool_sizes)
            if fault is None and not argument.has_no_value:
                pool = request.pools[argument.location.pool_index]
                if not isinstance(pool, int) and pool.name == IMAGE:
                    fault = _image_fault(operand, argument, pool)
                elif kind == "input" and _is_empty(argument):
                    fault = _dimensions_fault(operand, argument.dimensions)
                else:
                    fault = _shape_fault(operand, argument, dynamic=dynamic)
                    if fault is None and kind == "input":
                        fault = _size_fault(operand, argument, pool_sizes)
            if fault:
                name = f' "{operand.name}"' if operand.name else ""
                where = f"{kind} {position}{name}"
                raise InvalidArgument(f"request: {where}: {fault}")


def _pool_sizes(pools: Sequence[Memory | int], version: HalVersion) -> list[int | None]:
    """Size of each pool of a request; None is a driver-managed buffer."""
    sizes: list[int | None] = []
    for index, pool in enumerate(pools):
        if not isinstance(pool, int):
            fault = pool_fault(pool, version)
            if fault:
                raise InvalidArgument(f"request: pool {index} {fault}")
            sizes.append(pool.size)
        elif version < HalVersion.V1_3:
            raise InvalidArgument(f"request: pool {index} is a token; those exist since HAL 1.3")
        elif pool > 0:
            sizes.append(None)
        else:
            raise InvalidArgument(f"request: pool {index} is token {pool}; tokens are above 0")
    return sizes


def _location_fault(argument: RequestArgument, pool_sizes: Sequence[int | None]) -> str | None:
    location = argument.location
    offset, length = location.offset, location.length
    if argument.has_no_value:
        if location != NOWHERE or argument.dimensions:
            return "an omitted argument has neither location nor dimensions"
        return None
    if not 0 <= location.pool_index < len(pool_sizes):
        return f"is in pool {location.pool_index}, but the request has {len(pool_sizes)}"
    size = pool_sizes[location.pool_index]
    if size is None:
        if offset or length:
            return "a driver-managed buffer is used whole: offset and length must be 0"
    elif offset < 0 or length < 0 or offset + length > size:
        return (
            f"is {length} bytes at {offset} of pool {location.pool_index}, which has {size} bytes"
        )
    return None


def image_fault(layout: ImageLayout, dimensions: Sequence[int]) -> str | None:
    """Returns why an image cannot be a tensor of these dimensions, or None."""
    if not layout.is_rgb:
        return (
            "is a YCbCr image, which no device takes and nobody converts unasked: use "
            "nnasync.memory.to_rgb"
        )
    shape = layout.planes[0].shape
    if tuple(dimensions) in (shape, (1, *shape)):
        return None
    return f"has dimensions {list(dimensions)}, the image is {[1, *shape]}"


def _image_fault(operand: Operand, argument: RequestArgument, pool: Memory) -> str | None:
    """Returns why a tensor cannot be this image, or None."""
    location = argument.location
    if location.offset or location.length:
        return "an image is used whole: offset and length must be 0"
    if argument.dimensions:
        fault = _dimensions_fault(operand, argument.dimensions)
        if fault:
            return fault
    if not isinstance(pool, Pool) or pool.image_layout is None:
        return None  # Of a foreign image nothing is known here; who is to map it fails.
    if operand.type != hal.OperandType.TENSOR_QUANT8_ASYMM:
        return (
            f"is an image of one byte a channel, which {hal.type_name(operand.type)} is not; "
            "TENSOR_QUANT8_ASYMM is"
        )
    return image_fault(pool.image_layout, argument.dimensions or operand.dimensions)


def _is_empty(argument: RequestArgument) -> bool:
    """Returns whether an input is an empty tensor."""
    return argument.location.length == 0 and 0 in argument.dimensions


def _dimensions_fault(operand: Operand, given: Sequence[int]) -> str | None:
    """Returns why dimensions that are given contradict the model's, or None."""
    model = operand.dimensions
    if hal.is_scalar(operand.type):
        return f"is a scalar and has no dimensions, not {list(given)}"
    if any(not 0 <= n <= MAX_DIMENSION for n in given):
        return f"has dimensions {list(given)}, which must be in [0, 2^32 - 1]"
    if not hal.has_dimensions(given, model):
        return f"has dimensions {list(given)}, the model asks for {list(model)}"
    return None


def _shape_fault(operand: Operand, argument: RequestArgument, *, dynamic: bool) -> str | None:
    given = argument.dimensions
    fault = _dimensions_fault(operand, given) if given else None
    if fault:
        return fault
    dimensions = given or operand.dimensions
    type = operand.type
    if dynamic or hal.is_fully_specified(type, dimensions) or not _has_size(type):
        return None
    return f"has dimensions {list(dimensions)}; they must be given and known here"


def _has_size(type: int) -> bool:
    """Returns whether anybody but the vendor of an extension knows how large its values are."""
    return hal.has_dtype(type) or not hal.is_extension(type)


def _size_fault(
    operand: Operand, argument: RequestArgument, pool_sizes: Sequence[int | None]
) -> str | None:
    """Returns why an input is too small, or None; a length of 0 stands for the rest of the pool."""
    if not hal.has_dtype(operand.type):
        return None
    location = argument.location
    size = pool_sizes[location.pool_index]
    if size is None:
        return None
    needed = hal.byte_size(operand.type, argument.dimensions or operand.dimensions)
    available = location.length or size - location.offset
    return None if available >= needed else f"has {available} bytes, but takes {needed}"
