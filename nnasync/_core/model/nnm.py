"""Models on disk: the `.nnm` format, and the fingerprint of a model.

A file is a header of 64 bytes, a description and the large constants:

    0   8 bytes   magic "NNASYNC" and a zero byte
    8   u32       version of the format: 1, or 2 of a model with labels
    12  u32       zero
    16  u64       length of the description, which begins at byte 64
    24  u64       offset of the constants: the end of the description, rounded up to 64
    32  u64       length of the constants, which end the file
    40  24 bytes  zero

All numbers are little-endian. The description is msgpack: the HAL's structs, whose large constants
are offsets into the constants. Each of these begins at a multiple of 64, so that it is mapped and
used in place, never read. What is not used is zero: a model has one file and one fingerprint.

A file is hostile until it is checked: `load_nnm` accepts what `save` writes, and raises ModelError,
with the file's name, for everything else.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from nnasync._core.model.description import Block, ModelDescription, block_of, describe
from nnasync._core.validation import validate_model
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import (
    DataLocation,
    Memory,
    Model,
    OperandLifeTime,
)
from nnasync.hal.decoders import msgpack_decoder
from nnasync.memory import ALIGNMENT, Pool, layout, mapped

_MAGIC = b"NNASYNC\0"
_VERSION, _WITH_LABELS = 1, 2
_HEADER = struct.Struct("<8sIIQQQ24x")
_MAX_DESCRIPTION_BYTES = 256 * 2**20


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgpack_decoder(ModelDescription)


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to an `.nnm` file, all or nothing.

    Raises ModelError for a model that is not legal, OSError where the file cannot be written.
    """
    validate_model(model)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            write(model, file)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(model: Model, file: BinaryIO) -> None:
    """Write what an `.nnm` file of a legal model has in it to an open file."""
    file.writelines(_pieces(model))
    file.flush()


def load_nnm(path: str | os.PathLike[str]) -> Model:
    """The model in an `.nnm` file; its large constants stay in the file, which must not be changed.

    Raises ModelError where the file is not what `save` writes, OSError where it cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            version, description_size, offset, constants = _read_header(
                file.read(_HEADER.size), size
            )
            description = _decode(file.read(description_size))
            if (version == _WITH_LABELS) != bool(description.labels):
                raise ModelError(f"has version {version} of the format; only 2 has labels")
            if any(file.read(offset - _HEADER.size - description_size)):
                raise ModelError("bytes between description and constants are not zero")
            pools: tuple[Memory, ...] = ()
            if constants:
                pools = (Pool.from_fd(file.fileno(), constants, offset=offset, writable=False),)
        model = description.model(pools)
        validate_model(model)
    except InvalidArgument as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error
    return model


def fingerprint(model: Model) -> bytes:
    """SHA-256 of the description and the constants: equal for models that `save` writes alike.

    Raises GeneralFailure for constants that cannot be read.
    """
    digest = hashlib.sha256()
    for piece in _pieces(model):
        digest.update(piece)
    return digest.digest()


def _pieces(model: Model) -> Iterator[bytes | memoryview]:
    """The file of a model, piece by piece."""
    blocks = _constant_blocks(model)
    offsets, total = layout([length for _, _, length in blocks])
    moved = {
        block: DataLocation(0, offset, block[2])
        for block, offset in zip(blocks, offsets, strict=True)
    }
    description = _ENCODER.encode(describe(model, moved))
    start = -(-(_HEADER.size + len(description)) // ALIGNMENT) * ALIGNMENT
    version = _WITH_LABELS if model.labels else _VERSION
    yield _HEADER.pack(_MAGIC, version, 0, len(description), start, total)
    yield description
    yield bytes(start - _HEADER.size - len(description))
    views = {pool: mapped(model.pools[pool], f"pool {pool} of the model") for pool, _, _ in blocks}
    for pool, offset, length in blocks:
        yield views[pool][offset : offset + length]
        yield bytes(-length % ALIGNMENT)


def _constant_blocks(model: Model) -> list[Block]:
    """Pool, offset and length of each constant in a pool, in order of first use, once."""
    blocks: dict[Block, None] = {}
    for subgraph in (model.main, *model.referenced):
        for operand in subgraph.operands:
            if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
                blocks[block_of(operand.location)] = None
    return list(blocks)


def _read_header(header: bytes, file_size: int) -> tuple[int, int, int, int]:
    """The version, length of the description, offset and length of the constants."""
    if len(header) < _HEADER.size:
        raise ModelError(f"has {file_size} bytes, a model's header alone takes {_HEADER.size}")
    magic, version, zero, description, offset, constants = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise ModelError(f"is not a model: it begins with {magic!r}, not {_MAGIC!r}")
    if version not in (_VERSION, _WITH_LABELS):
        raise ModelError(f"has version {version} of the format; known are 1 and 2")
    if zero or any(header[40:]):
        raise ModelError("unused bytes of the header are not zero")
    if description > min(_MAX_DESCRIPTION_BYTES, file_size - _HEADER.size):
        raise ModelError(f"its description of {description} bytes does not fit into the file")
    expected = -(-(_HEADER.size + description) // ALIGNMENT) * ALIGNMENT
    if offset != expected:
        raise ModelError(f"its constants are at byte {offset}, expected {expected}")
    if offset + constants != file_size:
        raise ModelError(f"has {file_size} bytes, its header says {offset + constants}")
    return version, description, offset, constants


def _decode(data: bytes) -> ModelDescription:
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ModelError(f"its description (bytes 64 to {64 + len(data)}): {error}") from error
