"""The metadata of a TFLite file: how inputs are normalized, and which packed files are labels.

It is a flatbuffer of its own inside of the file, of the schema that TensorFlow Lite Support
publishes as metadata_schema.fbs. Few of its fields matter here, so they are read by their numbers.
Offsets in it may be anything: each is checked against the end before it is followed, counts are
bounded, and what is broken counts as not stated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from nnasync._core.formats.metadata import Metadata, PortMetadata

ENTRY = "TFLITE_METADATA"
"""The name of the file's entry that has it."""

_IDENTIFIER = b"M001"
_MOST_TENSORS, _MOST_UNITS, _MOST_CHANNELS, _MOST_TEXT_BYTES = 256, 16, 4096, 1 << 16
_NORMALIZATION = 1
_LABELS = (2, 3)
"""Files of labels: for the places along an axis, and for values."""

# The numbers of fields in their tables.
_SUBGRAPHS, _INPUTS, _OUTPUTS = 3, 2, 3
_NAME, _TEXT, _UNITS, _STATS, _FILES = 0, 1, 4, 5, 6
_UNIT_KIND, _UNIT = 0, 1
_MEAN, _STD, _MAX, _MIN = 0, 1, 0, 1
_FILE_NAME, _FILE_KIND = 0, 2

_BROKEN = (struct.error, LookupError, ValueError, OverflowError)


def read_metadata(data: memoryview) -> Metadata:
    """The metadata in these bytes; nothing is said where they are broken or something else."""
    try:
        if bytes(data[4:8]) != _IDENTIFIER:
            return Metadata()
        (root,) = struct.unpack_from("<I", data, 0)
        subgraphs = _Table(data, root).tables(_SUBGRAPHS, 1)
        if not subgraphs:
            return Metadata()
        inputs, outputs = (
            tuple(map(_tensor, subgraphs[0].tables(field, _MOST_TENSORS)))
            for field in (_INPUTS, _OUTPUTS)
        )
    except _BROKEN:
        return Metadata()
    return Metadata(inputs, outputs)


class _Table:
    """A table: fields by number, each in a place that the table's own index gives."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data = data
        self._place = place
        (back,) = struct.unpack_from("<i", data, place)
        self._fields = place - back
        if self._fields < 0:
            raise ValueError("a table's index lies before the data")
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    def _field(self, number: int) -> int:
        """Where a field is, 0 where it is not stated."""
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + entry)
        return self._place + int(offset) if offset else 0

    def _target(self, place: int) -> int:
        (offset,) = struct.unpack_from("<I", self._data, place)
        return place + int(offset)

    def table(self, number: int) -> _Table | None:
        """A field that is a table."""
        place = self._field(number)
        return _Table(self._data, self._target(place)) if place else None

    def tables(self, number: int, most: int) -> list[_Table]:
        """A field that is a list of tables, at most so many of them."""
        start, count = self._vector(number)
        return [
            _Table(self._data, self._target(start + 4 * index)) for index in range(min(count, most))
        ]

    def floats(self, number: int) -> tuple[float, ...]:
        """A field that is a list of numbers."""
        start, count = self._vector(number)
        if count > _MOST_CHANNELS:
            raise ValueError(f"has {count} numbers")
        return struct.unpack_from(f"<{count}f", self._data, start) if count else ()

    def text(self, number: int) -> str:
        """A field that is a text."""
        start, count = self._vector(number)
        if count > _MOST_TEXT_BYTES:
            raise ValueError(f"has a text of {count} bytes")
        return bytes(self._data[start : start + count]).decode("utf-8", "replace")

    def byte(self, number: int) -> int:
        """A field that is a small number, 0 where it is not stated."""
        place = self._field(number)
        return self._data[place] if place else 0

    def _vector(self, number: int) -> tuple[int, int]:
        """Where the elements of a list begin, and how many there are."""
        place = self._field(number)
        if not place:
            return 0, 0
        start = self._target(place)
        (count,) = struct.unpack_from("<I", self._data, start)
        return start + 4, int(count)


def _tensor(table: _Table) -> PortMetadata:
    mean, std = _normalization(table.tables(_UNITS, _MOST_UNITS))
    stats = table.table(_STATS)
    files = table.tables(_FILES, _MOST_UNITS)
    return PortMetadata(
        name=table.text(_NAME),
        description=table.text(_TEXT),
        mean=mean,
        std=std,
        least=_finite(stats.floats(_MIN)) if stats else (),
        most=_finite(stats.floats(_MAX)) if stats else (),
        label_files=tuple(
            each.text(_FILE_NAME) for each in files if each.byte(_FILE_KIND) in _LABELS
        ),
    )


def _normalization(units: Sequence[_Table]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the step that normalizes, if both are there and make sense."""
    for unit in units:
        options = unit.table(_UNIT) if unit.byte(_UNIT_KIND) == _NORMALIZATION else None
        if options is not None:
            mean, std = _finite(options.floats(_MEAN)), _finite(options.floats(_STD))
            if mean and std and all(value > 0 for value in std):
                return mean, std
    return (), ()


def _finite(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Numbers, or none where one of them is none."""
    return numbers if all(math.isfinite(number) for number in numbers) else ()
