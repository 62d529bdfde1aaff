"""`openvino-cpu`: partitions lowered to graphs of OpenVINO, on the processor."""

from __future__ import annotations

from nnasync._core.drivers.openvino.engine import OpenVinoEngine as OpenVinoEngine

__all__ = ["OpenVinoEngine"]
