"""Small models with control flow and states, and the parts that they are made of."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.model import ModelBuilder
from nnasync.hal import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)

replace = msgspec.structs.replace

INPUT = OperandLifeTime.SUBGRAPH_INPUT
OUTPUT = OperandLifeTime.SUBGRAPH_OUTPUT
TEMPORARY = OperandLifeTime.TEMPORARY_VARIABLE
COPY = OperandLifeTime.CONSTANT_COPY
REFERENCE = OperandLifeTime.CONSTANT_REFERENCE
FLOAT = OperandType.TENSOR_FLOAT32
BOOL8 = OperandType.TENSOR_BOOL8


def example() -> Model:
    """y = (x + h) * factor, where h is a state that becomes x + h."""
    m = ModelBuilder("example")
    x, h = m.input("x", (2, 3)), m.state("h", (2, 3))
    total = m.add(x, h)
    m.output("y", m.mul(total, m.constant(np.array([2.0]), name="factor")))
    m.update(h, total)
    return m.build()


EXAMPLE = example()


def with_main(model: Model, **fields: Any) -> Model:
    """The model with fields of its main subgraph changed."""
    return replace(model, main=replace(model.main, **fields))


def changed(model: Model, index: int, **fields: Any) -> Model:
    """The model with fields of one operand of the main subgraph changed."""
    operands = list(model.main.operands)
    operands[index] = replace(operands[index], **fields)
    return with_main(model, operands=tuple(operands))


def find(model: Model, name: str) -> int:
    """Index of the main subgraph's operand of this name."""
    return [operand.name for operand in model.main.operands].index(name)


def counted(subgraph: Subgraph) -> Subgraph:
    """The subgraph with the numbers of consumers as they are."""
    counts = [0] * len(subgraph.operands)
    for operation in subgraph.operations:
        for index in operation.inputs:
            if 0 <= index < len(counts):
                counts[index] += 1
    operands = tuple(
        operand
        if operand.number_of_consumers == count
        else replace(operand, number_of_consumers=count)
        for operand, count in zip(subgraph.operands, counts, strict=True)
    )
    return replace(subgraph, operands=operands)


def subgraph(
    operands: dict[str, Operand], operations: list[tuple[int, str, str]], inputs: str, outputs: str
) -> Subgraph:
    """A subgraph of named operands; lists of names are separated by blanks."""
    indexes = {name: index for index, name in enumerate(operands)}

    def found(names: str) -> tuple[int, ...]:
        return tuple(indexes[name] for name in names.split())

    lifetimes = dict.fromkeys(inputs.split(), INPUT) | dict.fromkeys(outputs.split(), OUTPUT)
    named = tuple(
        replace(operand, name=name, lifetime=lifetimes.get(name, operand.lifetime))
        for name, operand in operands.items()
    )
    done = tuple(Operation(type, found(ins), found(outs)) for type, ins, outs in operations)
    return counted(Subgraph(named, done, found(inputs), found(outputs)))


def operand(type: int = FLOAT, *dimensions: int, **fields: Any) -> Operand:
    """An operand; a tensor without dimensions is one of unknown rank."""
    return Operand(type=type, dimensions=dimensions, **fields)


def constant(type: int, offset: int, *dimensions: int, **fields: Any) -> Operand:
    """A constant in `operand_values`."""
    location = DataLocation(0, offset, hal.byte_size(type, dimensions))
    return Operand(type=type, dimensions=dimensions, lifetime=COPY, location=location, **fields)


def reference(index: int) -> Operand:
    """An operand that refers to a subgraph."""
    return Operand(
        type=OperandType.SUBGRAPH,
        lifetime=OperandLifeTime.SUBGRAPH,
        location=DataLocation(offset=index),
    )


def branching(shape: tuple[int, ...] = (2, 3), inner: tuple[int, ...] = (2, 3)) -> Model:
    """IF over two subgraphs of one input and one output."""
    x, y = operand(FLOAT, *inner), operand(FLOAT, *inner)
    branches = [
        subgraph({"x": x, "y": y}, [(type, "x", "y")], "x", "y")
        for type in (OperationType.TANH, OperationType.RELU)
    ]
    main = subgraph(
        {
            "which": operand(BOOL8, 1),
            "then": reference(0),
            "else": reference(1),
            "x": operand(FLOAT, *shape),
            "y": operand(FLOAT, *shape),
        },
        [(OperationType.IF, "which then else x", "y")],
        "which x",
        "y",
    )
    return Model(main, tuple(branches))


def looping(shape: tuple[int, ...] = (1,)) -> Model:
    """WHILE total < limit: total += step; state-only `count`, input-only `limit` and `step`."""
    number, truth = operand(FLOAT, *shape), operand(BOOL8, 1)
    none = constant(OperandType.INT32, 0)
    condition = subgraph(
        {"total": number, "count": number, "limit": number, "step": number, "go": truth},
        [(OperationType.LESS, "total limit", "go")],
        "total count limit step",
        "go",
    )
    body = subgraph(
        {
            "total": number,
            "count": number,
            "limit": number,
            "step": number,
            "none": none,
            "more": number,
            "next": number,
        },
        [(OperationType.ADD, "total step none", "more"), (OperationType.RELU, "count", "next")],
        "total count limit step",
        "more next",
    )
    main = subgraph(
        {
            "condition": reference(0),
            "body": reference(1),
            "total": number,
            "count": number,
            "limit": number,
            "step": number,
            "result": number,
        },
        [(OperationType.WHILE, "condition body total count limit step", "result")],
        "total count limit step",
        "result",
    )
    return Model(main, (condition, body), operand_values=bytes(4))
