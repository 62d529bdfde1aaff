"""Random changes to any field of a model, as a hostile file could have them."""

from __future__ import annotations

import random
from typing import Any

from nnasync.hal import (
    ChannelQuant,
    DataLocation,
    ExtensionNameAndPrefix,
    Model,
    OperandLifeTime,
    OperandType,
    OperationType,
    StatePair,
    Subgraph,
)
from tests.validation.models import counted, replace

NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 5, 7, 15, 255, 2**16, 2**31, 2**32, 2**63)
FLOATS = (0.0, -1.0, 0.5, 1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 5e-324)
DIMENSIONS = (0, 1, 2, 3, 4, 8, 2**16, 2**31, 2**32 - 1, 2**32, -1)
TYPES = (*OperandType, -1, 16, 9999, 10002, 0x10001, 0x7FFF0001, 2**40)
OPERATIONS = (*OperationType, -1, 102, 9999, 0x10001, 2**40)


class Changer:
    """A source of changes that a seed determines."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def changed(self, model: Model) -> Model:
        """A model with one to three changes; half of the time its consumers are counted anew."""
        for _ in range(self.random.randint(1, 3)):
            change = self.random.choice((self.operand,) * 5 + (self.operation,) * 3 + (self.whole,))
            model = change(model)
        if self.random.random() < 0.5:
            model = replace(
                model,
                main=counted(model.main),
                referenced=tuple(counted(subgraph) for subgraph in model.referenced),
            )
        return model

    def operand(self, model: Model) -> Model:
        """One field of one operand."""
        graph, place = self.subgraph(model)
        if not graph.operands:
            return model
        operands = list(graph.operands)
        index = self.random.randrange(len(operands))
        operand = operands[index]
        pick = self.random.choice
        field = pick(("type", "dimensions", "scale", "zero_point", "lifetime", "location", "extra"))
        fields: dict[str, Any] = {
            "type": {"type": pick(TYPES)},
            "dimensions": {"dimensions": self.shape(operand.dimensions)},
            "scale": {"scale": pick(FLOATS)},
            "zero_point": {"zero_point": pick(NUMBERS)},
            "lifetime": {"lifetime": pick(tuple(OperandLifeTime))},
            "location": {"location": DataLocation(*(pick(NUMBERS) for _ in range(3)))},
            "extra": {"extra_params": self.extra(operand.dimensions)},
        }
        operands[index] = replace(operand, **fields[field])
        return self.put(model, place, replace(graph, operands=tuple(operands)))

    def shape(self, dimensions: tuple[int, ...]) -> tuple[int, ...]:
        """Other dimensions: one changed, or all."""
        pick = self.random.choice
        if dimensions and self.random.random() < 0.7:
            axis = self.random.randrange(len(dimensions))
            return (*dimensions[:axis], pick(DIMENSIONS), *dimensions[axis + 1 :])
        return tuple(pick(DIMENSIONS) for _ in range(self.random.randrange(8)))

    def extra(self, dimensions: tuple[int, ...]) -> ChannelQuant | bytes | None:
        """Other extra parameters."""
        pick = self.random.choice
        count = pick((0, 1, *(n for n in dimensions if 0 <= n < 100)))
        quant = ChannelQuant(tuple(pick(FLOATS) for _ in range(count)), pick((-1, 0, 1, 3, 9)))
        return pick((None, b"", b"x" * 9, quant, ChannelQuant((0.5,) * count, 0)))

    def operation(self, model: Model) -> Model:
        """The type or the operands of one operation."""
        graph, place = self.subgraph(model)
        if not graph.operations:
            return model
        operations = list(graph.operations)
        index = self.random.randrange(len(operations))
        operation = operations[index]
        pick = self.random.choice
        field = pick(("type", "inputs", "outputs", "inputs", "order"))
        if field == "order":
            self.random.shuffle(operations)
        elif field == "type":
            operations[index] = replace(operation, type=pick(OPERATIONS))
        else:
            indexes = list(getattr(operation, field))
            count = len(graph.operands)
            where = self.random.randint(0, len(indexes))
            new = pick((-1, count, *range(count), *range(count)))
            indexes[where : where + pick((0, 1, 1, 2))] = pick(([new], [new], [new, new], []))
            operations[index] = replace(operation, **{field: tuple(indexes)})
        return self.put(model, place, replace(graph, operations=tuple(operations)))

    def whole(self, model: Model) -> Model:
        """Something of the model, or of a subgraph's lists."""
        pick = self.random.choice
        graph, place = self.subgraph(model)
        if self.random.random() < 0.5:
            field = pick(("input_indexes", "output_indexes"))
            indexes = list(getattr(graph, field))
            where = self.random.randint(0, len(indexes))
            indexes[where : where + pick((0, 1))] = pick(
                ([], [pick(NUMBERS)], [pick(range(len(graph.operands)))] if graph.operands else [])
            )
            return self.put(model, place, replace(graph, **{field: tuple(indexes)}))
        changes: tuple[dict[str, Any], ...] = (
            {"referenced": model.referenced[1:]},
            {"referenced": (*model.referenced, model.main)},
            {"operand_values": model.operand_values[: pick((0, 4, 8))]},
            {"pools": ()},
            {"state": (StatePair(pick(NUMBERS), pick(NUMBERS)),)},
            {"extension_name_to_prefix": (ExtensionNameAndPrefix("a.b", pick((0, 1, 2**15))),)},
        )
        return replace(model, **pick(changes))

    def subgraph(self, model: Model) -> tuple[Subgraph, int]:
        """A subgraph and where it is: -1 is the main one."""
        place = self.random.randrange(-1, len(model.referenced))
        return (model.main if place < 0 else model.referenced[place]), place

    def put(self, model: Model, place: int, graph: Subgraph) -> Model:
        """The model with a subgraph replaced."""
        if place < 0:
            return replace(model, main=graph)
        referenced = list(model.referenced)
        referenced[place] = graph
        return replace(model, referenced=tuple(referenced))
