"""How long runs of networks take, by what ran beside them when they began, and what joins them."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.experiments import Outcome, RequestRow, RunResult, Span
from nnasync.experiments.times_of_runs import quantiles_ms, times_by_company
from tests.experiments.rigs import real_run

MS = 1_000_000


def run_of(*requests: tuple[int, float, float, float]) -> RunResult:
    """Requests of streams on two cores as stream, queued, began and ended, in milliseconds."""
    ns = [(stream, *(round(at * MS) for at in times)) for stream, *times in requests]
    return real_run(
        [
            RequestRow(s, n, queued, ended, Outcome.MET, queued_ns=queued)
            for n, (s, queued, _, ended) in enumerate(ns)
        ],
        [Span(0, s, n, began, ended) for n, (s, _, began, ended) in enumerate(ns)],
    )


def test_runs_are_told_apart_by_what_ran_when_they_began() -> None:
    alone = [(0, at, at, at + 1.0) for at in range(0, 600, 20)]
    # One that joins another, and a third one that goes on where the first one ends.
    found = times_by_company(
        [
            run_of(
                *alone,
                *((1, at + 5, at + 5, at + 8) for at in range(0, 600, 20)),
                *((1, at + 6, at + 6.5, at + 11) for at in range(0, 600, 20)),
                *((0, at + 7, at + 8, at + 10) for at in range(0, 600, 20)),
            )
        ],
        0,
    )
    assert found is not None
    assert set(found.usual_ms) == {1.0}
    assert {name: set(values) for name, values in found.beside_ms.items()} == {"1": {2.0}}
    assert found.joined_ms == {}


def test_who_joins_is_late_and_makes_the_other_one_longer() -> None:
    alone = [(0, at, at, at + 2.0) for at in range(0, 600, 20)]
    joined = [(0, at + 5, at + 5, at + 10) for at in range(0, 600, 20)]
    joining = [(1, at + 6, at + 7.5, at + 11) for at in range(0, 600, 20)]
    found = times_by_company([run_of(*alone, *joined, *joining)], 0)
    assert found is not None
    # That some are joined, and long, makes those alone no longer.
    assert set(found.usual_ms) == {2.0}
    assert found.joined_ms.keys() == {"1"}
    assert found.joined_ms["1"] == pytest.approx(np.array([[1.5, 3.5, 3.0]] * 30))
    # Of the other stream nothing is known alone.
    assert times_by_company([run_of(*alone, *joined, *joining)], 1) is None


def test_runs_that_are_joined_are_not_left_out() -> None:
    """Half of the runs take 1 ms, half 9 ms, and all of these that are left after 5 are joined."""
    short = [(0, at, at, at + 1.0) for at in range(0, 1000, 20)]
    long = [(0, at + 5, at + 5, at + 14.0) for at in range(0, 1000, 20)]
    joining = [(1, at + 10, at + 10, at + 10.5) for at in range(0, 500, 20)]
    found = times_by_company([run_of(*short, *long, *joining)], 0)
    assert found is not None
    assert np.mean(found.usual_ms) == pytest.approx(5.0, abs=0.05)
    (joins,) = found.joined_ms.values()
    assert {longer_ms for _, _, longer_ms in joins} == {0.0}


def test_joins_that_change_nothing_change_nothing_on_average() -> None:
    """Half of the runs take 1 ms and half 9 ms, whether another one joins them or not."""
    lengths = list(zip(range(0, 2000, 20), (1.0, 9.0) * 50, strict=True))
    alone = [(0, at, at, at + length) for at, length in lengths]
    joined = [(0, at + 2000, at + 2000, at + 2000 + length) for at, length in lengths]
    joining = [(1, at + 2000.5, at + 2000.5, at + 2001) for at, _ in lengths]
    found = times_by_company([run_of(*alone, *joined, *joining)], 0)
    assert found is not None
    assert np.mean([longer for _, _, longer in found.joined_ms["1"]]) == pytest.approx(0, abs=0.1)


def test_the_form_for_runs_alone_does_not_count_as_usual() -> None:
    spans = [(0, at, at, at + 1.0 + at // 10 % 2) for at in range(0, 990, 10)]
    found = times_by_company([run_of(*spans)], 0, 1.5 * MS)
    assert found is not None
    assert set(found.usual_ms) == {2.0}


def test_not_too_many_joins_are_kept_and_the_extremes_are() -> None:
    alone = [(0, at, at, at + 2.0) for at in range(0, 12_000, 20)]
    joined = [(0, at + 5, at + 5, at + 8 + at / 12_000) for at in range(0, 12_000, 20)]
    joining = [(1, at + 6, at + 6, at + 7) for at in range(0, 12_000, 20)]
    found = times_by_company([run_of(*alone, *joined, *joining)], 0)
    assert found is not None
    longer = [longer_ms for _, _, longer_ms in found.joined_ms["1"]]
    assert len(longer) == 400
    assert [longer[0], longer[-1]] == pytest.approx([1.0, 2.0], abs=0.01)


def test_quantiles_are_as_many_whatever_there_is() -> None:
    assert quantiles_ms([MS]) == (1.0,) * 199
    assert quantiles_ms(range(MS, 200 * MS, MS)) == tuple(map(float, range(1, 200)))
