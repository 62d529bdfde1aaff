"""Changes to bytes, as data: they fit contents of any length, and are made more often near an end.

What is changed is chosen before the bytes are there, as those of a cache file are not before the
device has written it.
"""

from __future__ import annotations

import enum
import random

import msgspec

NUMBERS = (0, 1, 2, 3, 7, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000)
_NEAR = 8192


class ByteChange(enum.Enum):
    """What happens at a place."""

    BYTE = "byte"
    BIT = "bit"
    WORD = "word"
    COPY = "copy"
    CUT = "cut"


class ByteEdit(msgspec.Struct, frozen=True):
    """One change: `place` is counted from the front or the end, modulo the room that there is."""

    change: ByteChange
    place: int
    is_near: bool
    from_end: bool
    number: int
    count: int


_CHANGES = (
    *(ByteChange.BYTE,) * 8,
    *(ByteChange.BIT,) * 4,
    *(ByteChange.WORD,) * 6,
    ByteChange.COPY,
    ByteChange.CUT,
)


def byte_edits(source: random.Random) -> tuple[ByteEdit, ...]:
    """Up to twenty changes."""
    return tuple(
        ByteEdit(
            source.choice(_CHANGES),
            source.getrandbits(31),
            source.random() < 0.7,
            source.random() < 0.5,
            source.choice((*NUMBERS, source.getrandbits(32))),
            source.choice((1, 4, 16, 64, 256, 2**30)),
        )
        for _ in range(source.choice((1, 1, 2, 3, 6, 20)))
    )


def edited(data: bytes, edits: tuple[ByteEdit, ...]) -> bytes:
    """The bytes with the changes made, one after the other."""
    content = bytearray(data)
    for edit in edits:
        if len(content) < 2:
            break
        _edit(content, edit)
    return bytes(content)


def _edit(content: bytearray, edit: ByteEdit) -> None:
    length = len(content)
    place = edit.place % (min(length, _NEAR) if edit.is_near else length)
    place = length - 1 - place if edit.from_end else place
    if edit.change is ByteChange.BYTE:
        content[place] = edit.number & 0xFF
    elif edit.change is ByteChange.BIT:
        content[place] ^= 1 << (edit.number % 8)
    elif edit.change is ByteChange.WORD:
        start = place & ~3
        content[start : start + 4] = edit.number.to_bytes(4, "little")[: length - start]
    elif edit.change is ByteChange.COPY:
        other = edit.number % length
        count = min(edit.count, 256)
        content[place : place + count] = content[other : other + count]
    else:
        del content[place : place + edit.count]
