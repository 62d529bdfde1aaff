"""How far roundings may take floats: as far as the network carries the last bit of its inputs.

A share of the largest result suits most networks. An ill-conditioned one, such as a mask that is
the quotient of sums that cancel, makes more than that of the last bit of its inputs alone, so that
two correct engines, which add in another order, are further apart. That is measured: the reference
answers the samples again with each float of the inputs moved to one of its neighbors. An operation
rounds its results as that rounds the inputs, and what independent roundings come to grows with the
root of their number. So results may be as many times as far from the reference's as those, in the
largest difference and in the root of the mean square, which an error that is anywhere but in few
places exceeds; and never further than a hundredth of the largest, whatever the network does.

On five pictures, LiteRT's XNNPACK was 2.3 to 12 times and ONNX Runtime 0.7 to 4.4 times as far as
neighbors of the inputs, of MediaPipe's full pose landmarks (140 operations, root 11.8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array

_MOST = 0.01


def is_rounding(
    expected: Sequence[Array], actual: Sequence[Array], rounded: Sequence[Array], operations: int
) -> bool:
    """Returns whether all differences of floats may come from rounding.

    `rounded` are the reference's outputs for the neighbors of the inputs.
    """
    if not rounded or not all(np.isfinite(each).all() for each in (*expected, *actual, *rounded)):
        return False
    times = math.sqrt(operations)
    largest = max(float(np.abs(each).max(initial=0)) for each in expected)
    found, noise = _distances(expected, actual), _distances(expected, rounded)
    return found[0] <= min(times * noise[0], _MOST * largest) and found[1] <= times * noise[1]


def _distances(expected: Sequence[Array], actual: Sequence[Array]) -> tuple[float, float]:
    """Returns the largest difference, and the root of the mean square of all."""
    pairs = zip(expected, actual, strict=True)
    differences = [np.abs(b.astype(np.float64) - a.astype(np.float64)).ravel() for a, b in pairs]
    every = np.concatenate(differences) if differences else np.zeros(0)
    if not every.size:
        return 0.0, 0.0
    return float(every.max()), float(np.sqrt(np.square(every).mean()))
