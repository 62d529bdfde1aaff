"""Whether operands and operations form a graph: indices, inputs, outputs, order, references.

Everything here looks at one subgraph, but the references between subgraphs and the states.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnasync import hal
from nnasync._core.validation.place import Place
from nnasync.errors import ModelError
from nnasync.extensions import extension_of
from nnasync.hal import Model, Operand, OperandLifeTime, OperandType, Subgraph

_WRITTEN = (OperandLifeTime.TEMPORARY_VARIABLE, OperandLifeTime.SUBGRAPH_OUTPUT)


def check_indices(place: Place) -> None:
    """Operations exist, their operands exist, and what they write may be written."""
    subgraph = place.subgraph
    count = len(subgraph.operands)
    for index, operation in enumerate(subgraph.operations):
        if not _is_operation(place.model, operation.type):
            raise ModelError(f"{place.operation(index)}: no such operation in HAL 1.3")
        for kind, operands in (("input", operation.inputs), ("output", operation.outputs)):
            for position, operand in enumerate(operands):
                if not 0 <= operand < count:
                    raise ModelError(
                        f"{place.operation(index)}: {kind} {position} is operand {operand}, but "
                        f"there are {count}"
                    )
        for position, operand in enumerate(operation.outputs):
            lifetime = subgraph.operands[operand].lifetime
            if lifetime not in _WRITTEN:
                raise ModelError(
                    f"{place.operation(index)}: output {position} is {place.operand(operand)}, a "
                    f"{lifetime.name}; only temporaries and subgraph outputs can be written"
                )


def _is_operation(model: Model, type: int) -> bool:
    if hal.is_extension(type):
        return extension_of(model.extension_name_to_prefix, type) is not None
    return hal.operation_since(type) is not None


def check_interface(place: Place) -> None:
    """The lists of inputs and outputs name exactly the operands of these lifetimes, each once."""
    subgraph = place.subgraph
    for name, indexes, lifetime in (
        ("input_indexes", subgraph.input_indexes, OperandLifeTime.SUBGRAPH_INPUT),
        ("output_indexes", subgraph.output_indexes, OperandLifeTime.SUBGRAPH_OUTPUT),
    ):
        for index in indexes:
            if not 0 <= index < len(subgraph.operands):
                raise ModelError(
                    f"{place.prefix}{name} lists operand {index}, but there are "
                    f"{len(subgraph.operands)}"
                )
            if subgraph.operands[index].lifetime != lifetime:
                raise ModelError(
                    f"{place.operand(index)} is listed in {name}, so its lifetime must be "
                    f"{lifetime.name}, not {subgraph.operands[index].lifetime.name}"
                )
        listed = set(indexes)
        if len(listed) < len(indexes):
            raise ModelError(f"{place.prefix}{name} lists an operand twice: {list(indexes)}")
        for index, operand in enumerate(subgraph.operands):
            if operand.lifetime == lifetime and index not in listed:
                raise ModelError(f"{place.operand(index)} is a {lifetime.name} missing in {name}")


def check_graph(place: Place) -> None:
    """Operations stand in execution order, each operand is written once, consumers are counted."""
    operands = place.subgraph.operands
    known = [operand.lifetime not in _WRITTEN for operand in operands]
    consumers = [0] * len(operands)
    for index, operation in enumerate(place.subgraph.operations):
        for position, operand in enumerate(operation.inputs):
            consumers[operand] += 1
            if not known[operand]:
                raise ModelError(
                    f"{place.operation(index)}: input {position} is {place.operand(operand)}, "
                    "which no earlier operation writes"
                )
        for operand in operation.outputs:
            if known[operand]:
                raise ModelError(
                    f"{place.operation(index)} writes {place.operand(operand)}, which was written "
                    "before"
                )
            known[operand] = True
    for index, written in enumerate(known):
        if not written:
            lifetime = operands[index].lifetime.name
            raise ModelError(f"{place.operand(index)} is a {lifetime} never written")
    for index, operand_ in enumerate(operands):
        if operand_.number_of_consumers != consumers[index]:
            raise ModelError(
                f"{place.operand(index)} has number_of_consumers {operand_.number_of_consumers}, "
                f"but operations read it {consumers[index]} times"
            )


def check_references(model: Model) -> None:
    """Checks that no subgraph reaches itself; without recursion, as a file chooses the depth."""
    targets = [_references(subgraph) for subgraph in model.referenced]
    done: set[int] = set()
    for start in range(len(targets)):
        path: dict[int, Iterator[int]] = {}
        if start not in done:
            path[start] = iter(targets[start])
        while path:
            current = next(reversed(path))
            target = next(path[current], None)
            if target is None:
                done.add(current)
                del path[current]
            elif target in path:
                raise ModelError(f"referenced subgraph {target} refers to itself")
            elif target not in done:
                path[target] = iter(targets[target])


def _references(subgraph: Subgraph) -> list[int]:
    return [o.location.offset for o in subgraph.operands if o.type == OperandType.SUBGRAPH]


def check_states(model: Model) -> None:
    """Checks that each state names an alike input and output of the main subgraph, once."""
    main = model.main
    for number, pair in enumerate(model.state):
        for kind, position, count in (
            ("input", pair.input, len(main.input_indexes)),
            ("output", pair.output, len(main.output_indexes)),
        ):
            if not 0 <= position < count:
                raise ModelError(
                    f"state {number}: {kind} {position} is not one of the model's {count} {kind}s"
                )
        before = main.operands[main.input_indexes[pair.input]]
        after = main.operands[main.output_indexes[pair.output]]
        if _meaning(before) != _meaning(after):
            raise ModelError(
                f"state {number}: input {pair.input} is {_describe(before)}, but output "
                f"{pair.output} is {_describe(after)}; they must be alike"
            )
    for kind, used in (
        ("input", [pair.input for pair in model.state]),
        ("output", [pair.output for pair in model.state]),
    ):
        if len(set(used)) < len(used):
            raise ModelError(f"two states use the same {kind}: {used}")


def _meaning(operand: Operand) -> tuple[object, ...]:
    return (
        operand.type,
        operand.dimensions,
        operand.scale,
        operand.zero_point,
        operand.extra_params,
    )


def _describe(operand: Operand) -> str:
    text = f"{hal.type_name(operand.type)} {list(operand.dimensions)}"
    if operand.scale:
        text += f" scale {operand.scale:g} zero point {operand.zero_point}"
    return text
