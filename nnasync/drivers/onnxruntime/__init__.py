"""`onnxruntime-cpu` and its relatives: whole ONNX files, and models translated to ONNX."""

from __future__ import annotations

from nnasync.drivers.onnxruntime.engine import OnnxRuntimeEngine as OnnxRuntimeEngine
from nnasync.drivers.onnxruntime.providers import PROVIDERS as PROVIDERS

__all__ = ["EXACT_COUPLING", "KNOWN_GAPS", "PROVIDERS", "OnnxRuntimeEngine"]

KNOWN_GAPS: dict[str, str] = {}
"""Conformance cases that fail, by globs of their names, and why."""

EXACT_COUPLING = True
"""Signed and unsigned 8-bit tensors give the very same results, shifted by 128."""
