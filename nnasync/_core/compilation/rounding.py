"""How far roundings may take the quantized results of a network: as far as moved inputs do.

An engine rounds each layer in its own way, and a network carries that on: a robust one swallows it,
a sensitive one makes other classes of it. No number of steps is right for both. But cameras and
microphones add more than one step of noise to what they record, so a network whose accuracy is
worth something bears that. The reference therefore answers the samples again with each number of
the inputs a step higher or lower, or the same, by chance. How far that takes its results is the
scale for a candidate:

* over all natural samples, in the root of the mean square, it may be one and a half times as far,
  or one step;
* at an edge of the range (all numbers alike, a ramp) it may be one and a half times as far as moved
  inputs take the reference there, or at the natural samples, or one step;
* where the output is a row of classes it may take another class only for one that is nearly as good
  for the reference: by one and a half times the most that moved inputs changed a result of a
  natural sample, or three steps.

256 steps of 16 bits count as one. All of this depends on the model and the results alone, not on
time. Engines that round in their own way were 0.05 to 1.03 times as far as moved inputs on 291
pictures from photographs (MobileNet v1, v2 and v3 with weights by tensor and by channel, LiteRT's
XNNPACK, OpenVINO's float32, bfloat16 and bytes), with as many top classes changed as that, or
fewer; at the natural samples 0 to 1.26 times. Products of bytes that saturate were 1.76 times as
far on the pictures, and 3 times at the samples (MobileNet v2 with weights by channel).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from nnasync.hal import Array

_TIMES = 1.5
_LEAST_RMS, _LEAST_LOSS = 1.0, 3.0
_WIDE_STEPS = 256


class Distances(msgspec.Struct, frozen=True):
    """Holds the answers for one output to all samples, and the reference's to moved inputs.

    The first `edges` samples are edges. Without `moved` the least bounds hold.
    """

    expected: Sequence[Array]
    actual: Sequence[Array]
    moved: Sequence[Array] = ()
    edges: int = 0


def fault_of(distances: Distances) -> str:
    """Returns what is wrong with the answers of a candidate; empty if nothing is."""
    expected, actual, edges = distances.expected, distances.actual, distances.edges
    moved = distances.moved or expected
    usual = _rms(expected[edges:], moved[edges:])
    found = _rms(expected[edges:], actual[edges:])
    allowed = max(_TIMES * usual, _LEAST_RMS)
    if found > allowed:
        return _too_far(found, allowed, "")
    for here in range(edges):
        place = slice(here, here + 1)
        found = _rms(expected[place], actual[place])
        bound = max(_TIMES * _rms(expected[place], moved[place]), allowed)
        if found > bound:
            return _too_far(found, bound, " at an edge of the range")
    return _fault_of_classes(expected[edges:], actual[edges:], moved[edges:])


def class_of(expected: Array, actual: Array) -> tuple[bool, float]:
    """Returns whether the top classes are the same, and by how many steps the other one is worse.

    The reference's values tell how much worse it is.
    """
    wanted = expected.reshape(-1, expected.shape[-1])
    got = actual.reshape(wanted.shape).argmax(axis=1)
    chosen = wanted[np.arange(len(wanted)), got].astype(np.float64)
    loss = (wanted.max(axis=1) - chosen).max(initial=0) / _unit(expected)
    return bool((got == wanted.argmax(axis=1)).all()), float(loss)


def is_row_of_classes(values: Array) -> bool:
    """Returns whether values are [batch, classes], with dimensions of 1 in between."""
    return values.ndim >= 2 and values.shape[-1] > 1 and not any(n > 1 for n in values.shape[1:-1])


def _fault_of_classes(
    expected: Sequence[Array], actual: Sequence[Array], moved: Sequence[Array]
) -> str:
    if not expected or not is_row_of_classes(expected[0]) or not expected[0].size:
        return ""
    pairs = list(zip(expected, moved, strict=True))
    largest = max(float(np.abs(_difference(*pair)).max(initial=0)) for pair in pairs)
    allowed = max(_TIMES * largest, _LEAST_LOSS)
    loss = max(class_of(*pair)[1] for pair in zip(expected, actual, strict=True))
    if loss <= allowed:
        return ""
    return f"another top class, {loss:g} steps worse for the reference ({allowed:.3g} allowed)"


def _too_far(found: float, allowed: float, where: str) -> str:
    return (
        f"{found:.2g} steps from the reference in the root mean square{where} "
        f"({allowed:.2g} allowed)"
    )


def _rms(expected: Sequence[Array], actual: Sequence[Array]) -> float:
    """Returns the root of the mean square of all differences, in steps of 8 bits."""
    squares = [
        float(np.square(_difference(*pair)).mean())
        for pair in zip(expected, actual, strict=True)
        if pair[0].size
    ]
    return float(np.sqrt(np.mean(squares))) if squares else 0.0


def _difference(expected: Array, actual: Array) -> Array:
    difference: Array = actual.astype(np.float64) - expected.astype(np.float64)
    return difference / _unit(expected)


def _unit(values: Array) -> int:
    return 1 if values.dtype.itemsize == 1 else _WIDE_STEPS
