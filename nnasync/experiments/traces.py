"""Traces: requests of a file, with the time of each, its stream, and what it costs.

Files are read in blocks, so they may be longer than memory. A file is checked as it is read: what
is wrong is told with the file, its row and column, when the run comes to it.
"""

from __future__ import annotations

import csv
import datetime
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnasync.errors import ExperimentError
from nnasync.experiments.checks import whole_ns

_ROWS = 4096
_NAMED = 20
"""So many streams of a file are named, where the one that is looked for is none of them."""

_YEAR = re.compile(r"-?\d")
_ZONE = re.compile(r"[+-]\d\d:?\d\d$")
_MOST_S = 9_000_000_000
"""Seconds from 1970 that are a date which nanoseconds can count to: years 1685 to 2255."""


class TraceBlock(NamedTuple):
    """Some requests of a trace: planned times in nanoseconds, and costs if they were asked for."""

    times_ns: NDArray[np.int64]
    costs_ns: NDArray[np.int64] | None


class TraceColumns(NamedTuple):
    """The names of the columns of a file; an empty name is not looked for."""

    time: str = "time"
    stream: str | None = None
    cost: str | None = None


def read_trace(
    path: str,
    columns: TraceColumns,
    *,
    stream: str = "",
    time_unit_ns: float = 1e9,
    cost_unit_ns: float = 1e6,
    speed: float = 1.0,
) -> Iterator[TraceBlock]:
    """Yields the requests of a CSV or Parquet file in blocks; times count from its first row.

    Only rows with `stream` in the column for it count, where there is one. Times are numbers of
    `time_unit_ns` each, or ISO dates; they are divided by `speed`. Raises
    ExperimentError for a file that cannot be read, for a column that is missing, for what is no
    number, for a negative cost and for times that go back; and at the end for a file without a
    row that counts.
    """
    names = [name for name in columns if name is not None]
    origin = last = None
    first_row, has_any = 1, False
    others: set[str] = set()
    for values in _blocks(Path(path), names):
        found = dict(zip(names, values, strict=True))
        where = _Where(path, first_row)
        times = _times(found[columns.time], where, columns.time, time_unit_ns)
        origin = times[0] if origin is None else origin
        _check_order(times, times[0] if last is None else last, where, columns.time)
        last = times[-1]
        first_row += len(times)
        chosen = np.ones(len(times), bool)
        if columns.stream is not None:
            whose = list(map(str, found[columns.stream]))
            chosen = np.array([each == stream for each in whose], bool)
            others.update(whose if len(others) < _NAMED else ())
        costs_ns = None
        if columns.cost is not None:
            costs_ns = _costs(found[columns.cost], where, columns.cost, cost_unit_ns)[chosen]
        if chosen.any():
            has_any = True
            yield TraceBlock(whole_ns((times - origin) / speed)[chosen], costs_ns)
    if not has_any:
        raise ExperimentError(f"{path} has no {_missing(stream, others)}")


def _missing(stream: str, others: set[str]) -> str:
    """Returns what a file lacks, for a message: rows of a stream, or rows at all."""
    if not others:
        return "rows"
    named = ", ".join(map(repr, sorted(others)[:_NAMED]))
    more = " and more" if len(others) > _NAMED else ""
    return f"rows of the stream {stream!r}; there is {named}{more}"


class _Where(NamedTuple):
    """A file, and the row of it with which a block begins; the first one below the names is 1."""

    path: str
    first_row: int

    def error(self, row: int, column: str, text: str) -> ExperimentError:
        return ExperimentError(f"{self.path}, row {self.first_row + row}, {column}: {text}")


def _blocks(path: Path, names: Sequence[str]) -> Iterator[list[Sequence[Any]]]:
    try:
        if path.suffix == ".parquet":
            yield from _of_parquet(path, names)
        else:
            yield from _of_csv(path, names)
    except ExperimentError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from error


def _of_csv(path: Path, names: Sequence[str]) -> Iterator[list[Sequence[Any]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        places = [_place(path, header, name) for name in names]
        first = 1
        while rows := list(itertools.islice(reader, _ROWS)):
            for number, row in enumerate(rows):
                if len(row) != len(header):
                    raise ExperimentError(
                        f"{path}, row {first + number}: {len(row)} values, not {len(header)} as in "
                        "the first line"
                    )
            yield [[row[place] for row in rows] for place in places]
            first += len(rows)


def _of_parquet(path: Path, names: Sequence[str]) -> Iterator[list[Sequence[Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExperimentError(
            f"{path} needs pyarrow, which is not installed: pip install 'nnasync[parquet]'"
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            header = file.schema_arrow.names
            for name in names:
                _place(path, header, name)
            for batch in file.iter_batches(_ROWS, columns=list(names)):
                if len(batch):
                    yield [batch.column(name).to_pylist() for name in names]
    except pyarrow.ArrowException as error:
        raise ExperimentError(f"{path} is no Parquet file that can be read: {error}") from error


def _place(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        there = ", ".join(header) or "none"
        raise ExperimentError(f"{path} has no column {name}; it has {there}")
    return header.index(name)


def _times(
    values: Sequence[Any], where: _Where, column: str, unit_ns: float
) -> NDArray[np.float64]:
    try:
        return np.array(values, np.float64) * unit_ns
    except (TypeError, ValueError):
        return _dates(values, where, column)


def _dates(values: Sequence[Any], where: _Where, column: str) -> NDArray[np.float64]:
    """Returns nanoseconds since 1970, exact to some hundreds of them."""
    found = np.zeros(len(values))
    # Where the first is a number the column is one of numbers, of which another one is none.
    kind = "number" if _is_number(values[0]) else "date"
    for row, value in enumerate(values):
        try:
            found[row] = _number(value) if kind == "number" else _date_ns(str(value))
        except ValueError:
            raise where.error(row, column, f"{value!r} is no {kind}") from None
    return found


def _is_number(value: Any) -> bool:
    try:
        _number(value)
    except ValueError:
        return False
    return True


def _number(value: Any) -> float:
    try:
        return float(value)
    except TypeError as error:
        raise ValueError from error


def _date_ns(text: str) -> float:
    """Returns nanoseconds since 1970 of a date and time; raises ValueError.

    Without a zone it is UTC.
    """
    if text[10:].endswith("Z") or _ZONE.search(text[10:]):
        return datetime.datetime.fromisoformat(text).timestamp() * 1e9
    if not _YEAR.match(text):  # Numpy takes words as well, and nothing at all.
        raise ValueError(text)
    date = np.datetime64(text)
    seconds = date.astype("datetime64[s]").astype(np.int64)
    if abs(int(seconds)) > _MOST_S:
        raise ValueError(text)
    return float(date.astype("datetime64[ns]").astype(np.int64))


def _costs(values: Sequence[Any], where: _Where, column: str, unit_ns: float) -> NDArray[np.int64]:
    costs_ns = np.zeros(len(values))
    for row, value in enumerate(values):
        try:
            costs_ns[row] = float(value) * unit_ns
        except (TypeError, ValueError):
            raise where.error(row, column, f"{value!r} is not a number") from None
        if not 0 <= costs_ns[row] < 2**62:
            raise where.error(
                row, column, f"{value} is not a cost: it must be 0 or more, and finite"
            )
    return np.rint(costs_ns).astype(np.int64)


def _check_order(times: NDArray[np.float64], last: np.float64, where: _Where, column: str) -> None:
    before = np.concatenate(([last], times[:-1]))
    bad = np.flatnonzero(~(times >= before) | ~np.isfinite(times))
    if len(bad):
        row = int(bad[0])
        if not np.isfinite(times[row]):
            raise where.error(row, column, f"{times[row]} is no time")
        text = (
            f"{times[row]:.0f} ns is before the row above, at {before[row]:.0f} ns; sort the file"
        )
        raise where.error(row, column, text)
