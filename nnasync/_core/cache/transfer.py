"""Bytes from one file to another, each read once, so that what was digested is what is used."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Protocol

from nnasync._core.cache.entry_records import NONCE_BYTES, FileRecord, digest_of
from nnasync._core.cache.keys import FileKind
from nnasync._core.cache.outcome import Rejected
from nnasync._core.cache.sealed import memory_file, seal

_CHUNK_BYTES = 1 << 18
_TAG_BYTES = 16
_MAX_ENCRYPTED_BYTES = 2**31 - 1 - _TAG_BYTES


class Cipher(Protocol):
    """AES-GCM, as the package cryptography has it."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """The encrypted data and its tag."""

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """The plain data; raises InvalidTag."""


def size_of(fd: int) -> int:
    """Bytes in a regular file; raises OSError."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return found.st_size


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it; raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def load(
    fd: int,
    kind: FileKind,
    file: FileRecord,
    *,
    offset: int = 0,
    cipher: Cipher | None = None,
    bound: bytes = b"",
) -> int:
    """Copy what a record promises into sealed memory; the descriptor of that.

    Reads `file.size` bytes from `offset`. `bound` is what encrypted bytes are bound to. Raises
    Rejected if they are not what was written, OSError if they cannot be read.
    """
    target = memory_file()
    try:
        found = _digested(chunks(fd, offset, file.size), kind, file.digest)
        if cipher is None:
            for chunk in found:
                write_all(target, chunk)
        else:
            write_all(target, _decrypted(cipher, file.nonce, b"".join(found), bound))
    except BaseException:
        os.close(target)
        raise
    return seal(target)


def read(
    fd: int,
    kind: FileKind,
    file: FileRecord,
    *,
    offset: int = 0,
    cipher: Cipher | None = None,
    bound: bytes = b"",
) -> bytes:
    """Returns the contents that a record promises, as `load`, in memory of this process."""
    # The interpreter lock is taken back once for all of it: whoever imports modules meanwhile
    # is not disturbed, and disturbs nothing.
    data = b"".join(_digested(chunks(fd, offset, file.size, file.size), kind, file.digest))
    return data if cipher is None else _decrypted(cipher, file.nonce, data, bound)


def save(
    source: int,
    target: int,
    kind: FileKind,
    header: Callable[[FileRecord], bytes],
    cipher: Cipher | None = None,
) -> FileRecord:
    """Append a header and all bytes of `source` to `target`; what the record must say of them.

    `header` is given the record without its digest. Raises OSError, and Rejected where the source
    shrinks meanwhile or is too large to be encrypted.
    """
    size = size_of(source)
    if cipher is not None and size > _MAX_ENCRYPTED_BYTES:
        raise Rejected(f"{size} bytes are too many to be encrypted")
    file = FileRecord(size, b"")
    if cipher is not None:
        file = FileRecord(size + _TAG_BYTES, b"", os.urandom(NONCE_BYTES))
    head = header(file)
    write_all(target, head)
    digest = digest_of(kind)
    plain = chunks(source, 0, size)
    for chunk in plain if cipher is None else _encrypted(cipher, file.nonce, plain, head):
        digest.update(chunk)
        write_all(target, chunk)
    return FileRecord(file.size, digest.digest(), file.nonce)


def chunks(fd: int, offset: int, size: int, chunk_bytes: int = _CHUNK_BYTES) -> Iterator[bytes]:
    """Yields so many bytes of a file in pieces; raises OSError, and Rejected if there are fewer."""
    end = offset + size
    while offset < end:
        chunk = os.pread(fd, min(chunk_bytes, end - offset), offset)
        if not chunk:
            raise Rejected("cut short")
        yield chunk
        offset += len(chunk)


def _digested(chunks: Iterator[bytes], kind: FileKind, expected: bytes) -> Iterator[bytes]:
    digest = digest_of(kind)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if digest.digest() != expected:
        raise Rejected("modified")


def _encrypted(
    cipher: Cipher, nonce: bytes, chunks: Iterator[bytes], bound: bytes
) -> Iterator[bytes]:
    yield cipher.encrypt(nonce, b"".join(chunks), bound)


def _decrypted(cipher: Cipher, nonce: bytes, data: bytes, bound: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(nonce, data, bound)
    except (InvalidTag, ValueError) as error:
        raise Rejected("not to be decrypted") from error
