"""Scales of charts: from values to places along an axis, and where its ticks are.

Besides the linear and the logarithmic one there is that of nines, for shares near 1: each further
nine (90 %, 99 %, 99.9 %) takes as much room as the one before, so that the tail of a distribution
can be read. Words are laid out in their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

_TICKS = 6
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_BETWEEN = ((1,), (1, 3), (1, 2, 5))
_LEAST_TICKS = 3
_MARGIN = 0.03
"""Room beside the first and the last value of a sweep, as a share of what lies between."""
_WIDE = 8.0
"""From this ratio of the largest to the smallest on values are shown on a logarithmic scale."""


class Scale(Protocol):
    """Places of values from 0 to 1, and ticks with their labels."""

    def at(self, value: float | str) -> float:
        """Returns the position of a value, from 0 to 1."""
        ...

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels of ticks."""
        ...


class Linear:
    """A linear scale from `low` to `high`."""

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high if high > low else low + 1.0

    def at(self, value: float | str) -> float:
        """Returns the position of a value; one beyond an end is at that end."""
        return _clipped((float(value) - self.low) / (self.high - self.low))

    def ticks(self) -> list[tuple[float, str]]:
        """Round numbers."""
        rough = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in _STEPS if step * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        digits = max(0, -math.floor(math.log10(step) + 1e-9) + (step / power == 2.5))
        return [(self.at(n * step), f"{n * step:,.{digits}f}") for n in range(first, last + 1)]


class Logarithmic:
    """A logarithmic scale from `low` to `high`, both above 0."""

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high if high > low else low * 2

    def at(self, value: float | str) -> float:
        """Returns the position of a value; one beyond an end is at that end."""
        number = max(float(value), self.low)
        return _clipped(math.log(number / self.low) / math.log(self.high / self.low))

    def ticks(self) -> list[tuple[float, str]]:
        """Powers of ten, with others between where there are few; round numbers within one."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        inside: list[float] = []
        for between in _BETWEEN:
            values = [part * 10.0**power for power in range(first, last + 1) for part in between]
            inside = [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
            if len(inside) >= _LEAST_TICKS:
                return [(self.at(value), f"{value:,g}") for value in inside]
        linear = Linear(self.low, self.high)
        return [
            (self.at(self.low + place * (self.high - self.low)), t) for place, t in linear.ticks()
        ]


class Nines:
    """Shares from 0 to all but one in 10 ** `count`."""

    def __init__(self, count: float) -> None:
        self.count = max(count, 1.0)

    def at(self, value: float | str) -> float:
        """Returns the position of a share."""
        return _clipped(-math.log10(max(1.0 - float(value), 1e-12)) / self.count)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns the ticks 0, one half, and each further nine."""
        shares = [0.0, 0.5, *(1 - 10.0**-n for n in range(1, math.floor(self.count + 1e-9) + 1))]
        return [(self.at(share), f"{100 * share:.10g} %") for share in shares]


class Swept:
    """Another scale with ticks where a sweep has its values."""

    def __init__(self, scale: Scale, values: Sequence[float]) -> None:
        self._scale = scale
        self._values = values

    def at(self, value: float | str) -> float:
        """Returns the position that the other scale gives the value."""
        return self._scale.at(value)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns a tick for each value."""
        return [(self.at(value), f"{value:g}") for value in self._values]


class Words:
    """Values that have no order of their own, one beside the other."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)

    def at(self, value: float | str) -> float:
        """The middle of the place of a word."""
        return (self._words.index(str(value)) + 0.5) / len(self._words)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns a tick for each word."""
        return [(self.at(word), word) for word in self._words]


def scale_of(values: Sequence[float | str]) -> Scale:
    """A scale for the values of an axis of a sweep."""
    if any(isinstance(value, str) for value in values):
        return Words([str(value) for value in values])
    numbers = sorted(float(value) for value in values)
    first, last = numbers[0], numbers[-1]
    if first > 0 and last / first >= _WIDE:
        ratio = (last / first) ** _MARGIN
        return Swept(Logarithmic(first / ratio, last * ratio), numbers)
    margin = (last - first) * _MARGIN
    return Swept(Linear(first - margin, last + margin), numbers)


def _clipped(place: float) -> float:
    return min(max(place, 0.0), 1.0)
