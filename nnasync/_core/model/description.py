"""A model but for its memory pools, as files and messages have it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nnasync.hal import (
    DataLocation,
    ExtensionNameAndPrefix,
    Memory,
    Model,
    OperandLifeTime,
    StatePair,
    Subgraph,
)

Block = tuple[int, int, int]
"""Pool, offset and length of a constant."""


class ModelDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of a model but its pools; of a model without labels nothing is said of these."""

    name: str
    main: Subgraph
    referenced: tuple[Subgraph, ...]
    operand_values: bytes
    relaxed: bool
    extensions: tuple[ExtensionNameAndPrefix, ...]
    state: tuple[StatePair, ...]
    labels: tuple[str, ...] = ()

    def model(self, pools: tuple[Memory, ...] = ()) -> Model:
        """The model, with these pools."""
        return Model(
            main=self.main,
            referenced=self.referenced,
            operand_values=self.operand_values,
            pools=pools,
            relax_computation_float32_to_float16=self.relaxed,
            extension_name_to_prefix=self.extensions,
            state=self.state,
            name=self.name,
            labels=self.labels,
        )


def describe(model: Model, moved: Mapping[Block, DataLocation] | None = None) -> ModelDescription:
    """The description of a model, whose constants in pools lie elsewhere where `moved` says so."""
    return ModelDescription(
        name=model.name,
        main=_moved(model.main, moved),
        referenced=tuple(_moved(subgraph, moved) for subgraph in model.referenced),
        operand_values=bytes(model.operand_values),
        relaxed=model.relax_computation_float32_to_float16,
        extensions=model.extension_name_to_prefix,
        state=model.state,
        labels=model.labels,
    )


def block_of(location: DataLocation) -> Block:
    """Returns the block in which a constant lies."""
    return (location.pool_index, location.offset, location.length)


def _moved(subgraph: Subgraph, moved: Mapping[Block, DataLocation] | None) -> Subgraph:
    if moved is None:
        return subgraph
    operands = tuple(
        msgspec.structs.replace(operand, location=moved[block_of(operand.location)])
        if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE
        else operand
        for operand in subgraph.operands
    )
    return msgspec.structs.replace(subgraph, operands=operands)
