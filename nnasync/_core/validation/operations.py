"""Whether each operation takes its operands, and since which HAL version.

Types, numbers, known ranks and quantization of the operands are compared with the signatures in
`kernels.OPERATIONS`; the types of omitted operands count too. Beyond that the shape rule of an
operation of the main subgraph is tried where all it needs is known: what it refuses here would fail
in every run. Operations of referenced subgraphs may never run, so that only their signatures count.

Operations of an extension are accepted without a look at their operands, unless the extension's
kernels are known; OEM_OPERATION always is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync import hal, kernels
from nnasync._core.validation.control_flow import check_if, check_while
from nnasync._core.validation.place import Place
from nnasync._core.validation.tensors import subgraph_tensors
from nnasync.errors import ModelError
from nnasync.extensions import WHOLE_FILES, extension_of, operation_label
from nnasync.hal import HalVersion, Model, Operation, OperationType, combine_dimensions
from nnasync.kernels import Arguments, Signature, Tensor


def check_operations(place: Place) -> None:
    """Raise ModelError for the first operation whose operands do not fit."""
    tensors = subgraph_tensors(place.model, place.subgraph)
    for index, operation in enumerate(place.subgraph.operations):
        try:
            operation_version(place, operation, tensors)
            if place.is_main:
                _check_shapes(place, operation, tensors)
        except ModelError as error:
            raise ModelError(f"{place.operation(index)}: {error}") from error


def find_operation(model: Model, type: int) -> kernels.Operation | None:
    """The signatures, shape rule and kernels of an operation type; None if there are none."""
    if not hal.is_extension(type):
        return kernels.OPERATIONS.get(type)  # type: ignore[call-overload, no-any-return]
    found = extension_of(model.extension_name_to_prefix, type)
    if found is None or found[0] in WHOLE_FILES:
        return None
    return kernels.EXTENSION_OPERATIONS.get(found)


def operation_version(
    place: Place, operation: Operation, tensors: Sequence[Tensor | None]
) -> HalVersion:
    """The first HAL version in which the operation is legal with its operands.

    `tensors` are those of the subgraph's operands. Raises ModelError if no version takes them.
    """
    if operation.type == OperationType.IF:
        check_if(place, operation)
        return HalVersion.V1_3
    if operation.type == OperationType.WHILE:
        check_while(place, operation)
        return HalVersion.V1_3
    rule = find_operation(place.model, operation.type)
    if rule is None:
        return hal.operation_since(operation.type) or HalVersion.V1_3
    signatures = fitting_signatures(rule, place, operation)
    outputs = [tensor for index in operation.outputs if (tensor := tensors[index]) is not None]
    version = rule.minimum_version([tensors[index] for index in operation.inputs], outputs)
    since = min(signature.since for signature in signatures)
    if hal.is_extension(operation.type):
        since = max(since, HalVersion.V1_2)
    return max(version, since)


def fitting_signatures(
    rule: kernels.Operation, place: Place, operation: Operation
) -> list[Signature]:
    """The signatures of exactly these operand types, omitted ones included; ModelError if none."""
    operands = place.subgraph.operands
    inputs = [operands[index].type for index in operation.inputs]
    outputs = [operands[index].type for index in operation.outputs]
    if not outputs:
        raise ModelError(f"{rule.name}: has no outputs")
    found = [signature for signature in rule.signatures if signature.accepts(inputs, outputs)]
    if not found:
        rule.signature(inputs, outputs)
    return found


def _check_shapes(place: Place, operation: Operation, tensors: Sequence[Tensor | None]) -> None:
    rule = find_operation(place.model, operation.type)
    if rule is None:
        return
    inputs = [tensors[operand] for operand in operation.inputs]
    outputs = [place.subgraph.operands[operand] for operand in operation.outputs]
    inferred = rule.infer(inputs, [operand.type for operand in outputs])
    for position, (operand, expected) in enumerate(zip(outputs, inferred, strict=True)):
        if expected.is_known and combine_dimensions(operand.dimensions, expected.shape) is None:
            raise ModelError(
                f"output {position}, {place.operand(operation.outputs[position])}, has shape "
                f"{list(operand.dimensions)}; the operation's rule gives {list(expected.shape)}"
            )


def read_operation(
    model: Model, operation: Operation, tensors: list[Tensor | None]
) -> tuple[Arguments, list[Tensor]]:
    """Returns an operation's arguments and outputs; `tensors` gets the shapes that it infers.

    Raises ModelError where the operation is not known, or not legal with these operands.
    """
    known = find_operation(model, operation.type)
    if known is None:
        name = operation_label(model.extension_name_to_prefix, operation.type)
        raise ModelError(f"{name} is not known here")
    inputs = [tensors[index] for index in operation.inputs]
    given = [tensor for index in operation.outputs if (tensor := tensors[index]) is not None]
    if len(given) < len(operation.outputs):
        raise ModelError("it has an output that cannot hold a value")
    types = [tensor.type for tensor in given]
    outputs = [
        tensor
        if tensor.is_known or not rule.is_known
        else msgspec.structs.replace(tensor, shape=rule.shape, exact=rule.exact)
        for tensor, rule in zip(given, known.infer(inputs, types), strict=True)
    ]
    for index, tensor in zip(operation.outputs, outputs, strict=True):
        tensors[index] = tensor
    return known.arguments(inputs, types), outputs
