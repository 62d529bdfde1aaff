"""Repeats until it is decided how near a simulation is: fixed looks, wider intervals."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nnasync.experiments import Experiment
from nnasync.experiments.deciding import confidence_of, looks, undecided
from nnasync.experiments.fidelity import fidelity_of
from tests.experiments.rigs import PHOTOS, WORD, runs

EXPERIMENT = Experiment(
    streams=(WORD, PHOTOS), sweep={"load": [0.5, 1.0], "policy": ["fifo", "edf"]}, real_repeats=6
)


@pytest.mark.parametrize(
    ("most", "expected"), [(0, (6,)), (5, (6,)), (6, (6,)), (7, (6, 7)), (24, (6, 12, 24))]
)
def test_looks_are_fixed_beforehand(most: int, expected: tuple[int, ...]) -> None:
    assert looks(replace(EXPERIMENT, real_most=most)) == expected


def test_all_looks_together_have_the_usual_confidence() -> None:
    assert confidence_of(EXPERIMENT) == 0.95
    assert confidence_of(replace(EXPERIMENT, real_most=24)) == pytest.approx(1 - 0.05 / 3)


def test_more_confidence_makes_wider_intervals() -> None:
    both = runs(("simulated", "real"), repeats=3)
    usual, wide = (fidelity_of(both, confidence=confidence)[0] for confidence in (0.95, 0.99))
    assert usual.mean == wide.mean
    narrow, wider = usual.intervals["mean"].half, wide.intervals["mean"].half
    assert narrow is not None
    assert wider is not None
    assert narrow < wider


def test_points_that_cannot_be_told_are_undecided() -> None:
    both = runs(("simulated", "real"), repeats=3)
    points = EXPERIMENT.points()
    open_still = {each.point for each in fidelity_of(both) if each.verdict == "cannot tell"}
    assert [point.index for point in undecided(points, both, (), 0.95)] == sorted(open_still)
    disturbed = [replace(run, stolen=0.5) if run.result.kind == "real" else run for run in both]
    assert undecided(points, disturbed, (), 0.95) == []
