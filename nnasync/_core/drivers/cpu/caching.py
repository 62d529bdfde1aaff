"""A plan in cache files: the model, and its weights as they are packed, mapped and used in place.

The model file says everything that decides what happens. The data file holds values only, those of
large floating point and 8-bit constants and of packed weights; where they lie and what shapes they
have stands in the model file. So a damaged data file makes wrong results at worst.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from nnasync._core.drivers.cpu.plan import ReferencePlan
from nnasync._core.model.description import Block, ModelDescription, block_of, describe
from nnasync.engine import CacheFiles
from nnasync.errors import GeneralFailure, ModelError
from nnasync.hal import (
    Array,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Shape,
    Struct,
)
from nnasync.hal.decoders import msgpack_decoder
from nnasync.kernels import Packing
from nnasync.memory import layout

_VALUES = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_FLOAT16,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
)
"""Types whose values decide no shape, no place and no number of turns."""
_SMALLEST_VALUES = 1024
"""Constants below this many bytes stay in the model file."""
_PARAMETERS, _WEIGHTS = 0, 1


class _Packed(Struct, frozen=True):
    """A packed array in the data file."""

    dtype: str
    shape: Shape
    offset: int


class _FileDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The model file: a model whose constants lie in `parameters` and in the data file."""

    model: ModelDescription
    parameters: bytes
    packed: tuple[_Packed, ...]
    data_bytes: int


class _Constants(Struct, frozen=True):
    """A memory pool over bytes that are there already."""

    view: memoryview
    name: str = "mmap_fd"

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.view.nbytes


def pack(plan: ReferencePlan) -> CacheFiles:
    """The files of a plan."""
    model = plan.model
    parameters, weights = _blocks(model)
    offsets, parameter_bytes = layout([length for *_, length in parameters])
    packed = [np.ascontiguousarray(array) for array in plan.packed]
    sizes = [array.nbytes for array in packed] + [length for *_, length in weights]
    places, data_bytes = layout(sizes)
    moved = {
        block: DataLocation(pool, offset, block[2])
        for pool, blocks, at in (
            (_PARAMETERS, parameters, offsets),
            (_WEIGHTS, weights, places[len(packed) :]),
        )
        for block, offset in zip(blocks, at, strict=True)
    }
    description = _FileDescription(
        model=describe(model, moved),
        parameters=_joined(
            (_value(model, each) for each in parameters), offsets, parameter_bytes
        ).tobytes(),
        packed=tuple(
            _Packed(array.dtype.str, array.shape, offset)
            for array, offset in zip(packed, places, strict=False)
        ),
        data_bytes=data_bytes,
    )
    data = _joined([*packed, *(_value(model, each) for each in weights)], places, data_bytes)
    return CacheFiles((msgspec.msgpack.encode(description),), (data.data if data.size else b"",))


def unpack(files: CacheFiles, memory_limit_bytes: int) -> ReferencePlan:
    """The plan of files; it reads its weights in the memory of the data file.

    Raises GeneralFailure for files of another form, and what compiling raises.
    """
    if (len(files.model), len(files.data)) != (1, 1):
        raise GeneralFailure(f"{len(files.model)} model and {len(files.data)} data cache files")
    data = memoryview(files.data[0])
    try:
        found = msgpack_decoder(_FileDescription).decode(files.model[0])
        if data.nbytes != found.data_bytes:
            raise ValueError(f"the data file has {data.nbytes} bytes of {found.data_bytes}")
        packing = Packing([_array(data, each) for each in found.packed])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as e:
        raise GeneralFailure(f"these bytes are no plan: {e}") from e
    pools = _Constants(memoryview(found.parameters)), _Constants(data)
    plan = ReferencePlan(found.model.model(pools), memory_limit_bytes, packing)
    if not packing.is_complete:
        raise ModelError("more packed arrays were kept than the model has")
    return plan


def _blocks(model: Model) -> tuple[list[Block], list[Block]]:
    """Pool, offset and length of each constant in a pool: parameters, and mere values."""
    values: dict[Block, bool] = {}
    for subgraph in (model.main, *model.referenced):
        for operand in subgraph.operands:
            if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
                block = block_of(operand.location)
                values[block] = values.get(block, True) and _is_value(operand)
    return (
        [block for block, is_value in values.items() if not is_value],
        [block for block, is_value in values.items() if is_value],
    )


def _is_value(operand: Operand) -> bool:
    return operand.type in _VALUES and operand.location.length >= _SMALLEST_VALUES


def _value(model: Model, block: Block) -> Array:
    pool, offset, length = block
    if length == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(model.pools[pool].view, np.uint8, length, offset)


def _joined(pieces: Iterable[Array], offsets: Sequence[int], total: int) -> Array:
    """Pieces as bytes at their offsets, zeros between them."""
    joined = np.zeros(total, np.uint8)
    for piece, offset in zip(pieces, offsets, strict=True):
        joined[offset : offset + piece.nbytes] = piece.reshape(-1).view(np.uint8)
    return joined


def _array(data: memoryview, packed: _Packed) -> Array:
    """A packed array where it lies; raises ValueError where it leaves the file."""
    dtype = np.dtype(packed.dtype)
    count = math.prod(packed.shape)
    if dtype not in (np.float32, np.float64) or min(packed.shape, default=0) < 0:
        raise ValueError(f"a packed array of {dtype}{list(packed.shape)}")
    if count == 0:
        return np.empty(packed.shape, dtype)
    return np.frombuffer(data, dtype, count, packed.offset).reshape(packed.shape)
