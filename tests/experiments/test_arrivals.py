"""Arrival processes: rates, variation, order, seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nnasync.errors import ExperimentError
from nnasync.experiments import ClosedLoop, Gamma, OnOff, Periodic, Poisson

Open = Periodic | Poisson | Gamma | OnOff

COUNT = 100_000


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def first(blocks: Iterator[NDArray[np.int64]], count: int = COUNT) -> NDArray[np.int64]:
    found: list[NDArray[np.int64]] = []
    while sum(map(len, found)) < count:
        found.append(next(blocks))
    return np.concatenate(found)[:count]


def test_periodic_keeps_its_grid_and_jitters_within_it() -> None:
    times = first(Periodic(10.0, phase_ms=3.0).blocks(rng()), 10_000)
    assert times.tolist() == [3_000_000 + i * 10_000_000 for i in range(10_000)]
    late = first(Periodic(10.0, jitter_ms=10.0).blocks(rng()), 10_000)
    late -= np.arange(10_000) * 10_000_000
    assert 0 <= late.min() < 100_000
    assert 9_900_000 < late.max() <= 10_000_000


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [
        (Poisson(200.0), 1.0),
        (Gamma(200.0, cv=1.0), 1.0),
        (Gamma(200.0, cv=4.0), 4.0),
        (Gamma(200.0, cv=0.25), 0.25),
    ],
)
def test_gaps_have_the_rate_and_the_variation_that_was_asked_for(
    arrivals: Poisson | Gamma, cv: float
) -> None:
    gaps = np.diff(first(arrivals.blocks(rng()))) / 1e6
    error = 4 * cv / COUNT**0.5
    assert gaps.mean() == pytest.approx(5.0, rel=error)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_on_off_has_its_rate_while_it_is_on_and_none_while_off() -> None:
    arrivals = OnOff(1000.0, on_ms=100.0, off_ms=300.0)
    times = first(arrivals.blocks(rng(3)), 400_000)
    assert times[-1] / 400_000 == pytest.approx(4e6, rel=0.05)
    gaps = np.diff(times) / 1e6
    # 1 % of arrivals end a period, and are followed by a pause.
    assert np.mean(gaps > 15) == pytest.approx(0.01 * np.exp(-15 / 300), rel=0.1)
    assert np.median(gaps) == pytest.approx(np.log(2), rel=0.03)
    assert arrivals.mean_rate_hz == 250.0


@pytest.mark.parametrize(
    "arrivals", [Periodic(1.0, jitter_ms=1.0), Poisson(9.0), Gamma(5.0, 8.0), OnOff(1e3, 1.0, 9.0)]
)
@given(seed=st.integers(0, 2**32))
def test_times_never_go_back_and_repeat_with_the_seed(arrivals: Open, seed: int) -> None:
    times = first(arrivals.blocks(rng(seed)), 10_000)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times.dtype == np.int64
    assert (first(arrivals.blocks(rng(seed)), 10_000) == times).all()


@pytest.mark.parametrize(
    "arrivals", [Periodic(2.0, jitter_ms=1.0), Poisson(9.0), Gamma(5.0, 2.0), OnOff(1e3, 1.0, 9.0)]
)
def test_what_is_scaled_is_as_much_faster(arrivals: Open) -> None:
    assert arrivals.scaled(3.0).mean_rate_hz == pytest.approx(3 * arrivals.mean_rate_hz)


def test_callers_think_as_long_as_they_should() -> None:
    times = np.array(list(itertools.islice(ClosedLoop(2, 5.0).thinking(rng()), COUNT)))
    assert times.mean() == pytest.approx(5e6, rel=0.02)
    assert times.std() == pytest.approx(5e6, rel=0.02)
    constant = ClosedLoop(2, 5.0, think="constant").thinking(rng())
    assert list(itertools.islice(constant, 3)) == [5_000_000] * 3
    assert next(ClosedLoop(1, 0.0).thinking(rng())) == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Periodic(0.0), "period_ms is 0, and must be greater than 0"),
        (lambda: Periodic(1.0, phase_ms=-1.0), "phase_ms is -1, and must be 0 or more"),
        (lambda: Periodic(1.0, jitter_ms=2.0), "jitter_ms is 2, and must not exceed period_ms, 1"),
        (lambda: Poisson(-3.0), "rate_hz is -3, and must be greater than 0"),
        (lambda: Poisson(float("nan")), "rate_hz is nan"),
        (lambda: Poisson(2e9), "rate_hz is 2e.09, more than one request a nanosecond"),
        (lambda: Periodic(1e-7), "1000 / period_ms is 1e.10, more than one request"),
        (lambda: Gamma(1.0, 0.0), "cv is 0, and must be 0.001 or more"),
        (lambda: OnOff(1.0, 0.0, 1.0), "on_ms is 0"),
        (lambda: ClosedLoop(0, 1.0), "callers is 0, and must be 1 or more"),
        (lambda: ClosedLoop(1, float("inf")), "think_ms is inf"),
    ],
)
def test_what_cannot_be_is_refused(make: type, text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        make()
