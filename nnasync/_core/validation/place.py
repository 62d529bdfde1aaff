"""A subgraph of a model, and how messages name its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import deferred
from nnasync.hal import Model, Subgraph

if TYPE_CHECKING:
    from nnasync import extensions
else:
    extensions = deferred("nnasync.extensions")


class Place:
    """One subgraph of a model, and how messages name its parts."""

    __slots__ = ("model", "prefix", "subgraph")

    def __init__(self, model: Model, subgraph: Subgraph, prefix: str = "") -> None:
        self.model = model
        self.subgraph = subgraph
        self.prefix = prefix

    @property
    def is_main(self) -> bool:
        """Returns whether it is the main subgraph."""
        return not self.prefix

    def operand(self, index: int) -> str:
        """Operand `index` in words."""
        name = self.subgraph.operands[index].name
        return f'{self.prefix}operand {index} "{name}"' if name else f"{self.prefix}operand {index}"

    def operation(self, index: int) -> str:
        """Operation `index` in words."""
        type = self.subgraph.operations[index].type
        name = extensions.operation_label(self.model.extension_name_to_prefix, type)
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
