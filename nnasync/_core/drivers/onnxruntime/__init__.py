"""`onnxruntime-cpu` and its relatives: whole ONNX files, and models translated to ONNX."""

from __future__ import annotations

from nnasync._core.drivers.onnxruntime.engine import OnnxRuntimeEngine as OnnxRuntimeEngine
from nnasync._core.drivers.onnxruntime.providers import PROVIDERS as PROVIDERS

__all__ = ["PROVIDERS", "OnnxRuntimeEngine"]
