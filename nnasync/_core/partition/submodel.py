"""Some operations of a model as a model of their own.

Constants stay where they are: the new model refers to the same values and pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from nnasync import hal
from nnasync.extensions import prefix_of
from nnasync.hal import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    StatePair,
    Subgraph,
)


def submodel(
    model: Model,
    operations: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    name: str,
) -> Model:
    """The model of these operations, in order of execution, that reads and writes these operands.

    It has the operands that the operations use, the subgraphs that they reach, the extensions whose
    types occur, and the states both ends of which it has.
    """
    chosen = [model.main.operations[index] for index in operations]
    used = sorted({index for each in chosen for index in (*each.inputs, *each.outputs)})
    place = {old: new for new, old in enumerate(used)}
    consumers = Counter(index for each in chosen for index in each.inputs)
    subgraphs = _reached(model, [model.main.operands[index] for index in used])
    ends = dict.fromkeys(inputs, OperandLifeTime.SUBGRAPH_INPUT)
    ends |= dict.fromkeys(outputs, OperandLifeTime.SUBGRAPH_OUTPUT)
    operands = tuple(
        _operand(model.main.operands[index], ends.get(index), consumers[index], subgraphs)
        for index in used
    )
    main = Subgraph(
        operands,
        tuple(_renumbered(each, place) for each in chosen),
        tuple(place[index] for index in inputs),
        tuple(place[index] for index in outputs),
    )
    return msgspec.structs.replace(
        _with_subgraphs(model, main, subgraphs), state=_states(model, inputs, outputs), name=name
    )


def compact(model: Model) -> Model:
    """The model with the subgraphs that it refers to and the extensions that occur, and no more."""
    subgraphs = _reached(model, model.main.operands)
    main = _referring(model.main, subgraphs)
    return _with_subgraphs(model, main, subgraphs)


def _with_subgraphs(model: Model, main: Subgraph, subgraphs: Mapping[int, int]) -> Model:
    """The model of a new main subgraph that refers to these, by their new numbers."""
    referenced = tuple(_referring(model.referenced[index], subgraphs) for index in subgraphs)
    prefixes = _prefixes([main, *referenced])
    return msgspec.structs.replace(
        model,
        main=main,
        referenced=referenced,
        extension_name_to_prefix=tuple(
            each for each in model.extension_name_to_prefix if each.prefix in prefixes
        ),
    )


def _operand(
    operand: Operand,
    end: OperandLifeTime | None,
    consumers: int,
    subgraphs: Mapping[int, int],
) -> Operand:
    """An operand as the new model has it: as one of its ends, or with the place it had."""
    if end is not None:
        return msgspec.structs.replace(
            operand, lifetime=end, number_of_consumers=consumers, location=DataLocation()
        )
    return _moved(msgspec.structs.replace(operand, number_of_consumers=consumers), subgraphs)


def _renumbered(operation: Operation, place: Mapping[int, int]) -> Operation:
    return Operation(
        operation.type,
        tuple(place[index] for index in operation.inputs),
        tuple(place[index] for index in operation.outputs),
    )


def _reached(model: Model, operands: Sequence[Operand]) -> dict[int, int]:
    """New numbers of the subgraphs that operands refer to, directly or not, by their old ones."""
    found: dict[int, None] = {}
    pending = list(operands)
    while pending:
        operand = pending.pop()
        index = operand.location.offset
        if operand.lifetime == OperandLifeTime.SUBGRAPH and index not in found:
            found[index] = None
            pending += model.referenced[index].operands
    return {old: new for new, old in enumerate(sorted(found))}


def _referring(subgraph: Subgraph, subgraphs: Mapping[int, int]) -> Subgraph:
    operands = tuple(_moved(operand, subgraphs) for operand in subgraph.operands)
    return msgspec.structs.replace(subgraph, operands=operands)


def _moved(operand: Operand, subgraphs: Mapping[int, int]) -> Operand:
    """An operand that refers to a subgraph, by its new number; others as they are."""
    if operand.lifetime != OperandLifeTime.SUBGRAPH:
        return operand
    location = DataLocation(offset=subgraphs[operand.location.offset])
    return msgspec.structs.replace(operand, location=location)


def _prefixes(subgraphs: Sequence[Subgraph]) -> set[int]:
    """Returns the prefixes of the extensions whose types occur."""
    types = [each.type for subgraph in subgraphs for each in subgraph.operands]
    types += [each.type for subgraph in subgraphs for each in subgraph.operations]
    return {prefix_of(type) for type in types if hal.is_extension(type)}


def _states(model: Model, inputs: Sequence[int], outputs: Sequence[int]) -> tuple[StatePair, ...]:
    main = model.main
    found = []
    for pair in model.state:
        before, after = main.input_indexes[pair.input], main.output_indexes[pair.output]
        if before in inputs and after in outputs:
            found.append(StatePair(inputs.index(before), outputs.index(after)))
    return tuple(found)
