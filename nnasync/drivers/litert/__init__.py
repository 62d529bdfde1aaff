"""`litert-cpu`: operations lowered to a LiteRT file in memory, which XNNPACK runs."""

from __future__ import annotations

from nnasync.drivers.litert.engine import LiteRTEngine as LiteRTEngine

__all__ = ["EXACT_COUPLING", "KNOWN_GAPS", "LiteRTEngine"]

KNOWN_GAPS: dict[str, str] = {}
"""Conformance cases that fail, by globs of their names, and why."""

EXACT_COUPLING = False
"""Signed and unsigned kernels differ in their rounding."""
