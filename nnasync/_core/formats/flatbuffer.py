"""Flatbuffers of a schema that is known, read where they lie, whatever is in them.

A table is an index of places, and its fields lie behind these. Offsets in a file may be anything:
each place is checked against the end before it is read, and offsets that count from the start of a
file cannot point before it. What is broken raises ValueError, or `struct.error`, which `BROKEN`
has; nothing here bounds how often the parts of a file refer to each other, which is the reader's.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

Number = int | float | bool
Field = tuple[int, str, Number]
"""Its number in the table, its type, and the value that it has where none is stated."""

BROKEN = (struct.error, ArithmeticError, LookupError, MemoryError, ValueError)
"""What reading raises where a file is broken."""

_MOST_FIELDS = 64
"""No table here has more fields; of an index that claims to have more, the rest is not read."""

_FEW = 9
"""What unpacks a list of fewer numbers is made in advance."""

_SHORT = 4
"""So many numbers are read together with their count, and what is no part of the list dropped."""

_MOST_LAYOUTS = 1024
"""So many indexes of a file are remembered; honest files have a few for each kind of table."""

Layouts = dict[int, tuple[int, ...]]
"""Where each field lies in its table, 0 where it is not stated, by the place of the index."""

_Unpack = Callable[[memoryview, int], tuple[Any, ...]]
_Row = tuple[
    _Unpack,
    Sequence[_Unpack],
    Callable[[tuple[Any, ...]], tuple[Any, ...]],
    tuple[Any, ...],
    Sequence[tuple[int, int]],
]
"""What reads the fields that lie one behind the other, and those that lie across others; their
order; what stands for those that are not stated; and which lead elsewhere, with their places."""

_offset = struct.Struct("<I").unpack_from
_back = struct.Struct("<i").unpack_from
_size = struct.Struct("<H").unpack_from
_index = [struct.Struct(f"<{count}H").unpack_from for count in range(_MOST_FIELDS + 1)]
_plain = {letter: struct.Struct(f"<{letter}").unpack_from for letter in "?bBhHiIqQfd"}
_bytes = {letter: struct.calcsize(f"<{letter}") for letter in _plain}
_few = {
    letter: [struct.Struct(f"<{count}{letter}").unpack_from for count in range(_FEW)]
    for letter in _plain
}
_short = {letter: struct.Struct(f"<I{_SHORT}{letter}").unpack_from for letter in _plain}


@functools.cache
def fields(text: str) -> Mapping[str, Field]:
    """The fields of a table, written in their order as `Name:type=default`; "-" is none.

    A type is a letter of the module struct, with a star for a list of them, or a word for what is
    no number.
    """
    found: dict[str, Field] = {}
    for slot, each in enumerate(text.split()):
        name, _, rest = each.partition(":")
        kind, _, default = rest.partition("=")
        if kind == "?":
            found[name] = slot, kind, default == "1"
        elif kind:
            found[name] = slot, kind, float(default or 0) if kind in "fd" else int(default or 0)
    return found


def root(data: memoryview, known: Mapping[str, Field]) -> Table:
    """The table that a file begins with."""
    (place,) = _offset(data, 0)
    return Table(data, place, known, {})


class Table:
    """One table; `known` are its fields by name.

    `layouts` are the indexes of tables that were read before, by their place: most tables of one
    kind share theirs.
    """

    __slots__ = ("_data", "_known", "_layouts", "_place", "_places")

    def __init__(
        self, data: memoryview, place: int, known: Mapping[str, Field], layouts: Layouts
    ) -> None:
        self._data = data
        self._place = place
        self._known = known
        self._layouts = layouts
        index = place - _back(data, place)[0]
        places = layouts.get(index)
        if places is None:
            places = _layout(data, index)
            if len(layouts) < _MOST_LAYOUTS:
                layouts[index] = places
        self._places: tuple[int, ...] = places

    def place(self, name: str) -> int:
        """Returns the position of a field, 0 where it is not stated."""
        offset = self._places[self._known[name][0]]
        return self._place + offset if offset else 0

    def target(self, name: str) -> int:
        """Returns the position to which a field's offset leads, 0 where it is not stated."""
        # Written out, as in `extent`: a file of a few layers has thousands of fields.
        offset = self._places[self._known[name][0]]
        if not offset:
            return 0
        place = self._place + offset
        target: int = place + _offset(self._data, place)[0]
        return target

    def extent(self, name: str) -> tuple[int, int]:
        """Returns the position of a list's elements, and their number."""
        offset = self._places[self._known[name][0]]
        if not offset:
            return (0, 0)
        place = self._place + offset
        start = place + _offset(self._data, place)[0]
        return start + 4, _offset(self._data, start)[0]

    def number(self, name: str) -> Number:
        """A field that is a number."""
        slot, kind, default = self._known[name]
        offset = self._places[slot]
        if not offset:
            return default
        value: Number = _plain[kind](self._data, self._place + offset)[0]
        return value

    def integer(self, name: str) -> int:
        """A field that is an integer."""
        return int(self.number(name))

    def numbers(self, name: str) -> tuple[Number, ...]:
        """A field that is a list of numbers."""
        return numbers_at(self._data, self.target(name), self._known[name][1][1])

    def bytes(self, name: str) -> bytes:
        """A field that is a text, or a list of bytes."""
        return bytes_at(self._data, self.target(name))

    def table(self, name: str, known: Mapping[str, Field]) -> Table | None:
        """A field that is a table, None where it is not stated."""
        place = self.target(name)
        return self.beside(place, known) if place else None

    def beside(self, place: int, known: Mapping[str, Field]) -> Table:
        """The table at a place of the same file."""
        return Table(self._data, place, known, self._layouts)

    def tables(self, name: str, known: Mapping[str, Field]) -> Iterator[Table]:
        """A field that is a list of tables, read as they are asked for."""
        start, count = self.extent(name)
        for place in range(start, start + 4 * count, 4):
            yield self.beside(place + int(_offset(self._data, place)[0]), known)


class Rows:
    """Tables of one kind in one file, of which the same fields are read, all of a table at once.

    That is several times as quick as to ask a `Table` for each: a file of many layers has thousands
    of fields. What leads elsewhere (a list, a text, a table) is the place that it leads to, 0 where
    it is not stated.
    """

    __slots__ = ("_data", "_fields", "_layouts")

    def __init__(self, data: memoryview, known: Mapping[str, Field], names: str = "") -> None:
        """`names` are those of the fields in a row, in their order; all by default."""
        self._data = data
        self._fields = tuple([known[name] for name in names.split() or known])
        self._layouts: dict[int, _Row] = {}

    def at(self, place: int) -> Sequence[Any]:
        """The fields of the table at a place."""
        data = self._data
        index = place - _back(data, place)[0]
        first, others, ordered, defaults, offsets = self._layouts.get(index) or self._row(index)
        found = first(data, place)
        for more in others:
            found += more(data, place)
        values = list(ordered(found + defaults))
        for number, offset in offsets:
            values[number] += place + offset
        return values

    def _row(self, index: int) -> _Row:
        """Returns how tables with this index are read."""
        row = _row(self._fields, _layout(self._data, index))
        if len(self._layouts) < _MOST_LAYOUTS:
            self._layouts[index] = row
        return row


@functools.lru_cache(_MOST_LAYOUTS)
def _row(wanted: tuple[Field, ...], places: tuple[int, ...]) -> _Row:
    """How these fields are read of tables where they lie at these places."""
    letters = [kind if kind in _plain else "I" for _, kind, _ in wanted]
    stated = sorted(
        (places[slot], number) for number, (slot, _, _) in enumerate(wanted) if places[slot]
    )
    forms, end = ["<"], 0
    for offset, number in stated:
        if offset < end:  # Fields that share bytes: no honest file has them.
            forms.append("<")
            end = 0
        forms[-1] += f"{offset - end}x{letters[number]}"
        end = offset + _bytes[letters[number]]
    order = {number: position for position, (_, number) in enumerate(stated)}
    picks = [order.get(number, len(stated) + number) for number in range(len(wanted))]
    first, *others = (struct.Struct(form).unpack_from for form in forms)
    return (
        first,
        others,
        itemgetter(*picks) if len(picks) > 1 else lambda found: (found[picks[0]],),
        tuple(default for _, _, default in wanted),
        [(number, offset) for offset, number in stated if wanted[number][1] not in _plain],
    )


def count_at(data: memoryview, place: int) -> int:
    """Returns the number of elements of the list at a position; 0 where there is no list."""
    return int(_offset(data, place)[0]) if place else 0


def numbers_at(data: memoryview, place: int, letter: str) -> tuple[Any, ...]:
    """The list of numbers at a place; empty where there is none, at 0."""
    if not place:
        return ()
    numbers: tuple[Any, ...]
    try:
        numbers = _short[letter](data, place)
    except struct.error:  # So near to the end that a shorter list may be whole.
        (count,) = _offset(data, place)
    else:
        count = numbers[0]
        if count <= _SHORT:
            return numbers[1 : count + 1]
    if count < _FEW:
        numbers = _few[letter][count](data, place + 4)
        return numbers
    if place + count * _bytes[letter] > len(data):
        raise ValueError(f"a list of {count} numbers reaches beyond the end")
    return struct.unpack_from(f"<{count}{letter}", data, place + 4)


def bytes_at(data: memoryview, place: int) -> bytes:
    """The text, or the list of bytes, at a place; empty where there is none, at 0."""
    if not place:
        return b""
    start, count = place + 4, _offset(data, place)[0]
    if start + count > len(data):
        raise ValueError(f"a text of {count} bytes reaches beyond the end")
    return bytes(data[start : start + count])


def text_at(data: memoryview, place: int) -> tuple[str, int]:
    """The text at a place, and how many bytes it has; what is no UTF-8 in it is replaced."""
    if not place:
        return "", 0
    start, count = place + 4, _offset(data, place)[0]
    if start + count > len(data):
        raise ValueError(f"a text of {count} bytes reaches beyond the end")
    return str(data[start : start + count], "utf-8", "replace"), count


def places_at(data: memoryview, place: int) -> Sequence[int]:
    """The places of the tables in the list at a place; none where there is no list, at 0."""
    offsets = numbers_at(data, place, "I")
    return [place + 4 * number + offset for number, offset in enumerate(offsets, 1)]


def _layout(data: memoryview, index: int) -> tuple[int, ...]:
    """Returns the positions of the fields in tables with this index."""
    if index < 0:
        raise ValueError("a table's index lies before the data")
    count = min(max(4, int(_size(data, index)[0])) - 4 >> 1, _MOST_FIELDS)
    places: tuple[int, ...] = _index[count](data, index + 4)
    return places + (0,) * (_MOST_FIELDS - count)


def text(raw: bytes) -> str:
    """A text; what is no UTF-8 in it is replaced."""
    return raw.decode("utf-8", "replace")
