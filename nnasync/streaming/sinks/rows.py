"""Results as rows of a file: JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nnasync._core.arguments import check_function, or_none, path_of
from nnasync.errors import InvalidArgument
from nnasync.streaming.item import Item
from nnasync.streaming.sinks.file_sink import FileSink, Writer
from nnasync.streaming.sinks.parquet import ParquetTable, import_pyarrow

Row = Mapping[str, Any]


def results_file(
    path: str | os.PathLike[str], *, row: Callable[[Item], Row] | None = None
) -> FileSink:
    """A sink that writes a row for each item, in the format that the suffix names.

    `row` gives the columns of an item; without it they are its index, captured_ns, media_ns, epoch
    and data. Arrays become lists.

    * .jsonl: an object a line; rows may have any columns.
    * .csv: the columns of the first row are the header, and those of all others. What is no number
      and no text is written as JSON.
    * .parquet: as .csv, with types, in groups of 4,096 rows (extra `parquet`). The types are those
      of the first group; a column that has only None or empty lists in it is text, and what is no
      text is then JSON. It can be read once it is closed.

    Raises InvalidArgument for another suffix, or where pyarrow is missing.
    """
    or_none(check_function, "row", row, "a function of an Item that returns a dict")
    suffix = Path(path_of("path", path)).suffix.lower()
    begin = _FORMATS.get(suffix)
    if begin is None:
        raise InvalidArgument(f"{os.fspath(path)} is none of {', '.join(_FORMATS)}")
    if suffix == ".parquet":
        import_pyarrow()
    return FileSink(path, lambda name, _: begin(name, row or _plain_row))


def _plain_row(item: Item) -> Row:
    return {
        "index": item.index,
        "captured_ns": item.captured_ns,
        "media_ns": item.media_ns,
        "epoch": item.epoch,
        "data": item.data,
    }


def _builtin(value: Any) -> Any:
    """Returns a result as Python's own types, for encoders that know no others."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(type(value), "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    raise InvalidArgument(f"a {type(value).__name__} cannot be written: give `row`")


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_builtin)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"the row cannot be written: {error}") from error


class _JsonLines:
    def __init__(self, path: str, row: Callable[[Item], Row]) -> None:
        self._row = row
        self._file = open(path, "wb")  # noqa: SIM115  # `close` closes it.

    def write(self, item: Item) -> None:
        self._file.write(_encoded(self._row(item)) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Table:
    """Turns items into rows that all have the columns of the first row."""

    def __init__(self, row: Callable[[Item], Row]) -> None:
        self._row = row
        self.columns: tuple[str, ...] = ()

    def values(self, item: Item) -> list[Any]:
        """The values of a row in the order of the columns."""
        row = self._row(item)
        if not row or not all(isinstance(name, str) for name in row):
            raise InvalidArgument(
                f"item {item.index} has the columns {list(row)}: at least one, with text for its "
                "name, is wanted"
            )
        self.columns = self.columns or tuple(row)
        if set(row) != set(self.columns):
            raise InvalidArgument(
                f"item {item.index} has the columns {', '.join(row)}, "
                f"the first one had {', '.join(self.columns)}"
            )
        return [row[name] for name in self.columns]


class _Csv:
    def __init__(self, path: str, row: Callable[[Item], Row]) -> None:
        self._table = _Table(row)
        self._file = open(path, "w", newline="", encoding="utf-8")  # noqa: SIM115  # `close` closes it.
        self._rows = csv.writer(self._file)
        self._has_header = False

    def write(self, item: Item) -> None:
        values = [_cell(value) for value in self._table.values(item)]
        if not self._has_header:
            self._rows.writerow(self._table.columns)
            self._has_header = True
        self._rows.writerow(values)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _cell(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return _utf8(value)
    return _encoded(value).decode()


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"a text cannot be written: {error}") from error
    return text


class _Parquet:
    def __init__(self, path: str, row: Callable[[Item], Row]) -> None:
        self._rows = _Table(row)
        self._file = ParquetTable(path)

    def write(self, item: Item) -> None:
        values = [_plain(value) for value in self._rows.values(item)]
        self._file.add(dict(zip(self._rows.columns, values, strict=True)))

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    return msgspec.json.decode(_encoded(value))


_FORMATS: dict[str, Callable[[str, Callable[[Item], Row]], Writer]] = {
    ".jsonl": _JsonLines,
    ".csv": _Csv,
    ".parquet": _Parquet,
}
