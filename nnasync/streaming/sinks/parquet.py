"""A Parquet file of rows that come one by one, each of which is refused at once or kept.

Rows are written in groups, and the types of the columns are those of the whole file. They follow
from the rows of the first group: a column may begin with None and be numbers later, or begin with
whole numbers and have fractions later. A column that tells no type in the first group, since it has
only None or empty lists, becomes text, in which what is no text is JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nnasync.errors import InvalidArgument

_ROWS_A_GROUP = 4096


class ParquetTable:
    """Rows of values of JSON, and bytes, that become a file; methods block and raise OSError."""

    def __init__(self, path: str) -> None:
        """Raises InvalidArgument where pyarrow is missing, OSError for no such place."""
        self._arrow = import_pyarrow()
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115  # `close` closes it.
        self._columns: dict[str, list[Any]] = {}
        self._types: dict[str, Any] = {}
        self._count = 0
        self._texts: set[str] = set()
        self._writer: Any = None

    def add(self, row: dict[str, Any]) -> None:
        """Take a row, which has the columns of the first.

        Raises InvalidArgument for values that do not fit the types of the columns; the row is then
        left out.
        """
        if self._writer is not None:
            row = {k: _text(v) if k in self._texts else v for k, v in row.items()}
        types = {name: self._type_with(name, value) for name, value in row.items()}
        self._types.update(types)
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)
        self._count += 1
        if self._count == _ROWS_A_GROUP:
            self._write_group()

    def close(self) -> None:
        """Write what is left, and the index of the file."""
        try:
            if self._count:
                self._write_group()
            if self._writer is not None:
                self._writer.close()
        finally:
            self._file.close()

    def _type_with(self, name: str, value: Any) -> Any:
        """Returns the column's type extended to one more value.

        Raises InvalidArgument if none fits.
        """
        known = self._types.get(name)
        values = [value]
        try:
            if known is not None and self._fits(value, known):
                return known
            if self._writer is None:
                values = [*self._columns.get(name, ()), value]
                return self._arrow.array(values).type
        except (self._arrow.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise InvalidArgument(
                f"{self._path} cannot have this value in the column {name}: {error}"
            ) from error
        raise InvalidArgument(
            f"the column {name} of {self._path} is {known}, which the value does not fit"
        )

    def _fits(self, value: Any, known: Any) -> bool:
        """Returns whether a column of this type can hold a value unchanged, with all its fields."""
        if not _is_whole_in(value, known, self._arrow.types):
            return False
        try:
            self._arrow.array([value], known)
        except (self._arrow.ArrowException, OverflowError, ValueError, TypeError):
            return False
        return True

    def _begin(self) -> None:
        """Fix the types of the columns."""
        types = self._arrow.types
        self._texts = {name for name, known in self._types.items() if not _is_told(known, types)}
        for name in self._texts:
            self._columns[name] = [_text(value) for value in self._columns[name]]
            self._types[name] = self._arrow.string()
        schema = self._arrow.schema(self._types)
        self._writer = self._arrow.parquet.ParquetWriter(self._file, schema)

    def _write_group(self) -> None:
        if self._writer is None:
            self._begin()
        columns, self._columns, self._count = self._columns, {}, 0
        self._writer.write_table(self._arrow.table(columns, schema=self._writer.schema))


def _is_whole_in(value: Any, known: Any, types: Any) -> bool:
    """Returns whether the type would keep all of a value.

    This is checked because pyarrow drops fields and fractions silently.
    """
    if isinstance(value, dict) and types.is_struct(known):
        fields = {field.name: field.type for field in known}
        return all(
            key in fields and _is_whole_in(each, fields[key], types) for key, each in value.items()
        )
    if isinstance(value, Sequence) and types.is_list(known):
        return all(_is_whole_in(each, known.value_type, types) for each in value)
    return not (isinstance(value, float) and types.is_integer(known))


def _is_told(known: Any, types: Any) -> bool:
    """Returns whether all parts of a type are known."""
    if types.is_struct(known):
        return known.num_fields > 0 and all(_is_told(field.type, types) for field in known)
    if types.is_list(known):
        return _is_told(known.value_type, types)
    return not types.is_null(known)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def import_pyarrow() -> Any:
    """The module `pyarrow`; raises InvalidArgument where it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidArgument(
            "writing Parquet needs pyarrow, which is not installed: pip install 'nnasync[parquet]'"
        ) from error
    return pyarrow
