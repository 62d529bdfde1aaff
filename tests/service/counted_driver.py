"""A driver that counts in which process it is made, and how often."""

from __future__ import annotations

from nnasync._core.drivers.null import NullEngine

MADE: list[NullEngine] = []


def make() -> NullEngine:
    """The factory."""
    MADE.append(NullEngine("counted"))
    return MADE[-1]


def broken() -> NullEngine:
    """A factory that finds no way to make its engine."""
    raise ValueError("the card is upside down")
