"""The operations of the extension org.nnasync.common."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.extensions import COMMON, CommonOperation
from nnasync.kernels.facts import RELAXED, Facts
from nnasync.kernels.operation import Compute, Operation, Rule, Signature

__all__ = ["common_operation"]


def common_operation(
    type: CommonOperation,
    signatures: Sequence[Signature],
    rule: Rule,
    compute: Compute,
    *,
    moves: bool = False,
    facts: Facts = RELAXED,
) -> Operation:
    """An operation of the extension, named in full in messages."""
    name = f"{COMMON.name}.{type.name}"
    return Operation(type, signatures, rule, compute, name=name, moves=moves, facts=facts)
