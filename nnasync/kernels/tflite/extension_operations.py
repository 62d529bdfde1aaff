"""The operations of org.nnasync.tflite: what TFLite can do in integers and the HAL cannot."""

from __future__ import annotations

from nnasync.extensions import TFLITE
from nnasync.kernels.operation import Operation
from nnasync.kernels.tflite import lstm as tflite_lstm
from nnasync.kernels.tflite import quantization as tflite_quantization
from nnasync.kernels.tflite import svdf as tflite_svdf

__all__ = ["EXTENSION_OPERATIONS"]

EXTENSION_OPERATIONS: dict[tuple[str, int], Operation] = {
    (TFLITE.name, operation.type): operation
    for family in (tflite_lstm, tflite_quantization, tflite_svdf)
    for operation in vars(family).values()
    if isinstance(operation, Operation)
}
"""The operations of the extension, by its name and the type within it."""
