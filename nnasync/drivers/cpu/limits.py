"""What one execution may take on the reference device: memory, depth, operations.

Subgraphs that refer to others twice each make a few lines into more operations than can ever run,
so what a model would execute is counted before it is compiled: both branches of an IF, and one turn
of a WHILE, whose loops have a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, Subgraph

__all__ = ["MAX_EXECUTION_BYTES", "MAX_NESTING", "MAX_OPERATIONS", "check_memory", "check_nesting"]

MAX_EXECUTION_BYTES = 1 << 32
"""Most bytes that the operands and the scratch of one execution may take together, by default."""
MAX_NESTING = 64
"""How deep subgraphs may refer to others: each costs some of Python's stack."""
MAX_OPERATIONS = 1_000_000
"""Most operations that one execution may come to."""


def check_memory(nbytes: int, limit_bytes: int = MAX_EXECUTION_BYTES) -> None:
    """Raise ModelError where an execution would need more than the limit."""
    if nbytes > limit_bytes:
        raise ModelError(f"an execution needs {nbytes} bytes of memory, of at most {limit_bytes}")


def check_nesting(model: Model) -> None:
    """Raise ModelError where subgraphs nest too deep, or are referred to too often.

    No subgraph may reach itself.
    """
    known: dict[int, tuple[int, int]] = {}
    targets = [list(_references(subgraph)) for subgraph in model.referenced]
    pending = list(range(len(targets)))
    while pending:
        index = pending[-1]
        unknown = [target for target in targets[index] if target not in known]
        if index in known or not unknown:
            pending.pop()
            known[index] = _measure(model.referenced[index], [known[t] for t in targets[index]])
        else:
            pending += set(unknown)
    depth, operations = _measure(model.main, [known[t] for t in _references(model.main)])
    if depth > MAX_NESTING:
        raise ModelError(f"subgraphs nest {depth} deep, of at most {MAX_NESTING}")
    if operations > MAX_OPERATIONS:
        raise ModelError(
            f"an execution may come to {operations:.3g} operations, of at most {MAX_OPERATIONS}"
        )


def _references(subgraph: Subgraph) -> Iterator[int]:
    """The subgraphs that operations refer to, as often as they do."""
    for operation in subgraph.operations:
        for index in operation.inputs:
            operand = subgraph.operands[index]
            if operand.lifetime == OperandLifeTime.SUBGRAPH:
                yield operand.location.offset


def _measure(subgraph: Subgraph, inner: list[tuple[int, int]]) -> tuple[int, int]:
    """How deep a subgraph nests, and how many operations it comes to; less than 2**64."""
    depth = 1 + max((depth for depth, _ in inner), default=-1)
    operations = len(subgraph.operations) + sum(operations for _, operations in inner)
    return depth, min(operations, 2**63)
