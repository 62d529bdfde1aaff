"""`nnasync-reference`: every operation in numpy, on the processor that Python runs on."""

from __future__ import annotations

from nnasync.drivers.cpu.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
