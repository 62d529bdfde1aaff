"""A blob cache kept in one file, replaced as a whole when it is saved.

The file is "nn$$", the CRC-32C of the rest, and the flattened cache. With a key it is "nn$#", the
HMAC-SHA-256 of the rest under that key, and the flattened cache: then it is loaded only as it was
saved. A checksum notices accidents; what is in a file without a key is anybody's, so a driver must
check values that it takes from there.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat

from nnasync.errors import InvalidArgument
from nncache.blobs import BlobCache
from nncache.checksum import crc32c

__all__ = ["load_blobs", "save_blobs"]

_MAGIC = b"nn$$"
_SIGNED_MAGIC = b"nn$#"
_MODE = 0o400
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def load_blobs(cache: BlobCache, path: str | os.PathLike[str], *, key: bytes | None = None) -> str:
    """Replace what is in a cache by what a file holds; why it is empty now, "" if it was loaded.

    A missing, foreign, damaged or oversized file (more than twice the limit) leaves it empty.
    """
    cache.clear()
    try:
        content = _read(path, 2 * cache.limits.max_total)
        cache.unflatten(_checked(content, key))
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    except (InvalidArgument, ValueError) as error:
        return str(error)
    return ""


def save_blobs(cache: BlobCache, path: str | os.PathLike[str], *, key: bytes | None = None) -> str:
    """Replace a file by what is in a cache; why that failed, "" if it did not."""
    block = cache.flatten()
    try:
        _replace(os.fspath(path), _head(block, key) + block)
    except OSError as error:
        return f"the file cannot be written: {error.strerror}"
    except ValueError as error:
        return f"the file cannot be written: {error}"
    return ""


def _head(block: bytes, key: bytes | None) -> bytes:
    if key is not None:
        return _SIGNED_MAGIC + hmac.digest(key, block, "sha256")
    return _MAGIC + crc32c(block).to_bytes(4, "little")


def _checked(content: bytes, key: bytes | None) -> bytes:
    size = 36 if key is not None else 8
    head, block = content[:size], content[size:]
    if not hmac.compare_digest(head, _head(block, key)):
        raise InvalidArgument("the file is not a blob cache, or was modified")
    return block


def _read(path: str | os.PathLike[str], limit: int) -> bytes:
    fd = os.open(path, _OPEN)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise InvalidArgument("the file is not a regular one")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise InvalidArgument(f"the file has more than {limit} bytes, twice the limit of the cache")
    return content


def _replace(path: str, content: bytes) -> None:
    temporary = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(temporary, _CREATE, _MODE)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
