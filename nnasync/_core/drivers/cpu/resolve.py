"""Which operations of a model have kernels here, and what they write."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync import hal
from nnasync._core.validation import find_operation, read_operation, subgraph_tensors
from nnasync.errors import ModelError
from nnasync.extensions import operation_label
from nnasync.hal import Model, OperandLifeTime, OperationType, Subgraph
from nnasync.kernels import Operation, Tensor

_CONTROL_FLOW = (OperationType.IF, OperationType.WHILE)


def operation_at(model: Model, subgraph: Subgraph, position: int) -> Operation:
    """The kernels of an operation of a subgraph; raises ModelError if there are none."""
    operation = subgraph.operations[position]
    known = find_operation(model, operation.type)
    if known is None:
        name = operation_label(model.extension_name_to_prefix, operation.type)
        raise ModelError(f"{name} is not supported")
    return known


def supported_operations(model: Model, limit_bytes: int) -> list[bool]:
    """Returns whether each operation of the main subgraph, with what it refers to, can run.

    Subgraphs must not nest deeper than `execution_limits.check_nesting` allows. An operation whose
    outputs take more than `limit_bytes` cannot.
    """
    return [reason is None for reason in reasons(model, limit_bytes)]


def reasons(model: Model, limit_bytes: int) -> list[str | None]:
    """Returns for each operation of the main subgraph why it cannot run; None if it can."""
    return _reasons(model, model.main, {}, limit_bytes)


def _reasons(
    model: Model, subgraph: Subgraph, known: dict[int, str | None], limit_bytes: int
) -> list[str | None]:
    """The answers for a subgraph; `known` are those for referenced subgraphs as a whole."""
    tensors = subgraph_tensors(model, subgraph)
    return [
        _reason_within(model, subgraph, operation, known, limit_bytes)
        if operation.type in _CONTROL_FLOW
        else _reason(model, operation, tensors) or _too_large(tensors, operation, limit_bytes)
        for operation in subgraph.operations
    ]


def _reason_within(
    model: Model,
    subgraph: Subgraph,
    operation: hal.Operation,
    known: dict[int, str | None],
    limit_bytes: int,
) -> str | None:
    """Returns why a subgraph that an operation refers to cannot run."""
    targets = [
        subgraph.operands[index].location.offset
        for index in operation.inputs
        if subgraph.operands[index].lifetime == OperandLifeTime.SUBGRAPH
    ]
    for target in targets:
        if target not in known:
            inside = _reasons(model, model.referenced[target], known, limit_bytes)
            known[target] = next(
                (
                    f"operation {n} of subgraph {target}: {why}"
                    for n, why in enumerate(inside)
                    if why
                ),
                None,
            )
    return next((reason for target in targets if (reason := known[target]) is not None), None)


def _reason(model: Model, operation: hal.Operation, tensors: list[Tensor | None]) -> str | None:
    """Returns why an operation cannot run; `tensors` is completed with what its rule infers."""
    if find_operation(model, operation.type) is None:
        return "the reference has no kernels for it"
    try:
        read_operation(model, operation, tensors)
    except ModelError as error:
        return str(error)
    return None


def _too_large(
    tensors: Sequence[Tensor | None], operation: hal.Operation, limit_bytes: int
) -> str | None:
    """Returns why the outputs of known shape need too much memory, which they take all at once."""
    outputs = [tensors[index] for index in operation.outputs]
    size = sum(each.size * each.dtype.itemsize for each in outputs if each and each.is_known)
    if size <= limit_bytes:
        return None
    return f"its outputs take {size} bytes, more than the {limit_bytes} that an execution may"


def declared(tensors: Sequence[Tensor | None], indexes: Sequence[int]) -> list[Tensor]:
    """The operands that an operation writes; raises ModelError for one without a numpy type."""
    found = []
    for index in indexes:
        tensor = tensors[index]
        if tensor is None or not hal.has_dtype(tensor.type):
            raise ModelError(f"operand {index} is an output that cannot hold a value")
        found.append(tensor)
    return found
