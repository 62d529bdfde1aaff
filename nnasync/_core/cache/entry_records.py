"""The record of a cache entry, its signature, and the headers of its files; pure.

A record is kept apart from the files, in the ledger. It has the SHA-256 of each model cache file
and the CRC-32 of each data cache file, both over what is in the file behind the header. The first
stands against a client who changes files on purpose; the second notices what happens by accident,
and who forges it gains no more than wrong values.

Every file begins with a header of 64 bytes that is known in advance from the record, so it is
compared, never parsed. It holds the generation, a random number for each writing of an entry: files
of two writings, or of two entries, cannot be mixed, whatever moment a writer is killed at.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import struct
from collections.abc import Callable

import msgspec

from nnasync._core.cache.keys import CacheKey, FileKind, spare_token
from nnasync._core.cache.outcome import Rejected
from nnasync.hal import MAX_NUMBER_OF_CACHE_FILES, Struct
from nnasync.hal.decoders import msgpack_decoder

FORMAT = 2
"""Version of the files and of the records; raised with every change of either."""

HEADER_BYTES = 64
"""What each file begins with."""

GENERATION_BYTES = 16
NONCE_BYTES = 12

_MAGIC = b"nnasync$"
_HEADER = struct.Struct("<8sHBB4x16sQ12s12x")


class FileRecord(Struct, array_like=True, forbid_unknown_fields=True):
    """One file: bytes behind its header, their digest, and the nonce if they are encrypted."""

    size: int
    digest: bytes
    nonce: bytes = b""


class Record(Struct, array_like=True, forbid_unknown_fields=True):
    """One entry: who wrote it, for which model, and its files.

    spare: whether they are named by the spare token.
    """

    format: int
    library_version: str
    device_name: str
    device_version: str
    model_digest: bytes
    generation: bytes
    encrypted: bool
    model: tuple[FileRecord, ...]
    data: tuple[FileRecord, ...]
    spare: bool = False

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of model cache and data cache files."""
        return len(self.model), len(self.data)

    def named_by(self, token: bytes) -> bytes:
        """The token that the files of the entry with this token are named by."""
        return spare_token(token) if self.spare else token


class Checksum:
    """The CRC-32 of zlib with the interface of hashlib."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Go on with more bytes."""
        self._value = binascii.crc32(data, self._value)

    def digest(self) -> bytes:
        """Four bytes."""
        return self._value.to_bytes(4, "little")


def digest_of(kind: FileKind) -> Checksum | hashlib._Hash:
    """A fresh digest for a file: SHA-256 for the model cache, CRC-32 for the data cache."""
    return _DIGESTS[kind]()


_DIGESTS: dict[FileKind, Callable[[], Checksum | hashlib._Hash]] = {
    FileKind.MODEL: hashlib.sha256,
    FileKind.DATA: Checksum,
}


def file_header(generation: bytes, kind: FileKind, index: int, file: FileRecord) -> bytes:
    """The first 64 bytes of a cache file."""
    return _HEADER.pack(_MAGIC, FORMAT, kind, index, generation, file.size, file.nonce)


def encode(record: Record) -> bytes:
    """A record as bytes."""
    return msgspec.msgpack.encode(record)


def decode(data: bytes) -> Record:
    """A record from bytes; raises Rejected where it could not have been written."""
    try:
        record = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Rejected(f"the record of the entry cannot be read: {error}") from error
    sound = (
        len(record.generation) == GENERATION_BYTES
        and max(record.counts) <= MAX_NUMBER_OF_CACHE_FILES
        and all(_is_sound(file) for file in record.model + record.data)
    )
    if not sound:
        raise Rejected("the record of the entry is not one that could have been written")
    return record


def _is_sound(file: FileRecord) -> bool:
    return 0 <= file.size < 2**63 and len(file.nonce) in (0, NONCE_BYTES)


_DECODER = msgpack_decoder(Record)


def sign(secret: bytes, directory: bytes, token: bytes, data: bytes) -> bytes:
    """HMAC-SHA-256 of a record, which binds it to its place and to the installation."""
    place = struct.pack("<QQ", len(directory), len(token)) + directory + token
    return hmac.digest(secret, place + data, "sha256")


def check_record(
    record: Record,
    key: CacheKey,
    model_digest: bytes,
    *,
    counts: tuple[int, int] | None,
    encrypt: bool,
) -> None:
    """Raises Rejected unless the entry is what a compilation with this key asks for."""
    if record.format != FORMAT:
        raise Rejected(f"other cache format {FORMAT}, was {record.format}")
    if record.library_version != key.library_version:
        raise Rejected(f"other nnasync version {key.library_version}, was {record.library_version}")
    if record.device_name != key.device_name:
        raise Rejected(f"other device {key.device_name}, was {record.device_name}")
    if record.device_version != key.device_version:
        raise Rejected(f"other driver version {key.device_version}, was {record.device_version}")
    if record.model_digest != model_digest:
        raise Rejected("the token is of another model")
    if counts is not None and record.counts != counts:
        raise Rejected(
            f"the device wants {counts[0]} model and {counts[1]} data cache files, the entry has "
            f"{record.counts[0]} and {record.counts[1]}"
        )
    if record.encrypted != encrypt:
        raise Rejected(
            "the entry is not encrypted" if encrypt else "the entry is encrypted, which is off now"
        )
