"""Descriptions of `.nnm` files with values changed: numbers and parts that do not belong there.

The header is that of a file which `save` wrote, so that what is in the description is looked at.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["changed_description"]

_HEADER = struct.Struct("<8sIIQQQ24x")
_ALIGNMENT = 64
_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 127, 255, 2**16, 2**31 - 1, -(2**31), 2**32, 2**63 - 1)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS,
    0.0,
    -1.5,
    float("inf"),
    float("nan"),
    "",
    "x",
    b"",
    [],
    {},
    None,
    True,
)


def changed_description(data: bytes, source: random.Random) -> bytes:
    """A file whose parts lie where its header says; a few values of its description differ."""
    magic, version, zero, length, start, constants = _HEADER.unpack_from(data)
    content = msgspec.msgpack.decode(data[_HEADER.size : _HEADER.size + length])
    for _ in range(source.choice((1, 1, 2, 4))):
        _change(content, source)
    if source.random() < 0.1:
        version = source.choice((1, 2, 3))
    if source.random() < 0.1:
        constants = source.choice((0, constants // 2, constants + 1, 2**40))
    description = msgspec.msgpack.encode(content)
    moved = -(-(_HEADER.size + len(description)) // _ALIGNMENT) * _ALIGNMENT
    header = _HEADER.pack(magic, version, zero, len(description), moved, constants)
    return (header + description).ljust(moved, b"\0") + data[start:]


def _change(content: dict[str, Any], source: random.Random) -> None:
    """Drop, double or replace a value, by an odd one, one a step off or one of the same field."""
    places = list(_places(content))
    within, key = source.choice(places)
    value = within[key]
    kind = source.randrange(6)
    if kind == 0:
        del within[key]
    elif kind == 1 and isinstance(within, list):
        within.insert(key, value)
    elif kind <= 3:
        alike = [holder[k] for holder, k in places if k == key and type(holder) is type(within)]
        within[key] = _copy(source.choice(alike))
    elif kind == 4 and type(value) is int:
        within[key] = value + source.choice((-1, 1, 4, 64, -64))
    elif type(value) is int:
        within[key] = source.choice(_NUMBERS)
    else:
        within[key] = source.choice(_VALUES)


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """All values in lists and maps, as what holds each and where."""
    if not isinstance(content, (list, dict)):
        return
    for key in range(len(content)) if isinstance(content, list) else list(content):
        yield content, key
        yield from _places(content[key])


def _copy(value: Any) -> Any:
    """A value apart: one that holds itself has no end."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
