"""On what terms a model is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from nnasync.compilation.caching import CompilationCache
from nnasync.compilation.verdicts import Verdicts
from nnasync.device import Device

if TYPE_CHECKING:
    from nnasync.compilation.contest_process import ContestProcess

__all__ = ["DEFAULT_BUDGET_NS", "PATIENCE_S", "Apart", "Terms"]

DEFAULT_BUDGET_NS = 300_000_000
"""How long the turns of a contest take; agreement and compiling come on top."""

PATIENCE_S = 5.0
"""How long a device may take to run a sample."""


class Apart(msgspec.Struct, frozen=True):
    """Where contests can be held outside of this process, and the names of the devices there."""

    process: Callable[[], ContestProcess]
    devices: tuple[str, ...]


class Terms(msgspec.Struct, frozen=True):
    """What decides on a compilation besides the wish.

    digest: of the model, as pins name it. reference: who judges where it is not among the devices.
    budget_ns: how long the turns of a contest take, 0 for none. quantum_ns: how long the parts of a
    plan may take, if they must be short. code: fingerprints of the drivers of third parties, by
    device. again: hold a contest although its outcome is remembered. apart: where contests are held
    outside of this process. trying: called with the name of each device before it prepares or runs.
    """

    digest: str
    reference: Device | None = None
    verdicts: Verdicts | None = None
    budget_ns: int = DEFAULT_BUDGET_NS
    patience_s: float = PATIENCE_S
    quantum_ns: int | None = None
    pin: str | None = None
    cache: CompilationCache | None = None
    code: Mapping[str, str] = {}
    again: bool = False
    apart: Apart | None = None
    trying: Callable[[str], object] | None = None
