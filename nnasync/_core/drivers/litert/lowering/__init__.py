"""How each operation becomes operators of LiteRT: a file per family, one function per operation."""

from __future__ import annotations

from collections.abc import Mapping

from nnasync._core.drivers.litert.graph import Lower
from nnasync._core.drivers.litert.lowering import (
    activation,
    bands,
    cells,
    concatenation,
    elementwise,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    tflite_operations,
    windows,
)
from nnasync.extensions import TfliteOperation
from nnasync.hal import OperationType

__all__ = ["EXTENSION_LOWERINGS", "LOWERINGS", "PRODUCTS", "Lower"]

_FAMILIES = (
    activation,
    elementwise,
    concatenation,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    windows,
)

LOWERINGS: Mapping[OperationType, Lower] = {
    type: lower for family in _FAMILIES for type, lower in family.LOWERINGS.items()
}
PRODUCTS: Mapping[OperationType, Lower] = {**bands.PRODUCTS, **cells.PRODUCTS}
"""Other forms, of matrix products, which raise Unsupported, before they add anything, where they do
not suit."""

EXTENSION_LOWERINGS: Mapping[TfliteOperation, Lower] = tflite_operations.LOWERINGS
