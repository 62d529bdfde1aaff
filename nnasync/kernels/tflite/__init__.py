"""The operations of the extension org.nnasync.tflite."""

from __future__ import annotations

__all__: list[str] = []
