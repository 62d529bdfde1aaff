"""Histograms of latencies beside exact quantiles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ExperimentError
from nnasync.experiments import Latencies, LatencyHistogram


@given(st.lists(st.lists(st.integers(1, 10**13), min_size=1, max_size=30), min_size=1, max_size=9))
def test_quantiles_are_within_a_bucket_and_moments_exact(parts: list[list[int]]) -> None:
    histogram = LatencyHistogram()
    for part in parts:
        histogram.add(part)
    values = np.sort(np.concatenate([np.array(part) for part in parts]))
    found = histogram.latencies()
    assert (found.count, found.least_ns, found.most_ns) == (len(values), values[0], values[-1])
    assert found.mean_ns == pytest.approx(values.mean())
    assert found.variance_ns2 == pytest.approx(values.var(), rel=1e-6, abs=1e-3)
    for share in (0.0, 0.3, 0.5, 0.99, 1.0):
        exact = values[max(0, math.ceil(share * len(values)) - 1)]
        assert exact <= found.quantile(share) <= exact * 1.01 + 1
    assert sum(count for _, count in found.buckets) == len(values)
    shares = [share for _, share in found.cumulative()]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_without_latencies_there_is_no_quantile() -> None:
    histogram = LatencyHistogram()
    histogram.add([])
    assert histogram.latencies() == Latencies()
    assert math.isnan(Latencies().p99_ns)
    assert Latencies().cumulative() == ()
    with pytest.raises(ExperimentError, match="at 1.5, and must be at 0 to 1"):
        Latencies().quantile(1.5)


def test_what_takes_no_time_counts() -> None:
    histogram = LatencyHistogram()
    histogram.add([0, 0])
    assert histogram.latencies().count == 2
    assert histogram.latencies().p50_ns == 1.0
