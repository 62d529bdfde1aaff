"""The operations of our extensions that have kernels."""

from __future__ import annotations

from nnasync.extensions import COMMON, TFLITE
from nnasync.kernels.common import activation, matrices, sums
from nnasync.kernels.operation import Operation
from nnasync.kernels.tflite import lstm as tflite_lstm
from nnasync.kernels.tflite import quantization as tflite_quantization
from nnasync.kernels.tflite import svdf as tflite_svdf

_FAMILIES = {
    COMMON.name: (matrices, activation, sums),
    TFLITE.name: (tflite_lstm, tflite_quantization, tflite_svdf),
}

EXTENSION_OPERATIONS: dict[tuple[str, int], Operation] = {
    (name, operation.type): operation
    for name, families in _FAMILIES.items()
    for family in families
    for operation in vars(family).values()
    if isinstance(operation, Operation)
}
"""The operations of each extension, by its name and the type within it."""
