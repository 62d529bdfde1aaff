"""Results of suites as files, and as `nnasync suite report` tells them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from nnasync.cli import main
from nnasync.errors import InvalidArgument
from nnasync.suites import Standing, SuiteFigure, SuiteRow, read_suite, write_suite
from tests.suites.samples import result, row


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_suite(path, result(row(), row(Standing.HANG)))
    assert read_suite(path) == result(row(), row(Standing.HANG))
    assert list(tmp_path.iterdir()) == [path]


def test_what_json_has_no_form_for(tmp_path: Path) -> None:
    """Devices give figures that are no numbers, and files may have any name."""
    figures = tuple(SuiteFigure(str(value), value) for value in (math.nan, math.inf, -math.inf))
    path = tmp_path / "result.json"
    write_suite(path, result(SuiteRow("a\udcff.nnm", "null", Standing.FAILURE, 0.0, "", figures)))
    (read,) = read_suite(path).rows
    assert read.subject == r"a\udcff.nnm"
    assert math.isnan(read.figures[0].value)
    assert [figure.value for figure in read.figures[1:]] == [math.inf, -math.inf]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"suite": 1}', b"\xff"])
def test_files_that_are_no_results(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"result\.json is no result of a suite"):
        read_suite(path)


def test_results_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_suite(path, msgspec.structs.replace(result(), format=99))
    with pytest.raises(InvalidArgument, match="has format 99 .* this version reads 1"):
        read_suite(path)


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_suite(path, result())
    assert list(tmp_path.iterdir()) == [path]


def test_the_worst_row_counts() -> None:
    assert result().standing is Standing.SUCCESS
    assert result(row(Standing.HANG), row(), row(Standing.FAILURE)).standing is Standing.HANG


@pytest.mark.parametrize(
    ("standing", "code"), [(Standing.SUCCESS, 0), (Standing.SKIPPED, 0), (Standing.CRASH, 1)]
)
def test_report_tells_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], standing: Standing, code: int
) -> None:
    path = tmp_path / "result.json"
    write_suite(path, result(row(standing), is_partial=True))
    assert main(["suite", "report", str(path)]) == code
    out = capsys.readouterr().out
    assert "digits" in out
    assert standing.value in out
    assert "ended before its time" in out
