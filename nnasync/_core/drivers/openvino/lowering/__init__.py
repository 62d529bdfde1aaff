"""What OpenVINO computes, by family of operations: types, conditions and translation together."""

from __future__ import annotations

from nnasync._core.drivers.openvino.lowered import Rules
from nnasync._core.drivers.openvino.lowering import (
    activation,
    common_operations,
    elementwise,
    movement,
    products,
    reductions,
    windows,
)

__all__ = ["RULES"]

RULES: Rules = {
    **activation.RULES,
    **common_operations.RULES,
    **elementwise.RULES,
    **movement.RULES,
    **products.RULES,
    **reductions.RULES,
    **windows.RULES,
}
"""Every operation that is lowered."""
