"""Results of suites as files, and as `nnasync suite report` tells them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nnasync.cli import main
from nnasync.errors import InvalidArgument
from nnasync.suites import (
    Bars,
    Better,
    Finding,
    Standing,
    SuiteFigure,
    SuiteResult,
    SuiteRow,
    read_suite,
    write_suite,
)


def row(standing: Standing = Standing.SUCCESS, subject: str = "digits") -> SuiteRow:
    return SuiteRow(
        subject,
        "null",
        standing,
        1.5,
        "off by 3 %",
        (SuiteFigure("top_1", 0.9, low=0.8, high=0.95, better=Better.MORE, is_worse=False),),
        (Bars("latency", "ms", 0.5, 0.1, (1, 0, 3)),),
        (Finding("an output is wrong", "nnasync run digits.nnm", "digits.nnm"),),
    )


def result(*rows: SuiteRow, is_partial: bool = False) -> SuiteResult:
    return SuiteResult(
        "benchmark",
        "nnasync suite benchmark",
        "2026-01-01T00:00:00+00:00",
        2.0,
        rows,
        {"processor": "x"},
        {"nnasync": "1"},
        is_partial,
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_suite(path, result(row(), row(Standing.HANG)))
    assert read_suite(path) == result(row(), row(Standing.HANG))
    assert list(tmp_path.iterdir()) == [path]


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
