"""Which operations of a model have kernels here, and what they write."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, OperationType, Subgraph
from nnasync.kernels import Operation, Tensor
from nnasync.validation import find_operation, subgraph_tensors

__all__ = ["declared", "is_supported", "operation_at"]

_CONTROL_FLOW = (OperationType.IF, OperationType.WHILE)


def operation_at(model: Model, subgraph: Subgraph, position: int) -> Operation:
    """The kernels of an operation of a subgraph; raises ModelError if there are none."""
    operation = subgraph.operations[position]
    known = find_operation(model, operation.type)
    if known is None:
        raise ModelError(f"{hal.operation_name(operation.type)} is not supported")
    return known


def is_supported(
    model: Model, subgraph: Subgraph, operation: hal.Operation, tensors: list[Tensor | None]
) -> bool:
    """Whether an operation can run; `tensors` is completed with what its rule infers."""
    if operation.type in _CONTROL_FLOW:
        return all(
            _runs(model, model.referenced[subgraph.operands[index].location.offset])
            for index in operation.inputs
            if subgraph.operands[index].lifetime == OperandLifeTime.SUBGRAPH
        )
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


def _runs(model: Model, subgraph: Subgraph) -> bool:
    tensors = subgraph_tensors(model, subgraph)
    return all(is_supported(model, subgraph, each, tensors) for each in subgraph.operations)


def declared(tensors: Sequence[Tensor | None], indexes: Sequence[int]) -> list[Tensor]:
    """The operands that an operation writes; raises ModelError for one without a numpy type."""
    found = []
    for index in indexes:
        tensor = tensors[index]
        if tensor is None or not hal.has_dtype(tensor.type):
            raise ModelError(f"operand {index} is an output that cannot hold a value")
        found.append(tensor)
    return found
