"""`openvino-cpu`: partitions lowered to graphs of OpenVINO, on the processor."""

from __future__ import annotations

from nnasync.drivers.openvino.engine import OpenVinoEngine as OpenVinoEngine

__all__ = ["EXACT_COUPLING", "KNOWN_GAPS", "OpenVinoEngine"]

KNOWN_GAPS: dict[str, str] = {}
"""Conformance cases that fail, by globs of their names, and why."""

EXACT_COUPLING = False
"""Signed and unsigned 8-bit tensors agree within the tolerance."""
