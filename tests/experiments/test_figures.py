"""Figures of runs, and how they are added up."""

from __future__ import annotations

import pytest

from nnasync.experiments.figures import COUNTS, figures_of, measures_of
from nnasync.experiments.run_of_point import Run
from tests.experiments.rigs import runs, served


def test_each_point_kind_and_stream_has_figures() -> None:
    found = figures_of(runs(("simulated", "real")))
    assert len(found) == 2 * 4 * 2
    assert {each.repeats for each in found} == {2}
    assert found[0].values == {"load": 0.5, "policy": "slow"}
    assert (found[0].stream, found[0].deadline_ms) == ("wake word", 5.0)
    assert found[1].deadline_ms is None


def test_means_and_counts_are_those_of_the_repeats() -> None:
    both = runs()[:2]
    word = figures_of(both)[0]
    measured = [measures_of(run, run.result.streams[0]) for run in both]
    for name, found in word.measures.items():
        assert found.mean == pytest.approx(sum(each[name] for each in measured) / 2)
        assert found.half is not None
    for name in COUNTS:
        streams = [run.result.streams[0] for run in both]
        assert word.counts[name] == sum(getattr(each, name) for each in streams)
    assert word.counts["submitted"] == sum(word.counts[name] for name in COUNTS[1:])


def test_what_never_completed_has_no_latency() -> None:
    result = served(duration_ns=1)
    (word, _) = figures_of([Run(0, {}, 0, 0.0, result)])
    assert word.counts["submitted"] == 0
    assert "p99_ms" not in word.measures
    assert word.mean("attainment") is None
