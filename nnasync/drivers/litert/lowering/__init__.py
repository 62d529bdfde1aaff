"""How each operation becomes operators of LiteRT: a file per family, one function per operation."""

from __future__ import annotations

from collections.abc import Mapping

from nnasync.drivers.litert.graph import Lower
from nnasync.drivers.litert.lowering import (
    activation,
    elementwise,
    extension,
    joining,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    windows,
)
from nnasync.extensions import TfliteOperation
from nnasync.hal import OperationType

__all__ = ["EXTENSION_LOWERINGS", "LOWERINGS", "Lower"]

_FAMILIES = (
    activation,
    elementwise,
    joining,
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
EXTENSION_LOWERINGS: Mapping[TfliteOperation, Lower] = extension.LOWERINGS
