"""Which operations of a model have kernels here, and what they write."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, OperationType, Subgraph
from nnasync.kernels import Operation, Tensor
from nnasync.validation import find_operation, subgraph_tensors

__all__ = ["declared", "operation_at", "supported_operations"]

_CONTROL_FLOW = (OperationType.IF, OperationType.WHILE)


def operation_at(model: Model, subgraph: Subgraph, position: int) -> Operation:
    """The kernels of an operation of a subgraph; raises ModelError if there are none."""
    operation = subgraph.operations[position]
    known = find_operation(model, operation.type)
    if known is None:
        raise ModelError(f"{hal.operation_name(operation.type)} is not supported")
    return known


def supported_operations(model: Model, limit_bytes: int) -> list[bool]:
    """Whether each operation of the main subgraph, with what it refers to, can run.

    Subgraphs must not nest deeper than `limits.check_nesting` allows.
    An operation whose outputs take more than `limit_bytes` cannot.
    """
    return _supported(model, model.main, {}, limit_bytes)


def _supported(
    model: Model, subgraph: Subgraph, known: dict[int, bool], limit_bytes: int
) -> list[bool]:
    """The answers for a subgraph; `known` are those for referenced subgraphs as a whole."""
    tensors = subgraph_tensors(model, subgraph)
    return [
        _refers_to_supported(model, subgraph, operation, known, limit_bytes)
        if operation.type in _CONTROL_FLOW
        else _is_supported(model, subgraph, operation, tensors)
        and _size_of_outputs(tensors, operation) <= limit_bytes
        for operation in subgraph.operations
    ]


def _refers_to_supported(
    model: Model,
    subgraph: Subgraph,
    operation: hal.Operation,
    known: dict[int, bool],
    limit_bytes: int,
) -> bool:
    targets = [
        subgraph.operands[index].location.offset
        for index in operation.inputs
        if subgraph.operands[index].lifetime == OperandLifeTime.SUBGRAPH
    ]
    for target in targets:
        if target not in known:
            known[target] = all(_supported(model, model.referenced[target], known, limit_bytes))
    return all(known[target] for target in targets)


def _is_supported(
    model: Model, subgraph: Subgraph, operation: hal.Operation, tensors: list[Tensor | None]
) -> bool:
    """Whether an operation can run; `tensors` is completed with what its rule infers."""
    known = find_operation(model, operation.type)
    if known is None:
        return False
    types = [subgraph.operands[index].type for index in operation.outputs]
    try:
        inferred = known.infer([tensors[index] for index in operation.inputs], types)
    except ModelError:
        return False
    for index, rule in zip(operation.outputs, inferred, strict=True):
        given = tensors[index]
        if given is None:
            return False
        if rule.is_known and not given.is_known:
            tensors[index] = msgspec.structs.replace(given, shape=rule.shape, exact=rule.exact)
    return True


def _size_of_outputs(tensors: Sequence[Tensor | None], operation: hal.Operation) -> int:
    """Bytes of the outputs whose shape is known; an execution holds them all at once."""
    outputs = [tensors[index] for index in operation.outputs]
    return sum(each.size * each.dtype.itemsize for each in outputs if each and each.is_known)


def declared(tensors: Sequence[Tensor | None], indexes: Sequence[int]) -> list[Tensor]:
    """The operands that an operation writes; raises ModelError for one without a numpy type."""
    found = []
    for index in indexes:
        tensor = tensors[index]
        if tensor is None or not hal.has_dtype(tensor.type):
            raise ModelError(f"operand {index} is an output that cannot hold a value")
        found.append(tensor)
    return found
