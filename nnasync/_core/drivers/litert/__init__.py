"""`litert-cpu`: operations lowered to a LiteRT file in memory, which XNNPACK runs."""

from __future__ import annotations

from nnasync._core.drivers.litert.engine import LiteRTEngine as LiteRTEngine

__all__ = ["LiteRTEngine"]
