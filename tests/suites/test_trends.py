"""Slopes of invented series: what surely grows is told, what may be chance is not."""

from __future__ import annotations

import numpy as np

from nnasync.suites.trends import trend

TIMES = [float(second) for second in range(600)]


def test_a_line_has_its_slope_and_no_doubt() -> None:
    seen = trend(TIMES, [100 + 2 * time for time in TIMES])
    assert seen is not None
    assert abs(seen.slope - 2) < 1e-9
    assert seen.high - seen.low < 1e-6
    assert abs(seen.grown - 2 * 599) < 1e-3


def test_noise_alone_does_not_grow_nor_shrink() -> None:
    grown = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(100, 5, len(TIMES))
        seen = trend(TIMES, [float(value) for value in noise])
        assert seen is not None
        grown += seen.low > 0
    assert grown <= 3  # One in forty is above by chance, at 95 %.


def test_noise_that_follows_itself_does_not_make_a_slope_sure() -> None:
    sure = 0
    for seed in range(40):
        steps = np.random.default_rng(seed).normal(0, 1, len(TIMES))
        values, value = [], 0.0
        for step in steps:
            value = 0.9 * value + float(step)
            values.append(100 + value)
        seen = trend(TIMES, values)
        assert seen is not None
        sure += seen.low > 0
    assert sure <= 4


def test_a_slow_leak_is_seen_through_noise() -> None:
    noise = np.random.default_rng(1).normal(0, 5, len(TIMES))
    seen = trend(TIMES, [100 + 0.05 * t + float(n) for t, n in zip(TIMES, noise, strict=True)])
    assert seen is not None
    assert seen.low > 0


def test_what_happens_before_it_has_settled_does_not_count() -> None:
    seen = trend(TIMES, [min(100.0, time) for time in TIMES], settle=120)
    assert seen is not None
    assert seen.slope == 0
    assert seen.grown == 0


def test_too_few_samples_say_nothing() -> None:
    assert trend([0.0, 1.0, 2.0], [1.0, 2.0, 3.0]) is None
    assert trend([], []) is None
    assert trend([5.0] * 20, [1.0] * 20) is None
