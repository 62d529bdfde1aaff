"""Whether an IF or a WHILE fits the subgraphs that it runs.

An inner operand and the outer one that feeds it, or takes it up, must be alike: same type, scale,
zero point and extra parameters, and same rank and dimensions where both are known. The HAL asks
more of the operands of a WHILE that a driver gets: that their sizes be known. Its framework does
without, and so does this check, since our reference runs loops whose tensors grow.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync import hal
from nnasync._core.validation.place import Place
from nnasync.errors import ModelError
from nnasync.hal import (
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
    combine_dimensions,
)


def check_if(place: Place, operation: Operation) -> None:
    """Raise ModelError unless this is a legal IF: condition, two subgraphs, their inputs."""
    _check_counts(operation, "a condition and two subgraphs")
    operands = place.subgraph.operands
    _check_condition("input 0", operands[operation.inputs[0]])
    outer = [operands[index] for index in operation.inputs[3:]]
    results = [operands[index] for index in operation.outputs]
    for position, name in ((1, "then"), (2, "else")):
        branch = _referred(place, operation, position)
        _check_alike(f"input {{}} of the {name} branch", _inputs(branch), "input {}", outer, 3)
        _check_alike(f"output {{}} of the {name} branch", _outputs(branch), "output {}", results)


def check_while(place: Place, operation: Operation) -> None:
    """Raise ModelError unless this is a legal WHILE: condition, body, their inputs."""
    _check_counts(operation, "two subgraphs and a value")
    operands = place.subgraph.operands
    outer = [operands[index] for index in operation.inputs[2:]]
    results = [operands[index] for index in operation.outputs]
    condition, body = (_referred(place, operation, position) for position in (0, 1))
    _check_alike("input {} of the condition", _inputs(condition), "input {}", outer, 2)
    if len(condition.output_indexes) != 1:
        raise ModelError(f"the condition has {len(condition.output_indexes)} outputs, expected 1")
    _check_condition("output 0 of the condition", _outputs(condition)[0])
    before, after = _inputs(body), _outputs(body)
    _check_alike("input {} of the body", before, "input {}", outer, 2)
    if not len(results) <= len(after) <= len(before):
        raise ModelError(
            f"the body has {len(after)} outputs; expected from {len(results)}, the outputs of the "
            f"operation, to {len(before)}, the inputs of the body"
        )
    _check_alike("output {} of the body", after[: len(results)], "output {}", results)
    carried = before[: len(after)]
    _check_alike("output {} of the body", after, "input {} of the body", carried)


def _check_counts(operation: Operation, needed: str) -> None:
    if len(operation.inputs) < 3:
        raise ModelError(f"has {len(operation.inputs)} inputs; it needs {needed} at least")
    if not operation.outputs:
        raise ModelError("has no outputs; it needs one at least")


def _referred(place: Place, operation: Operation, position: int) -> Subgraph:
    operand = place.subgraph.operands[operation.inputs[position]]
    if operand.type != OperandType.SUBGRAPH:
        raise ModelError(f"input {position} is {hal.type_name(operand.type)}, expected SUBGRAPH")
    return place.model.referenced[operand.location.offset]


def _check_condition(where: str, operand: Operand) -> None:
    if operand.type != OperandType.TENSOR_BOOL8 or operand.dimensions != (1,):
        raise ModelError(
            f"{where} is {hal.type_name(operand.type)} {list(operand.dimensions)}, "
            "expected TENSOR_BOOL8 [1]"
        )
    if operand.lifetime == OperandLifeTime.NO_VALUE:
        raise ModelError(f"{where} must not be omitted")


def _inputs(subgraph: Subgraph) -> list[Operand]:
    return [subgraph.operands[index] for index in subgraph.input_indexes]


def _outputs(subgraph: Subgraph) -> list[Operand]:
    return [subgraph.operands[index] for index in subgraph.output_indexes]


def _check_alike(
    first_name: str,
    first: Sequence[Operand],
    second_name: str,
    second: Sequence[Operand],
    offset: int = 0,
) -> None:
    """Pairs must be alike; the names get the position, that of `second` counted from `offset`."""
    if len(first) != len(second):
        kind = first_name.replace(" {}", "s")
        raise ModelError(f"there are {len(first)} {kind}, expected {len(second)}")
    for position, (one, other) in enumerate(zip(first, second, strict=True)):
        fault = _difference(one, other)
        if fault:
            names = first_name.format(position), second_name.format(position + offset)
            raise ModelError(f"{names[0]} and {names[1]} are not alike: {fault}")


def _difference(one: Operand, other: Operand) -> str | None:
    if one.type != other.type:
        return f"{hal.type_name(one.type)} and {hal.type_name(other.type)}"
    if combine_dimensions(one.dimensions, other.dimensions) is None:
        return f"dimensions {list(one.dimensions)} and {list(other.dimensions)}"
    if (one.scale, one.zero_point) != (other.scale, other.zero_point):
        return (
            f"scale {one.scale:g} zero point {one.zero_point} and "
            f"scale {other.scale:g} zero point {other.zero_point}"
        )
    return None if one.extra_params == other.extra_params else "their extra parameters"
