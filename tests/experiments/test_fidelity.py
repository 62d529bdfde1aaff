"""Errors of simulations: paired, with intervals, and no verdict where the real runs allow none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nnasync.experiments.fidelity import Fidelity, fidelity_of, summed_up
from nnasync.experiments.intervals import Interval
from nnasync.experiments.run_of_point import Run
from tests.experiments.rigs import runs, served


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


NEAR = Fidelity(0, {}, "words", mean=0.02, p99=0.04, attainment=0.0)


@pytest.mark.parametrize(
    ("halves", "verdict"),
    [
        ({}, "within"),
        ({"mean": 0.07, "p99": 0.05}, "within"),
        ({"mean": 0.09}, "cannot tell: 3 repeats differ too much"),
        ({"attainment": 0.02}, "cannot tell: 3 repeats differ too much"),
    ],
)
def test_a_verdict_needs_intervals_within_the_limits(
    halves: dict[str, float], verdict: str
) -> None:
    intervals = {name: Interval(getattr(NEAR, name), half, 3) for name, half in halves.items()}
    assert replace(NEAR, intervals=intervals, pairs=3).told == verdict


def test_outside_is_what_is_beyond_a_limit_as_a_whole() -> None:
    far = replace(NEAR, p99=-0.3, intervals={"p99": Interval(-0.3, 0.15, 3)})
    assert far.verdict == "outside"
    unclear = replace(far, intervals={"p99": Interval(-0.3, 0.25, 3)})
    assert (unclear.verdict, unclear.far()) == ("cannot tell", ("p99",))
    assert replace(far, is_disturbed=True).told == "cannot tell: disturbed"
    assert summed_up([far, NEAR, NEAR, unclear]) == "2 within, 1 outside, 1 cannot tell"


def test_pairs_of_a_seed_differ_less_than_seeds_do() -> None:
    """All is 5 % slower for real: what seeds have in common is no part of the interval."""
    guess = [Run(0, {}, n, 0.1, served(seed=n)) for n in range(4)]
    truth = [Run(0, {}, n, 0.1, served("real", seed=n, slower=1.05)) for n in range(4)]
    (word, _) = fidelity_of([*guess, *truth])
    lengths = [run.result.streams[0].latency.mean_ns for run in truth]
    assert word.mean == pytest.approx(
        sum(run.result.streams[0].latency.mean_ns for run in guess) / sum(lengths) - 1
    )
    half = word.intervals["mean"].half
    assert half is not None
    assert half < (max(lengths) - min(lengths)) / max(lengths)
    assert word.pairs == 4


def test_disturbed_repeats_are_left_out_unless_all_are() -> None:
    simulated = [run for run in runs() if run.point == 0]
    real = [run for run in runs(("real",)) if run.point == 0]
    disturbed = [replace(run, others=0.5) for run in real]
    (word, _) = fidelity_of([*simulated, real[0], disturbed[1]])
    assert (word.pairs, word.is_disturbed) == (1, False)
    (word, _) = fidelity_of([*simulated, *disturbed])
    assert (word.pairs, word.verdict) == (2, "cannot tell")


def test_one_repeat_gives_no_verdict() -> None:
    word, *_ = fidelity_of(runs(("simulated", "real"), repeats=1))
    assert word.mean is not None
    assert word.told == "cannot tell: one repeat only"
