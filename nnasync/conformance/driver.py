"""What a driver says of itself for its conformance: gaps that it knows, and how exact it is.

A driver's module may have `KNOWN_GAPS`, a mapping of globs of case names to the reason why these
cases fail, and `EXACT_COUPLING`, which says that signed twins give the very same results as their
unsigned cases and not only results within the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from nnasync.drivers import driver_module
from nnasync.hal import Struct

__all__ = ["DriverFacts", "driver_facts", "gap_of"]


class DriverFacts(Struct, frozen=True):
    """What a driver says of itself; `known_gaps` maps globs of case names to reasons."""

    known_gaps: Mapping[str, str] = msgspec.field(default_factory=dict)
    exact_coupling: bool = False


def driver_facts(device: str) -> DriverFacts:
    """The facts of a device by its name.

    Raises InvalidArgument for an unknown one, GeneralFailure if its driver cannot be imported.
    """
    module = driver_module(device)
    gaps: Mapping[str, str] = getattr(module, "KNOWN_GAPS", {})
    return DriverFacts(dict(gaps), bool(getattr(module, "EXACT_COUPLING", False)))


def gap_of(name: str, gaps: Mapping[str, str]) -> str | None:
    """The first glob among the known gaps that matches a case; None if it is to pass."""
    return next((glob for glob in gaps if fnmatchcase(name, glob)), None)
