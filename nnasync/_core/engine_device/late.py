"""An engine that is made when it is needed, and what can be said of it before.

Most drivers of a runtime run nothing in most processes, least of all in one that loads a compiled
model; importing them all would take longer than opening the rest of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable

from nnasync.engine.contract import Engine
from nnasync.hal import DeviceType, Struct


class LateEngine(Struct, frozen=True):
    """The description of an engine that is made later, and how it is made, which must not fail."""

    name: str
    version: str
    type: DeviceType
    make: Callable[[], Engine]
    loads_in_ms: float = 0.0
