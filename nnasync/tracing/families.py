"""The parts of metrics: families of samples, and the objects that provide them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from nnasync import hal


class Sample(hal.Struct, frozen=True):
    """A number of a family: what its name adds to that of the family, its labels, its value."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(hal.Struct, frozen=True):
    """Samples of one name; `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


@runtime_checkable
class Collector(Protocol):
    """An object that provides metrics."""

    def collect(self) -> Iterable[Family]:
        """The metrics now."""
