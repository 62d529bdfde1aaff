"""Flatbuffers are read as they were written; what is broken is refused, whatever it is."""

from __future__ import annotations

import struct
from typing import Any

import flatbuffers
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.formats.flatbuffer import (
    BROKEN,
    Rows,
    Table,
    bytes_at,
    fields,
    numbers_at,
    places_at,
    root,
    text,
    text_at,
)

KNOWN = fields("Count:i=7 Ratio:f Is:? - Name:text Sizes:*h Part:table Parts:tables")
numbers = st.integers(-(2**15), 2**15 - 1)


def written(count: int, name: str, sizes: list[int], parts: list[int]) -> bytes:
    """A table as the published package writes it, with tables in it."""
    builder: Any = flatbuffers.Builder(64)
    offsets = []
    for part in parts:
        builder.StartObject(8)
        builder.PrependInt32Slot(0, part, 7)
        offsets.append(builder.EndObject())
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    vector = builder.EndVector()
    label, list_ = builder.CreateString(name), builder.CreateNumpyVector(np.array(sizes, np.int16))
    builder.StartObject(8)
    builder.PrependInt32Slot(0, count, 7)
    builder.PrependUOffsetTRelativeSlot(4, label, 0)
    builder.PrependUOffsetTRelativeSlot(5, list_, 0)
    if offsets:
        builder.PrependUOffsetTRelativeSlot(6, offsets[0], 0)
    builder.PrependUOffsetTRelativeSlot(7, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def everything(table: Table, depth: int = 2) -> tuple[Any, ...]:
    part = table.table("Part", KNOWN) if depth else None
    return (
        *(table.number(name) for name in ("Count", "Ratio", "Is")),
        text(table.bytes("Name")),
        table.numbers("Sizes"),
        None if part is None else part.number("Count"),
        [each.number("Count") for each in table.tables("Parts", KNOWN)],
    )


@given(numbers, st.text(max_size=9), st.lists(numbers, max_size=5), st.lists(numbers, max_size=3))
def test_what_was_written_is_read(
    count: int, name: str, sizes: list[int], parts: list[int]
) -> None:
    found = everything(root(memoryview(written(count, name, sizes, parts)), KNOWN))
    first = parts[0] if parts else None
    assert found == (count, 0.0, False, name, tuple(sizes), first, parts)


def in_rows(data: memoryview, depth: int = 2) -> tuple[Any, ...]:
    """What `everything` finds, read by rows."""
    rows = Rows(data, KNOWN, "Name Count Is Ratio Parts Part Sizes")
    (place,) = struct.unpack_from("<I", data)
    name, count, is_, ratio, parts, part, sizes = rows.at(place)
    return (
        *(count, ratio, is_),
        text(bytes_at(data, name)),
        numbers_at(data, sizes, "h"),
        rows.at(part)[1] if part else None,
        [rows.at(each)[1] for each in places_at(data, parts)],
    )


@given(numbers, st.text(max_size=9), st.lists(numbers, max_size=12), st.lists(numbers, max_size=3))
def test_rows_are_what_tables_are(
    count: int, name: str, sizes: list[int], parts: list[int]
) -> None:
    data = memoryview(written(count, name, sizes, parts))
    assert in_rows(data) == everything(root(data, KNOWN))
    (place,) = struct.unpack_from("<I", data)
    assert list(Rows(data, KNOWN).at(place)[:3]) == [count, 0.0, False]
    assert list(Rows(data, KNOWN, "Count").at(place)) == [count]


@given(st.lists(numbers, max_size=7), st.binary(max_size=12), st.integers(0, 20))
def test_a_list_ends_where_it_says_though_the_file_does(
    sizes: list[int], rest: bytes, cut: int
) -> None:
    content = struct.pack(f"<4xI{len(sizes)}h", len(sizes), *sizes)
    data = memoryview(content + rest)
    assert numbers_at(data, 4, "h") == tuple(sizes)
    short = data[: max(4, len(content) - 1 - cut)]
    if len(short) < len(content):
        with pytest.raises(BROKEN):
            numbers_at(short, 4, "h")


@given(st.binary(max_size=9), st.binary(max_size=3))
def test_a_text_is_what_its_bytes_are(raw: bytes, rest: bytes) -> None:
    data = memoryview(struct.pack("<4xI", len(raw)) + raw + rest)
    assert text_at(data, 4) == (text(bytes_at(data, 4)), len(raw))
    assert text_at(data, 0) == ("", 0)
    if raw:
        with pytest.raises(BROKEN):
            text_at(data[: 7 + len(raw)], 4)


def test_a_table_without_anything_has_the_defaults() -> None:
    data = memoryview(struct.pack("<IHHi", 8, 4, 4, 4))
    assert in_rows(data) == everything(root(data, KNOWN)) == (7, 0.0, False, "", (), None, [])


def test_fields_of_a_row_may_share_bytes() -> None:
    known = fields("Small:H Large:I Late:B")
    data = memoryview(struct.pack("<I5HhiI", 16, 10, 12, 6, 4, 7, 0, 12, 0x01020304))
    assert list(Rows(data, known).at(16)) == [0x0102, 0x01020304, 0x01]


@given(
    st.data(),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_damage_is_refused_or_read_as_something_else(
    data: st.DataObject, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(written(3, "name", [1, 2, 3], [5, 6]))
    for place, value in changes:
        content[place % len(content)] = value
    del content[data.draw(st.integers(4, len(content))) :]
    found = []
    for read in (in_rows, lambda data: everything(root(data, KNOWN))):
        try:
            found.append(repr(read(memoryview(content))))
        except BROKEN:
            found.append("")
    # Rows read all fields of tables that are asked for one here, and refuse more.
    assert found[0] in ("", found[1])


@pytest.mark.parametrize("place", [0, 4])
def test_places_beyond_the_end_are_refused(place: int) -> None:
    content = bytearray(written(3, "name", [1], []))
    struct.pack_into("<I", content, place, 0xFFFFFFF0)
    for read in (lambda data: everything(root(data, KNOWN)), in_rows):
        with pytest.raises(BROKEN):
            read(memoryview(content))
