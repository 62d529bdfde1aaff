"""The operations of org.nnasync.tflite: what TFLite can do in integers and the HAL cannot."""

from __future__ import annotations

from nnasync.extensions import TFLITE
from nnasync.kernels import tflite_lstm, tflite_quantization, tflite_svdf
from nnasync.kernels.operation import Operation

__all__ = ["EXTENSION_OPERATIONS"]

EXTENSION_OPERATIONS: dict[tuple[str, int], Operation] = {
    (TFLITE.name, operation.type): operation
    for family in (tflite_lstm, tflite_quantization, tflite_svdf)
    for operation in family.OPERATIONS
}
"""The operations of the extension, by its name and the type within it."""
