"""Two results beside each other: what they share, and when a difference is more than chance."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nnasync.experiments.comparison import compare
from nnasync.experiments.run_of_point import Run
from tests.experiments.rigs import served
from tests.experiments.test_results import results


def test_results_do_not_differ_from_themselves() -> None:
    same = compare(results(), results())
    assert (same.only_before, same.only_after) == (0, 0)
    assert len(same.changes) == 8 * 4  # figures, measures of each
    assert not any(change.is_clear for change in same.changes)
    assert all(change.ratio in (None, pytest.approx(1.0)) for change in same.changes)


def test_what_is_clear_is_more_than_repeats_differ_by() -> None:
    values: dict[str, float | str] = {"load": 0.5}
    runs = [[Run(0, values, n, 0.1, served(seed=n, slower=by)) for n in range(6)] for by in (1, 5)]
    before, after = (replace(results(), runs=tuple(each)) for each in runs)
    changes = {(c.stream, c.measure): c for c in compare(before, after).changes}
    photos = changes["photos", "mean_ms"]
    assert photos.is_clear
    assert photos.ratio is not None
    assert photos.ratio > 5
    assert not changes["photos", "goodput_hz"].is_clear


def test_points_of_one_alone_are_counted() -> None:
    fewer = replace(results(), runs=results().runs[2:])
    assert compare(results(), fewer).only_before == 2
    assert compare(fewer, results()).only_after == 2
    assert len(compare(results(), fewer).changes) == 6 * 4


def test_simulated_is_not_compared_with_real() -> None:
    found = compare(results(), results(("real",)))
    assert (found.changes, found.only_before, found.only_after) == ((), 8, 8)


def test_changes_are_rows_a_dataframe_and_a_table() -> None:
    found = compare(results(), results())
    rows = found.rows()
    assert rows[0]["measure"] == "attainment"
    assert rows[0]["before"] == rows[0]["after"]
    assert repr(found) == "<Comparison: 0 of 32 measures differ clearly>"
    html = found._repr_html_()
    assert html.count("<tr>") == 33
    assert compare(results(), results(("real",)))._repr_html_()
    pytest.importorskip("pandas", reason="pandas is not installed")
    assert list(found.to_pandas().columns) == list(rows[0])
