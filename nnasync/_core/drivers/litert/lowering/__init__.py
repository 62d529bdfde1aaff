"""How each operation becomes operators of LiteRT: a file per family, one function per operation."""

from __future__ import annotations

from collections.abc import Mapping

from nnasync._core.drivers.litert.graph import Lower
from nnasync._core.drivers.litert.lowering import (
    activation,
    bands,
    cells,
    common_operations,
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
from nnasync.extensions import COMMON, TFLITE
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

EXTENSION_LOWERINGS: Mapping[tuple[str, int], Lower] = {
    **{(COMMON.name, type): lower for type, lower in common_operations.LOWERINGS.items()},
    **{(TFLITE.name, type): lower for type, lower in tflite_operations.LOWERINGS.items()},
}
"""Those of extensions, by name and type within; all of org.nnasync.tflite are the engine's own."""
