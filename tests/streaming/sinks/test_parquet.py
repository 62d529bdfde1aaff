"""Parquet: each row is refused when it comes, or it is in the file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.streaming.sinks.parquet import ParquetTable

parquet: Any = pytest.importorskip("pyarrow.parquet", reason="the extra parquet is not installed")

GROUP = 4096


def kept(path: Path, values: list[Any]) -> list[Any]:
    """Those of the values that the file took."""
    table = ParquetTable(str(path))
    found = []
    for value in values:
        try:
            table.add({"x": value})
        except InvalidArgument:
            continue
        found.append(value)
    table.close()
    return found


def read(path: Path) -> list[Any]:
    # Threads of pyarrow may keep a file that is given by name open for a while.
    column: list[Any] = parquet.read_table(io.BytesIO(path.read_bytes()))["x"].to_pylist()
    return column


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None, "yes", 3], [None, "yes"]),
        ([1, 2.5, 2**70, 3], [1, 2.5, 3]),
        ([2**60 + 1, 0.5], [2**60 + 1]),
        ([[], [1], ["a"]], [[], [1]]),
        (["a", "\ud800"], ["a"]),
        ([1, True, 2], [1, 2]),
    ],
)
def test_types_follow_from_the_rows_and_others_are_refused(
    tmp_path: Path, values: list[Any], expected: list[Any]
) -> None:
    assert kept(tmp_path / "x", values) == expected
    assert read(tmp_path / "x") == expected


def test_a_field_more_is_kept_in_the_first_group_and_refused_later(tmp_path: Path) -> None:
    one, two, three = {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}
    assert kept(tmp_path / "x", [one, two, *[two] * GROUP, three, two]) == [
        one,
        *[two] * (GROUP + 2),
    ]
    rows = read(tmp_path / "x")
    assert rows[0] == {"a": 1, "b": None}
    assert rows[1:] == [two] * (GROUP + 2)


@pytest.mark.parametrize(
    ("empty", "text"), [(None, None), ([], "[]"), ({}, "{}"), ([{"a": None}], '[{"a":null}]')]
)
def test_a_column_that_tells_no_type_is_text(tmp_path: Path, empty: Any, text: Any) -> None:
    later = ["yes", 3, [1, 2], None]
    assert len(kept(tmp_path / "x", [*[empty] * GROUP, *later])) == GROUP + 4
    assert read(tmp_path / "x")[GROUP - 1 :] == [text, "yes", "3", "[1,2]", None]


def test_a_later_group_has_the_types_of_the_first(tmp_path: Path) -> None:
    values = [*[1] * GROUP, "text", 2.5, 2**64, 7, None]
    assert kept(tmp_path / "x", values) == [*[1] * GROUP, 7, None]
    assert read(tmp_path / "x") == [*[1] * GROUP, 7, None]


simple = st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans()


@given(values=st.lists(st.recursive(simple, lambda each: st.lists(each, max_size=3)), max_size=8))
def test_what_is_taken_is_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    taken = kept(path, values)
    if taken:
        assert len(read(path)) == len(taken)


def test_a_place_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ParquetTable(str(tmp_path / "missing" / "x"))
