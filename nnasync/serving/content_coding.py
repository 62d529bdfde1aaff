"""Bodies that are packed with gzip or deflate, unpacked up to a limit.

A few kilobytes can unpack to gigabytes, so the limit holds while unpacking. What clients call
deflate is the format of zlib.
"""

from __future__ import annotations

import gzip
import zlib
from http import HTTPStatus

from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError, invalid, too_large

_GZIP_BITS = 16 + zlib.MAX_WBITS
_BITS = {"gzip": _GZIP_BITS, "x-gzip": _GZIP_BITS, "deflate": zlib.MAX_WBITS}
_LEVEL = 1


def unpacked(body: Bytes, coding: str, limit_bytes: int) -> Bytes:
    """Returns a body unpacked from its `Content-Encoding`; raises ServingError for a broken one."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return body
    bits = _BITS.get(coding)
    if bits is None:
        raise ServingError(HTTPStatus.NOT_IMPLEMENTED, "Unsupported compression type")
    unpacker = zlib.decompressobj(bits)
    try:
        found = unpacker.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise invalid(f"the body is not {coding}: {error}") from error
    if len(found) > limit_bytes:
        raise too_large(f"a request has at most {limit_bytes} bytes when it is unpacked")
    if not unpacker.eof:
        raise invalid(f"the body ends in the middle of its {coding} data")
    if unpacker.unused_data:
        raise invalid(f"there are bytes behind the {coding} data of the body")
    return found


def accepted(header: str) -> str:
    """Returns the coding that `Accept-Encoding` prefers among ours; empty where it names none."""
    best, best_weight = "", 0.0
    for part in header.lower().split(","):
        name, _, options = part.partition(";")
        weight = _weight(options)
        if name.strip() in ("gzip", "deflate") and weight > best_weight:
            best, best_weight = name.strip(), weight
    return best


def _weight(options: str) -> float:
    _, is_given, value = options.partition("q=")
    try:
        return float(value) if is_given else 1.0
    except ValueError:
        return 0.0


def packed(body: bytes, coding: str) -> bytes:
    """Returns a body packed with this coding, at the level that takes the least time."""
    if coding == "gzip":
        return gzip.compress(body, _LEVEL, mtime=0)
    return zlib.compress(body, _LEVEL)
