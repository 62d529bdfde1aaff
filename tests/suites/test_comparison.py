"""What two results differ in: only what is beyond intervals is better or worse."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.cli import main
from nnasync.suites import (
    Better,
    Standing,
    SuiteFigure,
    SuiteRow,
    Trend,
    compare_suites,
    write_suite,
)
from nnasync.suites.comparison import trend_of
from tests.suites.samples import result, row


def figure(value: float, half: float | None = None, better: Better = Better.LESS) -> SuiteFigure:
    low, high = (None, None) if half is None else (value - half, value + half)
    return SuiteFigure("latency", value, "ms", low, high, better)


@pytest.mark.parametrize(
    ("before", "after", "trend"),
    [
        (figure(10, 1), figure(13, 1), Trend.WORSE),
        (figure(10, 1), figure(7, 1), Trend.BETTER),
        (figure(10, 1, Better.MORE), figure(13, 1, Better.MORE), Trend.BETTER),
        (figure(10, 1, Better.MORE), figure(7, 1, Better.MORE), Trend.WORSE),
        (figure(10, 1, Better.NEITHER), figure(13, 1, Better.NEITHER), Trend.CHANGED),
        (figure(10, 1), figure(11.5, 1), Trend.SAME),
        (figure(10, 1), figure(12, 1), Trend.SAME),
        (figure(10), figure(13), Trend.UNSURE),
        (figure(10, 1), figure(13), Trend.UNSURE),
        (figure(10), figure(10), Trend.SAME),
        (figure(math.nan), figure(math.nan), Trend.SAME),
        (figure(10, 1), figure(math.nan, 1), Trend.UNSURE),
        (figure(10, -1), figure(13, 1), Trend.UNSURE),
    ],
)
def test_trends(before: SuiteFigure, after: SuiteFigure, trend: Trend) -> None:
    assert trend_of(before, after) is trend


def slow(by: float) -> SuiteRow:
    return replace(row(), figures=(figure(10 * by, 1), SuiteFigure("other", 1.0)))


def test_rows_that_are_new_gone_or_ended_otherwise() -> None:
    old = result(slow(1), row(subject="gone"), row(subject="words"))
    new = result(slow(2), row(Standing.HANG, "words"), row(subject="new"), row(subject="words"))
    found = compare_suites(old, new)
    assert [each.subject for each in found.gone] == ["gone"]
    assert [each.subject for each in found.new] == ["new", "words"]
    (ended,) = found.standings
    assert [each.standing for each in ended] == [Standing.SUCCESS, Standing.HANG]
    (worse,) = found.of(Trend.WORSE)
    assert (worse.subject, worse.device, worse.ratio) == ("digits", "null", 2.0)
    assert found.summary == (
        "Since 2026-01-01T00:00:00+00:00 1 of 3 figures got worse and 0 better beyond their "
        "intervals; 0 differ that have none. 1 rows ended otherwise, 2 are new and 1 are gone."
    )


def test_a_ratio_that_says_nothing() -> None:
    rows = [replace(row(), figures=(figure(value),)) for value in (0.0, 1.0)]
    (change,) = compare_suites(result(rows[0]), result(rows[1])).changes
    assert change.ratio is None


def test_figures_in_another_unit_are_others() -> None:
    seconds = replace(slow(1), figures=(replace(figure(0.01), unit="s"),))
    assert compare_suites(result(slow(1)), result(seconds)).changes == ()


def test_circumstances_that_differ_and_load_is_none_of_them() -> None:
    old = replace(result(), machine={"processor": "x", "load": "1"}, versions={"numpy": "2.1"})
    new = replace(result(), machine={"processor": "y", "load": "2"}, versions={"nnasync": "1"})
    found = compare_suites(old, new)
    assert found.machine == {"processor": ("x", "y")}
    assert found.versions == {"numpy": ("2.1", ""), "nnasync": ("", "1")}


def test_report_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the terminal and on the page."""
    new, old, page = (tmp_path / name for name in ("new.json", "old.json", "new.html"))
    write_suite(old, replace(result(slow(1), row(subject="words")), machine={"processor": "y"}))
    write_suite(new, result(slow(2), row(Standing.CRASH, "words")))
    words = ["suite", "report", str(new), "--compare", str(old), "--html", str(page)]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "1 of 3 figures got worse" in out
    assert "worse: digits on null: latency 10 -> 20 ms" in out
    assert "words on null: success -> crash" in out
    assert "other machine than before: processor: y -> x" in out
    html = page.read_text("utf-8")
    assert "1 of 3 figures got worse" in html
    assert "+100.0" in html
    assert "Other machine than before" in html
