"""`nnasync-reference`: every operation in numpy, on the processor that Python runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync.deferred import names

if TYPE_CHECKING:
    from nnasync.drivers.cpu.engine import ReferenceEngine as ReferenceEngine

__all__ = [
    "EXACT_COUPLING",
    "KNOWN_GAPS",
    "ReferenceEngine",
]

KNOWN_GAPS: dict[str, str] = {}
"""Conformance cases that fail, by globs of their names, and why."""

EXACT_COUPLING = True
"""Signed and unsigned 8-bit tensors give the very same results, shifted by 128."""

__getattr__ = names(__name__, {"ReferenceEngine": "engine"})
