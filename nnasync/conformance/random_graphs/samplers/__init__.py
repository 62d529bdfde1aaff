"""Samplers: for each operation, a function that draws arguments with which it is legal.

A sampler chooses shapes first and then whatever depends on them, so that what it draws is legal by
construction. Only operands beyond the limits are found out afterwards. An operation of one or two
tensors and nothing else needs no sampler of its own, if any values will do.
"""

from __future__ import annotations

from collections.abc import Mapping

from nnasync.conformance.random_graphs.samplers import (
    convolutions,
    detection,
    elementwise,
    movement,
    recurrent,
    reduction,
    tables,
)
from nnasync.conformance.random_graphs.sketch import Sampler
from nnasync.hal import OperationType
from nnasync.kernels import OPERATIONS

__all__ = ["SAMPLERS"]

SAMPLERS: Mapping[OperationType, Sampler] = {
    **{type: sampler for type, each in OPERATIONS.items() if (sampler := elementwise.usual(each))},
    **detection.SAMPLERS,
    **elementwise.SAMPLERS,
    **tables.SAMPLERS,
    **movement.SAMPLERS,
    **recurrent.SAMPLERS,
    **reduction.SAMPLERS,
    **convolutions.SAMPLERS,
}
"""Operations that random graphs have: all but IF, WHILE and OEM_OPERATION."""
