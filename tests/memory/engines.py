"""Devices that need a package, which is imported ahead of whoever counts descriptors."""

from __future__ import annotations

import contextlib
import importlib

import pytest

__all__ = ["ENGINES", "need"]

ENGINES = {
    "litert-cpu": "ai_edge_litert",
    "openvino-cpu": "openvino",
    "onnxruntime-cpu": "onnxruntime",
}

with contextlib.suppress(ImportError):
    # It opens a file of its own when it is imported, and keeps it.
    importlib.import_module("onnxruntime")


def need(device: str) -> None:
    """Skip the test where the package of a device is missing."""
    package = ENGINES.get(device)
    if package is not None:
        pytest.importorskip(package, reason=f"needs the package {package}")
