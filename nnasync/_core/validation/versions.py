"""Which HAL versions can express a model or a request, and why others cannot.

Like the framework of the HAL, this looks at the operations of the main subgraph and at the operands
that they use: a model with control flow fails below 1.3 already by its SUBGRAPH operands. Neither
values nor operands that nothing reads or writes count, though a driver may refuse the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nnasync import hal, kernels
from nnasync._core.validation.operations import find_operation, operation_version
from nnasync._core.validation.place import Place
from nnasync._core.validation.pools import POOLS_SINCE, pool_fault
from nnasync._core.validation.tensors import subgraph_tensors
from nnasync.errors import ModelError
from nnasync.hal import (
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Request,
    Struct,
)
from nnasync.kernels import Tensor
from nnasync.kernels.signature import mismatch


class Noncompliance(Struct):
    """What of a model a HAL version cannot express.

    `operations` are indices into the main subgraph, `reasons` one text per fault: each names the
    operation, the operand and the rule. Both are empty where the version can express the model.
    """

    operations: frozenset[int]
    reasons: tuple[str, ...]


class _Fault(Struct):
    """Something that needs a version, None if no version has it; `operation` is its user."""

    since: HalVersion | None
    operation: int | None
    reason: str


def compliant_with(version: HalVersion, thing: Model | Request) -> bool:
    """Returns whether a HAL version can express this without loss.

    A request complies where all its pools are known to the version: tokens need 1.3.
    """
    if isinstance(thing, Model):
        return not noncompliance(version, thing).reasons
    return all(
        version >= HalVersion.V1_3 if isinstance(pool, int) else not pool_fault(pool, version)
        for pool in thing.pools
    )


def minimum_version(model: Model) -> HalVersion:
    """The first HAL version that can express a model; raises ModelError if none can."""
    version = HalVersion.V1_0
    for fault in _faults(model):
        if fault.since is None:
            raise ModelError(fault.reason)
        version = max(version, fault.since)
    return version


def noncompliance(version: HalVersion, model: Model) -> Noncompliance:
    """Returns the operations that a HAL version cannot express, and all reasons why."""
    faults = [f for f in _faults(model, version) if f.since is None or f.since > version]
    return Noncompliance(
        operations=frozenset(f.operation for f in faults if f.operation is not None),
        reasons=tuple(fault.reason for fault in faults),
    )


def unknown_operand(version: HalVersion, model: Model) -> str | None:
    """Returns why a HAL version does not know an operand of the main subgraph, or None."""
    place = Place(model, model.main)
    for index, operand in enumerate(model.main.operands):
        need = _operand_fault(model, operand)
        if need is not None and need[0] > version:
            return f"{place.operand(index)}: {need[1]}"
    return None


def _faults(model: Model, version: HalVersion = HalVersion.V1_0) -> Iterator[_Fault]:
    """Yields everything that needs more than HAL 1.0; reasons compare with `version`."""
    place = Place(model, model.main)
    operands = model.main.operands
    needs = [_operand_fault(model, operand) for operand in operands]
    tensors = subgraph_tensors(model, model.main)
    for index, operation in enumerate(model.main.operations):
        where = place.operation(index)
        least = HalVersion.V1_0
        for kind, indexes in (("input", operation.inputs), ("output", operation.outputs)):
            for position, operand in enumerate(indexes):
                need = needs[operand]
                if need is not None:
                    since, reason = need
                    least = max(least, since)
                    text = f"{where}: {kind} {position}, {place.operand(operand)}: {reason}"
                    yield _Fault(since, index, text)
        yield from _operation_faults(place, index, tensors, least, version)


def _operand_fault(model: Model, operand: Operand) -> tuple[HalVersion, str] | None:
    """The version that an operand needs beyond 1.0, and why."""
    type, name = operand.type, hal.type_name(operand.type)
    since = hal.operand_type_since(type) or HalVersion.V1_3
    if since > HalVersion.V1_0:
        return since, f"{name} exists since {hal.version_name(since)}"
    if not operand.dimensions and not hal.is_scalar(type):
        return HalVersion.V1_2, f"{name} can have an unknown rank since HAL 1.2"
    if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
        pool = model.pools[operand.location.pool_index]
        since = POOLS_SINCE.get(pool.name, HalVersion.V1_3)
        if since > HalVersion.V1_0:
            return since, f"its pool of kind {pool.name!r} exists since {hal.version_name(since)}"
    return None


def _operation_faults(
    place: Place,
    index: int,
    tensors: Sequence[Tensor | None],
    least: HalVersion,
    version: HalVersion,
) -> Iterator[_Fault]:
    """Yields what an operation needs beyond `least`, the version that its operands need anyhow."""
    operation = place.subgraph.operations[index]
    where = place.operation(index)
    try:
        since = operation_version(place, operation, tensors)
    except ModelError as error:
        yield _Fault(None, index, f"{where}: {error}")
        return
    if since > max(least, HalVersion.V1_0):
        rule = find_operation(place.model, operation.type)
        reason = f"exists since {hal.version_name(since)}"
        if rule is not None and rule.since <= version:
            reason = _difference(rule, place, operation, version)
            reason = f"{reason}: this is legal since {hal.version_name(since)}"
        yield _Fault(since, index, f"{where}: {reason}")


def _difference(
    rule: kernels.Operation, place: Place, operation: Operation, version: HalVersion
) -> str:
    """Returns how an operation differs from what a version allows."""
    older = [signature for signature in rule.signatures if signature.since <= version]
    operands = [place.subgraph.operands[index] for index in operation.inputs]
    results = [place.subgraph.operands[index] for index in operation.outputs]
    inputs, outputs = [each.type for each in operands], [each.type for each in results]
    name = hal.version_name(version)
    fitting = [signature for signature in older if signature.accepts(inputs, outputs)]
    if not fitting:
        return f"in {name}, {mismatch(older, inputs, outputs)}"
    position = fitting[0].rank_fault([operand.dimensions for operand in operands])
    if position is not None:
        parameter = (fitting[0].parameters(len(inputs)) or ())[position]
        operand = place.operand(operation.inputs[position])
        ranks = " or ".join(map(str, parameter.ranks))
        return (
            f"input {position} ({parameter.name}), {operand}, has dimensions "
            f"{list(operands[position].dimensions)}; {name} takes rank {ranks}"
        )
    quantized = [
        f"{place.operand(index)} has scale {operand.scale:g} and zero point {operand.zero_point}"
        for index, operand in zip(
            (*operation.inputs, *operation.outputs), (*operands, *results), strict=True
        )
        if operand.scale
    ]
    return f"{name} does not take this quantization ({', '.join(quantized)})"
