"""What one execution may take on the reference device: memory, depth, operations.

Subgraphs that refer to others twice each make a few lines into more operations than can ever run,
so what a model would execute is counted before it is compiled: the longer branch of an IF, and one
turn of a WHILE, whose loops have a timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, Operation, OperationType, Struct, Subgraph

MAX_EXECUTION_BYTES = 1 << 32
"""Most bytes that the operands and the scratch of one execution may take together, by default."""
MAX_NESTING = 64
"""How deep subgraphs may refer to others: each costs some of Python's stack."""
MAX_OPERATIONS = 1_000_000
"""Most operations that one execution may come to."""
_COUNTLESS = 2**63


def check_memory(nbytes: int, limit_bytes: int = MAX_EXECUTION_BYTES) -> None:
    """Raise ModelError where an execution would need more than the limit."""
    if nbytes > limit_bytes:
        raise ModelError(f"an execution needs {nbytes} bytes of memory, of at most {limit_bytes}")


def check_nesting(model: Model) -> None:
    """Raise ModelError where subgraphs nest too deep, or are referred to too often.

    No subgraph may reach itself.
    """
    known: dict[int, _Extent] = {}
    pending = list(range(len(model.referenced)))
    while pending:
        subgraph = model.referenced[pending[-1]]
        unknown = {
            target
            for operation in subgraph.operations
            for target in _references(subgraph, operation)
            if target not in known
        }
        if unknown:
            pending += unknown
        else:
            known[pending.pop()] = _extent(subgraph, known)
    extent = _extent(model.main, known)
    if extent.depth > MAX_NESTING:
        raise ModelError(f"subgraphs nest {extent.depth} deep, of at most {MAX_NESTING}")
    if extent.operations > MAX_OPERATIONS:
        raise ModelError(
            f"an execution may come to {extent.operations:.3g} operations, of at most "
            f"{MAX_OPERATIONS}"
        )


class _Extent(Struct, frozen=True):
    """How deep a subgraph nests, and how many operations an execution of it may come to."""

    depth: int
    operations: int


def _extent(subgraph: Subgraph, known: Mapping[int, _Extent]) -> _Extent:
    depth, operations = 0, len(subgraph.operations)
    for operation in subgraph.operations:
        inner = [known[target] for target in _references(subgraph, operation)]
        if inner:
            depth = max(depth, 1 + max(extent.depth for extent in inner))
            counts = [extent.operations for extent in inner]
            operations += max(counts) if operation.type == OperationType.IF else sum(counts)
    return _Extent(depth, min(operations, _COUNTLESS))


def _references(subgraph: Subgraph, operation: Operation) -> Iterator[int]:
    """The subgraphs that an operation refers to."""
    for index in operation.inputs:
        operand = subgraph.operands[index]
        if operand.lifetime == OperandLifeTime.SUBGRAPH:
            yield operand.location.offset
