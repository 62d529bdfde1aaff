"""GELU against the error function of the standard library."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nnasync.extensions import COMMON, CommonOperation
from nnasync.kernels import EXTENSION_OPERATIONS
from tests.kernels.running import run, scalar, tensor

GELU = EXTENSION_OPERATIONS[COMMON.name, CommonOperation.GELU]
NUMBERS = [*np.linspace(-9, 9, 721), -1e30, -1e4, -100.0, 100.0, 1e30, 0.0, 1e-20, math.inf]


def exact(x: float) -> float:
    return x * math.erfc(-x / math.sqrt(2)) / 2


def approximate(x: float) -> float:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * (1 + math.tanh(inner)) / 2


@pytest.mark.parametrize("form", [exact, approximate])
def test_gelu(form: object) -> None:
    x = np.array(NUMBERS, np.float32)
    rule = exact if form is exact else approximate
    wanted = np.array([rule(float(value)) for value in x])
    (got,) = run(GELU, tensor(x), scalar(form is approximate))
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


def test_no_number_stays_none() -> None:
    x = tensor(np.array([math.nan, 1], np.float32))
    for form in (True, False):
        (got,) = run(GELU, x, scalar(form))
        assert np.isnan(got[0])
        assert abs(got[1] - 0.8413) < 1e-3


def test_halves_are_computed_in_float32() -> None:
    x = np.linspace(-3, 3, 50).astype(np.float16)
    (got,) = run(GELU, tensor(x), scalar(False))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, [exact(float(value)) for value in x], rtol=1e-3, atol=1e-3)
