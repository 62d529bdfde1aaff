"""Charts of a report show what the runs had."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from nnasync.experiments.fidelity import fidelity_of
from nnasync.experiments.report.axes import axes_of
from nnasync.experiments.report.sections import (
    along_sweep,
    beside,
    distributions,
    over_sweep,
    queues,
    series_legend,
    view_of,
)
from nnasync.experiments.report.summary import summary
from nnasync.experiments.report.timelines import timelines_of
from nnasync.experiments.run_of_point import Run
from tests.experiments.rigs import runs

BOTH = runs(("simulated", "real"))
VIEW = view_of(BOTH)


def parsed(html: str) -> ElementTree.Element:
    """Well-formed markup, which these pieces are."""
    return ElementTree.fromstring(f"<div>{html}</div>")


def count(html: str, tag: str, name: str) -> int:
    elements = parsed(html).iter(tag)
    return sum(name in (each.get("class") or "").split() for each in elements)


def test_numbers_go_along_and_words_tell_series_apart() -> None:
    axes = axes_of(BOTH)
    assert (axes.x, axes.x_values, axes.series) == ("load", (0.5, 1.0), ("slow", "quick"))
    axes = axes_of(BOTH, "policy")
    assert (axes.x, axes.x_values, axes.series) == (
        "policy",
        ("slow", "quick"),
        ("load 0.5", "load 1"),
    )


def test_nothing_swept_has_one_series() -> None:
    axes = axes_of([replace(run, values={}) for run in BOTH])
    assert (axes.x, axes.x_values, axes.series) == ("", (), ("",))


def test_lines_are_simulated_and_points_real() -> None:
    (attainment,) = over_sweep(VIEW, "attainment", "met", scale="percent")
    assert count(attainment, "path", "line") == 2
    assert count(attainment, "path", "band") == 2
    assert count(attainment, "circle", "dot") == 4
    assert count(attainment, "circle", "open") == 4
    assert count(attainment, "path", "whisker") == 4


def test_deadlines_met_are_told_of_streams_that_have_deadlines() -> None:
    titles = re.findall("<figcaption>(.*?)</figcaption>", along_sweep(VIEW))
    assert titles == [
        "wake word: deadlines met, %",
        "wake word: answers in time a second",
        "photos: answers in time a second",
        "wake word: p99 latency, ms",
        "photos: p99 latency, ms",
    ]


def test_distributions_have_a_curve_a_series_and_kind_and_named_quantiles() -> None:
    charts = distributions(VIEW, 1.0)
    assert len(charts) == 2
    assert count(charts[0], "path", "line") == 4
    assert count(charts[0], "path", "dashed") == 2
    assert count(charts[0], "path", "rule") == 1  # the deadline
    told = [title.text or "" for title in parsed(charts[0]).iter("title")]
    assert sum(title.startswith("p50 of slow, simulated") for title in told) == 1
    # 200 requests do not tell what one in a thousand exceeds.
    assert not any(title.startswith("p99.9") for title in told)


def test_points_of_a_chart_say_what_was_measured() -> None:
    (attainment,) = over_sweep(VIEW, "attainment", "met", scale="percent")
    word = VIEW.figures[0].measures["attainment"]
    assert word.half is not None
    told = f"slow: {100 * word.mean:.5g} ± {100 * word.half:.3g} at 0.5 (simulated)"
    assert told in [title.text for title in parsed(attainment).iter("title")]


def test_queues_simulated_and_real_apart() -> None:
    charts = queues(VIEW, 0.5)
    assert [count(chart, "path", "line") for chart in charts] == [2, 2]


def test_simulated_beside_real_has_each_pair_and_the_limits() -> None:
    errors = fidelity_of(BOTH)
    chart = beside(VIEW, errors, "mean", "mean")
    assert chart is not None
    assert count(chart, "circle", "open") == 8
    assert count(chart, "path", "rule") == 2
    assert "simulated -" in chart
    assert beside(view_of(runs()), (), "mean", "mean") is None


def test_words_along_the_axis() -> None:
    (chart,) = over_sweep(view_of(BOTH, "policy"), "attainment", "met", scale="percent")
    assert count(chart, "circle", "dot") == 4
    assert count(chart, "path", "line") == 0


def test_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    renamed = [_renamed(run, evil) for run in BOTH]
    html = summary(evil, renamed) + "".join(distributions(view_of(renamed), 1.0))
    assert "<script" not in html
    assert "&lt;script" in html
    assert series_legend(view_of(renamed)).count("&lt;script") == 1


def _renamed(run: Run, name: str) -> Run:
    streams = tuple(replace(stream, name=name) for stream in run.result.streams[:1])
    values: dict[str, float | str] = {**run.values}
    values["policy"] = name if values["policy"] == "slow" else "quick"
    return replace(run, values=values, result=replace(run.result, streams=streams))


def test_timelines_begin_at_the_first_arrival_that_was_kept() -> None:
    found = timelines_of(BOTH)
    assert len(found) == 8  # points, simulated and real
    for each in found:
        assert min(planned for _, _, planned, _, _ in each.lifetimes) == 0
        assert 0 < each.window <= each.until
        assert {core for core, *_ in each.core_runs} <= {0, 1}
        requests = {(stream, request) for stream, request, *_ in each.lifetimes}
        assert {(stream, request) for _, stream, request, _, _ in each.core_runs} <= requests
    assert found[0].label == "load 0.5, policy slow, simulated"


@pytest.mark.parametrize("kinds", [("simulated",), ("real",)])
def test_one_kind_alone(kinds: tuple[str, ...]) -> None:
    view = view_of(runs(kinds))
    parsed(along_sweep(view))
    assert "simulated" not in series_legend(view)
