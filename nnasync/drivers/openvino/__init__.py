"""`openvino-cpu`: partitions lowered to graphs of OpenVINO, on the processor."""

from __future__ import annotations

from nnasync.drivers.openvino.engine import OpenVinoEngine as OpenVinoEngine

__all__ = ["OpenVinoEngine"]
