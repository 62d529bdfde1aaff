"""Tensors of gRPC messages without copies: taken out of a request, put behind an answer.

The library of protocol buffers copies each field of bytes twice on its way into Python. In a
message, though, fields stand one behind the other, in any order: so the tensors (field 7 of
`ModelInferRequest`) are views of the bytes that arrived, and only the others are given to the
library. Likewise what stands for an answer is what the library wrote, and the tensors (field 6 of
`ModelInferResponse`) behind it.

A field begins with a number that holds its own number and its wire type: 0 a number, 1 eight
bytes, 2 bytes with their length ahead, 5 four bytes. Numbers are little-endian in groups of 7
bits, and the highest bit of a byte says that another one follows.
"""

from __future__ import annotations

from collections.abc import Iterable

from nnasync.serving.messages import Bytes
from nnasync.serving.problems import ServingError, invalid, too_large

_BYTES = 2
_RAW_INPUT = 7 << 3 | _BYTES
_RAW_OUTPUT = 6 << 3 | _BYTES
_ID = 3 << 3 | _BYTES
_INFER_RESPONSE = 2 << 3 | _BYTES
_FIXED_LENGTHS = {1: 8, 5: 4}
_LONGEST_NUMBER = 10
_MOST_FIELDS = 4096
"""Of a request: its inputs and outputs, tensors and parameters; each is read in Python."""
_SMALL = [bytes([number]) for number in range(0x80)]


def split(message: bytes) -> tuple[bytes, list[memoryview]]:
    """Splits a request into its message without tensors, and views of the tensors' bytes.

    Raises ServingError for what is no message, and for one with too many fields.
    """
    view, tensors, others = memoryview(message), list[memoryview](), list[memoryview]()
    start = place = fields = 0
    size = len(message)
    while place < size:
        fields += 1
        if fields > _MOST_FIELDS:
            raise too_large(f"a request has at most {_MOST_FIELDS} fields")
        tag, inside = message[place], place + 1
        if tag >= 0x80:
            tag, inside = _number(message, place)
        if tag & 7 == _BYTES:
            length, inside = _number(message, inside)
            end = inside + length
            if tag == _RAW_INPUT:
                others.append(view[start:place])
                tensors.append(view[inside:end])
                start = end
        else:
            end = _end_of_field(message, tag & 7, inside)
        if end > size:
            raise _broken(f"a field at byte {place} ends at {end}, the message at {size}")
        place = end
    if not tensors:
        return message, tensors
    others.append(view[start:])
    return b"".join(others), tensors


def _end_of_field(message: bytes, wire_type: int, place: int) -> int:
    """Returns where a field ends whose wire type is not that of bytes."""
    if wire_type == 0:
        return _number(message, place)[1]
    if wire_type not in _FIXED_LENGTHS:
        raise _broken(f"wire type {wire_type} at byte {place} is none of this protocol")
    return place + _FIXED_LENGTHS[wire_type]


def _number(message: bytes, place: int) -> tuple[int, int]:
    """Returns the number that begins at `place`, and where the next field or value begins."""
    if place < len(message) and message[place] < 0x80:
        return message[place], place + 1
    value = 0
    for index, byte in enumerate(message[place : place + _LONGEST_NUMBER]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, place + index + 1
    raise _broken(f"the number at byte {place} does not end")


def _broken(reason: str) -> ServingError:
    return invalid(f"failed to parse the request message: {reason}")


def joined(answer: bytes, tensors: Iterable[Bytes]) -> bytes:
    """Returns the bytes of an answer with its tensors behind it."""
    return b"".join(_parts(answer, tensors))


def of_stream(answer: bytes, tensors: Iterable[Bytes]) -> bytes:
    """Returns an answer with its tensors, as field 2 of `ModelStreamInferResponse`."""
    parts = _parts(answer, tensors)
    length = sum(len(part) for part in parts)
    return b"".join([_written(_INFER_RESPONSE) + _written(length), *parts])


def request_id(text: str) -> bytes:
    """Returns the encoded field of an answer that names the request which it answers."""
    data = text.encode()
    return b"".join([_written(_ID), _written(len(data)), data])


def heads(answer: bytes, sizes: Iterable[int]) -> tuple[bytes, ...]:
    """Returns the encoded bytes ahead of each tensor of an answer, for tensors of these sizes."""
    ahead = [_ahead(size) for size in sizes]
    return (answer + ahead[0], *ahead[1:])


def _parts(answer: bytes, tensors: Iterable[Bytes]) -> list[Bytes]:
    parts: list[Bytes] = [answer]
    for tensor in tensors:
        parts += [_ahead(len(tensor)), tensor]
    return parts


def _ahead(size: int) -> bytes:
    return _written(_RAW_OUTPUT) + _written(size)


def _written(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
