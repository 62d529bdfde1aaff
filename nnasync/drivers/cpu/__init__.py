"""`nnasync-reference`: every operation in numpy, on the processor that Python runs on."""

from __future__ import annotations

from nnasync.drivers.cpu.engine import ReferenceEngine as ReferenceEngine
from nnasync.drivers.cpu.plan import memory_plan as memory_plan
from nnasync.engine.arena import MemoryPlan as MemoryPlan
from nnasync.engine.arena import PlannedBlock as PlannedBlock

__all__ = [
    "EXACT_COUPLING",
    "KNOWN_GAPS",
    "MemoryPlan",
    "PlannedBlock",
    "ReferenceEngine",
    "memory_plan",
]

KNOWN_GAPS: dict[str, str] = {}
"""Conformance cases that fail, by globs of their names, and why."""

EXACT_COUPLING = True
"""Signed and unsigned 8-bit tensors give the very same results, shifted by 128."""
