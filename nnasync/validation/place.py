"""A subgraph of a model, and how messages name its parts."""

from __future__ import annotations

from nnasync import hal
from nnasync.hal import Model, Subgraph

__all__ = ["Place", "places_of"]


class Place:
    """One subgraph of a model, and how messages name its parts."""

    __slots__ = ("model", "prefix", "subgraph")

    def __init__(self, model: Model, subgraph: Subgraph, prefix: str = "") -> None:
        self.model = model
        self.subgraph = subgraph
        self.prefix = prefix

    @property
    def is_main(self) -> bool:
        """Whether it is the main subgraph."""
        return not self.prefix

    def operand(self, index: int) -> str:
        """Operand `index` in words."""
        name = self.subgraph.operands[index].name
        return f'{self.prefix}operand {index} "{name}"' if name else f"{self.prefix}operand {index}"

    def operation(self, index: int) -> str:
        """Operation `index` in words."""
        name = hal.operation_name(self.subgraph.operations[index].type)
        return f"{self.prefix}operation {index} ({name})"


def places_of(model: Model) -> list[Place]:
    """The main subgraph, then the referenced ones."""
    return [
        Place(model, model.main),
        *(
            Place(model, subgraph, f"referenced subgraph {index}, ")
            for index, subgraph in enumerate(model.referenced)
        ),
    ]
