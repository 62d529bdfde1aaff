"""Cache keys of compilations: tokens, slots and file names; pure.

The application names its model by a token of 32 bytes. One model makes several entries, for each
device, preference and step of a plan another, so the token is extended by all of these through
SHA-256, as NNAPI does; by the priority, too, for devices that are told it when they prepare. Unlike
there, every field is preceded by its length, so that no two keys are the same sequence of bytes.

The derived token names the files of an entry. The slot is the same digest without the version of
the device: entries of one slot and different tokens are of different driver versions, which is how
a lookup can say so.
"""

from __future__ import annotations

import enum
import hashlib
import re
import struct
from collections.abc import Iterable

from nnasync.errors import InvalidArgument
from nnasync.hal import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    MAX_NUMBER_OF_CACHE_FILES,
    ExecutionPreference,
    Priority,
    Struct,
)

_LETTERS = "ABCDEFGHIJKLMNOP"
_NAME = r"([A-P]{64})([12])(0|[1-9][0-9]?)"


class FileKind(enum.IntEnum):
    """What is in a file of an entry; the value is the digit in its name."""

    MODEL = 1
    DATA = 2


class CacheKey(Struct):
    """Everything that a compiled model depends on.

    token: 32 bytes, by which the application names its model. step: number of the step in the plan;
    operations: `operations_digest` of what the step runs, empty where it is the whole model.
    variant: whatever else the compiled code depends on, such as the lowering and the cores.

    Raises InvalidArgument for a token of another length, or a negative step.
    """

    token: bytes
    device_name: str
    device_version: str
    library_version: str
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM
    step: int = 0
    operations: bytes = b""
    variant: str = ""

    def __post_init__(self) -> None:
        check_token(self.token)
        if not 0 <= self.step < 2**31:
            raise InvalidArgument(f"the step of a plan is a number from 0 on, got {self.step}")


def check_token(token: object) -> None:
    """Raises InvalidArgument unless it is 32 bytes."""
    if not isinstance(token, bytes) or len(token) != BYTE_SIZE_OF_CACHE_TOKEN:
        found = f"{len(token)} bytes" if isinstance(token, bytes) else repr(token)
        raise InvalidArgument(
            f"a cache token is {BYTE_SIZE_OF_CACHE_TOKEN} bytes, such as a SHA-256; got {found}"
        )


def check_counts(counts: tuple[int, int]) -> None:
    """Raises InvalidArgument unless both numbers of files are 0 to 32."""
    if not all(0 <= count <= MAX_NUMBER_OF_CACHE_FILES for count in counts):
        raise InvalidArgument(
            f"an entry has 0 to {MAX_NUMBER_OF_CACHE_FILES} model cache files and as many data "
            f"cache files, got {counts[0]} and {counts[1]}"
        )


def operations_digest(operations: Iterable[tuple[int, int]]) -> bytes:
    """Digest of the operations of a step: pairs of source model and operation, in their order."""
    digest = hashlib.sha256()
    for source_model, operation in operations:
        digest.update(struct.pack("<QQ", source_model, operation))
    return digest.digest()


def derive_token(key: CacheKey) -> bytes:
    """The token of the entry, 32 bytes: what the driver gets and the files are named by."""
    return _digest(b"token", *_fields(key), key.device_version.encode())


def slot(key: CacheKey) -> bytes:
    """32 bytes that are the same for every version of the device."""
    return _digest(b"slot", *_fields(key))


def _fields(key: CacheKey) -> tuple[bytes, ...]:
    return (
        key.token,
        struct.pack("<i", key.step),
        key.operations,
        key.device_name.encode(),
        struct.pack("<ii", key.preference, key.priority),
        key.variant.encode(),
    )


def _digest(*fields: bytes) -> bytes:
    digest = hashlib.sha256()
    for field in fields:
        digest.update(struct.pack("<Q", len(field)))
        digest.update(field)
    return digest.digest()


def spare_token(token: bytes) -> bytes:
    """The second token that the files of an entry may be named by; its own is the first again.

    The files of the next writing lie beside those of the last one until it counts.
    """
    return bytes(byte ^ 0xFF for byte in token)


def file_name(token: bytes, kind: FileKind, index: int) -> str:
    """Name of a cache file: a letter for each half byte, the low half first; kind; index.

    File 7 of the model cache of a token of 32 bytes 0x3F is named 32 times "PD", then "17".
    """
    letters = "".join(_LETTERS[byte & 15] + _LETTERS[byte >> 4] for byte in token)
    return f"{letters}{kind:d}{index}"


def file_names(token: bytes, counts: tuple[int, int]) -> list[str]:
    """Names of all files of an entry."""
    return [
        file_name(token, kind, index)
        for kind, count in zip(FileKind, counts, strict=True)
        for index in range(count)
    ]


def token_of(name: str) -> bytes | None:
    """The token in the name of a cache file; None where it is not the name of one."""
    match = re.fullmatch(_NAME, name, re.ASCII)
    if match is None or int(match[3]) >= MAX_NUMBER_OF_CACHE_FILES:
        return None
    values = [_LETTERS.index(letter) for letter in match[1]]
    return bytes(low | high << 4 for low, high in zip(values[::2], values[1::2], strict=True))
