"""Datatypes of the protocol: names, elements as bytes, elements as values in JSON.

BF16 is the upper half of a float32: networks get it widened, which is exact, and what they give is
rounded to the nearest, ties to even.
"""

from __future__ import annotations

import array as arrays
import itertools
import math
import struct
from typing import Any

import numpy as np

from nnasync.hal import Array
from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError, invalid

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
    "BF16": np.dtype(np.float32),
}
"""What an array of each datatype has."""

_NAMES = {dtype: name for name, dtype in DTYPES.items() if name not in ("BYTES", "BF16")}
_LENGTH = struct.Struct("<I")
_SINGLE = DTYPES["FP32"]
_UPPER_HALF = np.dtype("<u2")


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """Returns the protocol's datatype for an array's dtype; None where it has none."""
    return _NAMES.get(dtype)


def from_raw(name: str, datatype: str, shape: tuple[int, ...], raw: Bytes, model: str) -> Array:
    """Returns an array whose elements are these bytes, without a copy where that can be.

    Raises ServingError where they are too few or too many for the shape.
    """
    if datatype == "BYTES":
        return _strings(name, shape, raw, model)
    dtype = _UPPER_HALF if datatype == "BF16" else DTYPES[datatype]
    check_size(name, math.prod(shape) * dtype.itemsize, len(raw), model)
    array = np.frombuffer(raw, dtype).reshape(shape)
    if datatype == "BF16":
        return widened(array)
    if datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise invalid(f"input '{name}' for model '{model}' has bytes other than 0 and 1 as BOOL")
    return array


def check_size(name: str, expected: int, found: int, model: str) -> None:
    """Raises ServingError where an input has another number of bytes than its shape has."""
    if found != expected:
        raise invalid(
            f"unexpected total byte size {found} for input '{name}', expecting {expected} for "
            f"model '{model}'"
        )


def widened(halves: Array) -> Array:
    """Returns the float32 values whose upper halves are these uint16 numbers."""
    wide: Array = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def _strings(name: str, shape: tuple[int, ...], raw: Bytes, model: str) -> Array:
    count, place, view = math.prod(shape), 0, memoryview(raw)
    if count * _LENGTH.size > len(view):
        raise invalid(
            f"incomplete string length indicator for inference input '{name}' for model '{model}'"
        )
    found: list[bytes] = []
    for _ in range(count):
        if len(view) - place < _LENGTH.size:
            raise invalid(
                f"incomplete string length indicator for inference input '{name}' for model "
                f"'{model}', expecting {_LENGTH.size} bytes but only {len(view) - place} available"
            )
        (length,) = _LENGTH.unpack_from(view, place)
        place += _LENGTH.size
        if length > len(view) - place:
            raise invalid(
                f"incomplete string data for inference input '{name}' for model '{model}', "
                f"expecting string of length {length} but only {len(view) - place} bytes available"
            )
        found.append(bytes(view[place : place + length]))
        place += length
    if place != len(view):
        raise invalid(
            f"unexpected number of string elements for inference input '{name}' for model "
            f"'{model}', expecting {count}"
        )
    return of_strings(found, shape)


def of_strings(values: list[bytes], shape: tuple[int, ...]) -> Array:
    """Returns an array of BYTES elements; `np.array` would turn the strings into another dtype."""
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array.reshape(shape)


def from_values(datatype: str, shape: tuple[int, ...], values: Any) -> Array:
    """Returns an array of the values in a list, flat or nested as the shape, or in a flat array.

    Raises ServingError for values of another kind, beyond the range of the datatype, or of another
    number than the shape has.
    """
    if isinstance(values, np.ndarray):
        flat: Any = values
    elif isinstance(values, list):
        flat = _flat(values, shape) if values and isinstance(values[0], list) else values
    else:
        raise invalid("Unable to parse 'data': attempt to access JSON non-array as array")
    if len(flat) != math.prod(shape):
        raise invalid("Unable to parse 'data': Shape does not match true shape of 'data' field")
    if datatype == "BYTES":
        return of_strings([_string(value) for value in flat], shape)
    if isinstance(flat, np.ndarray) and flat.dtype == DTYPES[datatype]:
        return flat.reshape(shape)
    kinds = _KINDS[DTYPES[datatype].kind]
    if not isinstance(flat, np.ndarray) and not set(map(type, flat)) <= kinds[0]:
        raise invalid(f"Unable to parse 'data': attempt to access JSON {kinds[1]}")
    try:
        if datatype == "FP32" and not isinstance(flat, np.ndarray):
            # Numpy would warn of what is beyond the range, and looking away costs as much again.
            return np.frombuffer(arrays.array("f", flat), _SINGLE).reshape(shape)
        with np.errstate(over="ignore"):
            return np.array(flat, DTYPES[datatype]).reshape(shape)
    except (OverflowError, ValueError, TypeError) as error:
        raise invalid(f"Unable to parse 'data': {error} for {datatype}") from error


_KINDS: dict[str, tuple[set[type], str]] = {
    "f": ({int, float}, "non-number as double"),
    "i": ({int}, "non-signed-integer as signed integer"),
    "u": ({int}, "non-unsigned-integer as unsigned integer"),
    "b": ({bool}, "non-boolean as boolean"),
}


def _string(value: object) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise invalid(f"Unable to parse 'data': {error}") from error
    if isinstance(value, bytes):
        return value
    raise invalid("Unable to parse 'data': attempt to access JSON non-string as string")


def _flat(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Returns a list nested as the shape says, as one flat list of its innermost values."""
    for size in shape[1:]:
        if not all(isinstance(value, list) and len(value) == size for value in values):
            raise _mismatch()
        values = list(itertools.chain.from_iterable(values))
    if any(isinstance(value, list) for value in values):
        raise _mismatch()
    return values


def _mismatch() -> ServingError:
    return invalid("Unable to parse 'data': Shape does not match true shape of 'data' field")


def to_raw(array: Array, datatype: str) -> Bytes:
    """Returns the elements of an array as bytes, without a copy where that can be."""
    if datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(value)) + value for value in array.ravel())
    if datatype == "BF16":
        array = narrowed(array)
    if not array.size:
        return b""
    return np.ascontiguousarray(array).data.cast("B")


def narrowed(array: Array) -> Array:
    """Returns float32 as BF16: rounded to the nearest, ties to even, upper halves.

    NaN stays NaN, too.
    """
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
