"""The page of a suite needs nothing else, tells what is there, and shows no markup of others."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nnasync.suites import (
    Bars,
    Better,
    Finding,
    Standing,
    SuiteFigure,
    SuiteResult,
    SuiteRow,
    read_suite,
    write_page,
    write_suite,
)
from nnasync.suites.page.figures import common_titles
from nnasync.suites.page.shown import shown
from nnasync.suites.page.whole import SECTIONS, page
from tests.pages.reader import Reader, read
from tests.suites.samples import result, row


def everything() -> SuiteResult:
    rows = [row(), row(device="litert-cpu"), row(Standing.CRASH, "words")]
    return result(*rows, row(Standing.SKIPPED, "words", "litert-cpu"))


def test_a_page_needs_no_other_file(tmp_path: Path) -> None:
    write_page(everything(), tmp_path / "a.html", everything())
    html = (tmp_path / "a.html").read_text("utf-8")
    reader = read(html)
    assert set(SECTIONS) <= set(reader.ids)
    assert all(address.startswith("#row-") for address in reader.addresses)
    assert {address[1:] for address in reader.addresses} <= set(reader.ids)
    assert not re.search(r"https?://|@import|url\(", html)
    assert len(reader.ids) == len(set(reader.ids))
    assert list(tmp_path.iterdir()) == [tmp_path / "a.html"]


def test_what_failed_is_told_with_the_command_that_repeats_it() -> None:
    words = read(page(everything())).words
    assert "an output is wrong" in words
    assert "nnasync run digits.nnm" in words
    assert "nnasync suite benchmark" in words
    assert {"processor", "x", "nnasync", "1"} <= set(words)


def matrix(reader: Reader) -> list[str]:
    """The words of the matrix, from its head on."""
    words = reader.words[reader.words.index("Verdicts") + 1 :]
    return words[: words.index("What failed, and how to repeat it")]


def test_verdicts_stand_by_device() -> None:
    found = matrix(read(page(everything())))
    assert found[:3] == ["subject", "null", "litert-cpu"]
    assert found[3:] == ["digits", "success", "success", "words", "crash", "skipped"]


def test_of_several_rows_at_one_place_the_worst_is_told() -> None:
    found = matrix(read(page(result(row(), row(Standing.HANG), row(Standing.FAILURE), row()))))
    assert found == ["subject", "null", "digits", "hang", "1 of 4"]


def test_the_baseline_and_what_is_worse_than_it() -> None:
    worse = SuiteFigure("top_1", 0.5, is_worse=True)
    rows = [replace(row(), is_baseline=True), replace(row(device="other"), figures=(worse,))]
    html = page(result(*rows))
    assert matrix(read(html))[3:] == [
        *("digits", "success", "baseline"),
        *("success", "worse than the baseline"),
    ]
    assert '<td class="far" data-v="0.5">0.5' in html


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_partial_run_says_so(is_partial: bool) -> None:
    assert ("rows are missing" in page(result(row(), is_partial=is_partial))) is is_partial


def test_a_run_without_rows_says_so() -> None:
    reader = read(page(result()))
    assert "There are no rows." in reader.words
    assert not set(SECTIONS) & set(reader.ids)


def test_the_table_of_all_rows_has_the_figures_that_most_rows_have() -> None:
    """Of many those of which it is known what is better."""
    plain = [SuiteFigure(f"count {n}", 1.0) for n in range(9)]
    judged = [SuiteFigure(f"time {n}", 1.0, "ms", better=Better.LESS) for n in range(3)]
    rare = SuiteFigure("rare", 1.0)
    rows = [replace(row(), figures=(*plain, *judged)), replace(row(), figures=(*plain, rare))]
    rows += [replace(row(), figures=(*plain, *judged)), replace(row(), figures=())]
    names = (*(f"count {n}" for n in range(4)), *(f"time {n}, ms" for n in range(3)))
    assert common_titles(rows) == names


def test_small_figures_are_spoken_of_where_there_are_some() -> None:
    plain, exact = SuiteFigure("count", 1.0), SuiteFigure("time", 1.0, "ms", low=0.9, high=1.1)
    told = [page(result(replace(row(), figures=(each,), bars=()))) for each in (plain, exact)]
    assert ["Small figures are intervals" in each for each in told] == [False, True]


def charts(*figures: SuiteFigure) -> list[str]:
    """The titles of charts of intervals, with a row for each figure."""
    rows = [replace(row(subject=str(n)), figures=(each,)) for n, each in enumerate(figures)]
    html = page(result(*(replace(each, bars=()) for each in rows)))
    return re.findall("<figcaption>(.*?)</figcaption>", html)


def test_charts_of_intervals_have_as_many_subjects_as_have_room() -> None:
    figures = [SuiteFigure("loss", n / 10, "%", n / 10 - 1, n / 10 + 1) for n in range(7)]
    assert charts(*figures) == ["loss, %"] * 2
    assert charts(*figures[:5]) == ["loss, %"]
    assert charts(SuiteFigure("loss", 0.1), SuiteFigure("loss", 0.2)) == []


def test_intervals_without_any_width_are_no_chart() -> None:
    assert charts(SuiteFigure("loss", 0.0, "%", 0.0, 0.0), SuiteFigure("loss", 0.0, "%")) == []


HOSTILE = '</script></style><img src=x onerror="alert(1)">\'"&<!--'


def test_names_are_no_markup() -> None:
    """Whatever is written in a result, the page has the elements it has without that."""
    figure = SuiteFigure(HOSTILE, 1.0, HOSTILE, 0.5, 1.5, is_worse=True)
    bars = (Bars(HOSTILE, HOSTILE, 1.0, 1.0, (1, 2)),)
    finding = Finding(HOSTILE, HOSTILE, HOSTILE)
    rows = [
        SuiteRow(HOSTILE, HOSTILE, standing, 1.0, HOSTILE, (figure,), bars, (finding,))
        for standing in Standing
    ]
    bad = {HOSTILE: HOSTILE}
    hostile = SuiteResult(HOSTILE, HOSTILE, HOSTILE, 1.0, tuple(rows), bad, bad)
    old = replace(hostile, rows=(*rows[1:], replace(rows[0], subject="a")), machine={}, versions={})
    reader, plain = read(page(hostile, old)), read(page(everything(), everything()))
    assert reader.tags <= plain.tags
    assert reader.handlers == []
    assert HOSTILE in reader.words


@pytest.mark.parametrize(
    "bars",
    [
        Bars("", "", 0.0, 0.0, (1,)),
        Bars("", "", 0.0, -1.0, (1, 1)),
        Bars("", "", math.nan, 1.0, (1,)),
        Bars("", "", 0.0, math.inf, (1, 1)),
        Bars("", "", 1e300, 1.0, (1, 1)),
        Bars("", "", 0.0, 1e308, (1,) * 9),
        Bars("", "", 0.0, 1.0, ()),
        Bars("", "", 0.0, 1.0, (0, -3)),
    ],
)
def test_what_is_no_histogram_is_left_out(bars: Bars) -> None:
    plain = SuiteRow("digits", "null", Standing.SUCCESS, 1.0)
    assert "<svg" not in page(result(replace(plain, bars=(bars,))))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0])
def test_figures_may_be_any_number(tmp_path: Path, value: float) -> None:
    """The page of a file is that of the result itself."""
    figure = SuiteFigure("golden error", value, "", value, value)
    found = result(replace(row(), figures=(figure, replace(figure, low=-1e308, high=1e308))))
    write_suite(tmp_path / "a.json", found)
    html = page(found, found)
    read(html)
    assert page(read_suite(tmp_path / "a.json"), found) == html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567.0, "1,234,567"),
        (-1234.56, "-1,235"),
        (0.123456, "0.1235"),
        (1.5e20, "1.5e+20"),
        (math.nan, "not a number"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_in_short(value: float, text: str) -> None:
    assert shown(value) == text


def test_histograms_of_a_subject_share_their_axis() -> None:
    """The slower device's bars begin where its time is on the axis of both."""
    bars = [Bars("latency", "ms", start, 1.0, (1, 1)) for start in (0.0, 8.0)]
    rows = [replace(row(device=str(n)), bars=(each,)) for n, each in enumerate(bars)]
    ways = re.findall(r'class="bars" d="M([\d.]+) ', page(result(*rows)))
    left, right = map(float, ways)
    assert left == 132.0
    assert right == pytest.approx(132 + 0.8 * 314)


def test_when_it_began_is_told_in_utc() -> None:
    began = replace(everything(), began_at="2026-01-02T03:04:05+02:00")
    assert "2026-01-02 01:04 UTC" in read(page(began)).words
    for none in ("yesterday", "0001-01-01T00:00:00+02:00"):
        assert none in read(page(replace(began, began_at=none))).words


def test_what_failed_is_told_once_and_so_is_the_command() -> None:
    command = "nnasync suite crash stress"
    findings = (Finding("too slow", command), Finding("too large", command), Finding("wrong", "x"))
    failed = replace(row(Standing.FAILURE), text="too slow; too large; wrong", findings=findings)
    words = read(page(result(failed))).words
    section = words[words.index("What failed, and how to repeat it") : words.index("All rows")]
    assert section.count("too slow") == section.count("too large") == 1
    assert section.count(command) == section.count("x") == 1
    assert "too slow; too large; wrong" not in section
