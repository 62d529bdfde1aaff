"""Figures and errors of runs, and how they are added up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nnasync.experiments.fidelity import Fidelity, fidelity_of
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


def test_errors_of_the_simulation() -> None:
    errors = fidelity_of(runs(("simulated", "real")))
    assert len(errors) == 8
    alone = errors[0]
    # Everything took 5 % longer for real, so it also queued more.
    assert alone.mean is not None
    assert alone.mean < -0.045
    assert not any(each.is_near for each in errors if "mean" in each.far())


def test_errors_are_those_of_repeats_that_were_both() -> None:
    both = runs(("simulated", "real"))
    real_once = [run for run in both if run.result.kind == "simulated" or run.repeat == 0]
    once = [run for run in both if run.repeat == 0]
    assert fidelity_of(real_once) == fidelity_of(once)
    assert fidelity_of(runs()) == ()


def test_limits() -> None:
    near = Fidelity(0, {}, "words", mean=0.09, p99=-0.1, attainment=0.01)
    assert near.is_near
    assert replace(near, p99=-0.11).far() == ("p99",)
    assert replace(near, mean=None, attainment=-0.02).far() == ("attainment",)
