"""The mel scale, its filters and cepstra: known values, and what holds for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.audio import MelScale, hertz_to_mel, mel_filters, mel_to_hertz, mfcc
from nnasync.errors import InvalidArgument

scales = st.sampled_from(["slaney", "htk"])


@given(st.floats(0, 24_000), scales)
def test_the_scale_goes_both_ways(hertz: float, scale: MelScale) -> None:
    assert float(mel_to_hertz(hertz_to_mel(hertz, scale), scale)) == pytest.approx(hertz, abs=1e-6)


@pytest.mark.parametrize(
    ("hertz", "slaney", "htk"),
    [(0, 0, 0), (500, 7.5, 607.446), (1000, 15, 999.986), (6300, 41.7709, 2595)],
)
def test_known_values(hertz: float, slaney: float, htk: float) -> None:
    assert float(hertz_to_mel(hertz)) == pytest.approx(slaney, rel=1e-5)
    assert float(hertz_to_mel(hertz, "htk")) == pytest.approx(htk, rel=1e-5)


@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_filters_are_triangles_side_by_side(scale: MelScale) -> None:
    filters = mel_filters(16_000, 1024, 30, scale=scale, unit_area=False)
    assert filters.shape == (30, 513)
    assert filters.max() <= 1
    centers = filters.argmax(axis=1)
    assert (np.diff(centers) > 0).all()
    between = filters[:, centers[0] + 1 : centers[-1]].sum(axis=0)
    assert between == pytest.approx(np.ones(len(between)), abs=1e-5)


def test_filters_of_unit_area_are_lower_the_wider_they_are() -> None:
    filters = mel_filters(16_000, 4096, 20)
    areas = filters.sum(axis=1) * (16_000 / 4096)
    assert areas == pytest.approx(np.ones(20), abs=0.02)


def test_cepstra_are_the_cosine_transform() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    found = mfcc(rows, 8)
    assert (found**2).sum(axis=1) == pytest.approx((rows**2).sum(axis=1), rel=1e-5)
    assert found[:, 0] == pytest.approx(rows.sum(axis=1) / np.sqrt(8), abs=1e-5)
    second = (rows * np.cos(np.pi / 8 * (np.arange(8) + 0.5))).sum(axis=1) * np.sqrt(2 / 8)
    assert mfcc(rows, 2)[:, 1] == pytest.approx(second, abs=1e-5)
    plain = mfcc(rows, 3, orthogonal=False)
    assert plain[:, 0] == pytest.approx(found[:, 0] * np.sqrt(2), abs=1e-5)
    assert plain[:, 1:] == pytest.approx(found[:, 1:3], abs=1e-5)


def test_what_is_no_range_is_refused() -> None:
    for low, high in ((0.0, 9000.0), (500.0, 400.0)):
        with pytest.raises(InvalidArgument, match=r"0 <= low < high <= 8000\.0"):
            mel_filters(16_000, 512, 10, low_hz=low, high_hz=high)
    with pytest.raises(InvalidArgument, match="bands is 0"):
        mel_filters(16_000, 512, 0)
    with pytest.raises(InvalidArgument, match="1 to 4 coefficients, not 5"):
        mfcc(np.zeros((1, 4)), 5)
    with pytest.raises(InvalidArgument, match='"slaney" or "htk"'):
        hertz_to_mel(1.0, "bark")  # type: ignore[arg-type]  # a wrong name, on purpose
