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


def busy(seed: int) -> list[float]:
    """What others have of the cores: they come and go."""
    random = np.random.default_rng(seed)
    return [float(each) for each in np.repeat(random.uniform(0, 1, 20), 30)]


def test_what_others_do_to_a_series_is_no_slope_of_its_own() -> None:
    """Others come and go, and more of them come later: what depends on them alone does not grow."""
    sure = without = 0
    for seed in range(20):
        company = [each * (1 + time / 600) for each, time in zip(busy(seed), TIMES, strict=True)]
        noise = np.random.default_rng(seed).normal(0, 0.2, len(TIMES))
        values = [2 + 3 * each + float(n) for each, n in zip(company, noise, strict=True)]
        seen, blind = trend(TIMES, values, company=company), trend(TIMES, values)
        assert seen is not None
        assert blind is not None
        assert seen.low <= seen.slope <= seen.high
        sure += seen.low > 0
        without += abs(blind.slope) > abs(seen.slope)
    assert sure <= 2
    assert without >= 18


def test_what_grows_by_itself_is_seen_beside_others() -> None:
    for seed in range(20):
        company = busy(seed)
        noise = np.random.default_rng(seed).normal(0, 0.2, len(TIMES))
        values = [
            2 + 3 * each + time / 600 + float(n)
            for each, time, n in zip(company, TIMES, noise, strict=True)
        ]
        seen = trend(TIMES, values, company=company)
        assert seen is not None
        assert seen.low > 0
        assert abs(seen.slope * 600 - 1) < 0.3


def test_growth_that_came_with_others_cannot_be_told_from_them() -> None:
    random = np.random.default_rng(0)
    company = [time / 600 + float(random.normal(0, 0.05)) for time in TIMES]
    values = [2 + each + float(random.normal(0, 0.05)) for each in company]
    seen = trend(TIMES, values, company=company)
    assert seen is not None
    assert seen.low < 0 < seen.high


def test_company_that_never_changes_tells_nothing() -> None:
    values = [100 + 2 * time for time in TIMES]
    seen = trend(TIMES, values, company=[0.5] * len(TIMES))
    assert seen is not None
    assert abs(seen.slope - 2) < 1e-9


def test_a_low_quantile_does_not_see_what_comes_and_goes() -> None:
    """Work in flight adds to what is held: more of it, later, is no growth of what stays."""
    random = np.random.default_rng(0)
    values = [100 + (5 + time / 60) * float(random.random() < 0.5) for time in TIMES]
    low, middle = trend(TIMES, values, quantile=0.25), trend(TIMES, values)
    assert low is not None
    assert middle is not None
    assert low.grown == 0
    assert middle.high > low.high
    leaking = [value + time / 60 for value, time in zip(values, TIMES, strict=True)]
    seen = trend(TIMES, leaking, quantile=0.25)
    assert seen is not None
    assert seen.low > 0
