"""Pseudo-random legal graphs: one operation, 5 or 40 of them; the same seed gives the same graph.

Graphs of one operation go through the operations in turn, so that as many consecutive seeds as
there are operations have each of them once. In larger graphs an operation mostly works on a type
that earlier ones have made, so that the graph hangs together.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Collection, Mapping, Sequence

from nnasync import hal
from nnasync.conformance.random_graphs.graph import RandomGraph
from nnasync.conformance.random_graphs.samplers import SAMPLERS
from nnasync.conformance.random_graphs.sketch import GraphLimits, Sketch, TooLarge
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import OperandType, OperationType, Struct
from nnasync.kernels import OPERATIONS, Signature

_WIDE = GraphLimits(dimension=1000, elements=10_000)
_NARROW = GraphLimits(dimension=10, elements=10_000)
_ATTEMPTS = 200
_LINKED = 0.8
"""How often an operation works on a type that is there."""


class Size(enum.Enum):
    """How many operations a graph has, and how large its dimensions may be."""

    SINGLE = "single"
    SMALL = "small"
    LARGE = "large"

    @property
    def operations(self) -> int:
        """Number of operations."""
        return {Size.SINGLE: 1, Size.SMALL: 5, Size.LARGE: 40}[self]

    @property
    def limits(self) -> GraphLimits:
        """Returns how large operands may be."""
        return _NARROW if self is Size.LARGE else _WIDE


KINDS: Mapping[str, OperandType] = {
    "float32": OperandType.TENSOR_FLOAT32,
    "float16": OperandType.TENSOR_FLOAT16,
    "int32": OperandType.TENSOR_INT32,
    "bool8": OperandType.TENSOR_BOOL8,
    "quant8": OperandType.TENSOR_QUANT8_ASYMM,
    "quant8_signed": OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
}
"""The types of data that a graph may be confined to."""

_DATA_NAMES = ("values", "a", "scores", "heatmaps", "deltas", "logits", "input")
"""Parameters with the data, where others may stand before it."""

Candidates = Sequence[tuple[OperationType, Sequence[Signature]]]
Pairs = frozenset[tuple[int, int]]
"""An operation and the type of its data, each."""


class Menu(Struct, frozen=True):
    """What graphs are drawn from: graphs of one operation, and larger ones."""

    single: Pairs
    larger: Pairs

    def pairs(self, size: Size) -> Pairs:
        """Returns the pairs for graphs of a size."""
        return self.single if size is Size.SINGLE else self.larger


def menu_of(operations: Collection[int]) -> Menu:
    """These operations, on any type of data."""
    pairs = frozenset(
        (operation, type)
        for type in KINDS.values()
        for operation, _ in _candidates(type)
        if operation in operations
    )
    return Menu(pairs, pairs)


def generate(
    size: Size, seed: int, kind: str | None = None, menu: Menu | None = None
) -> RandomGraph:
    """The graph of a seed, all of whose operations work on one kind of data if one is named.

    With a `menu` it is drawn from that alone. Raises KeyError for an unknown kind, InvalidArgument
    where the menu has nothing of that kind.
    """
    name = f"random graph: {size.value}, seed {seed}" + (f", {kind}" if kind else "")
    sketch = Sketch(name, size.limits)
    pairs = None if menu is None else menu.pairs(size)
    types = list(KINDS.values()) if kind is None else [KINDS[kind]]
    if not any(_candidates(type, pairs) for type in types):
        raise InvalidArgument(f"{name}: there is no operation to draw it from")
    for _ in range(size.operations):
        _draw(sketch, size, seed, types, pairs)
    return sketch.finish(name)


def generated_operations(kind: str | None = None) -> list[OperationType]:
    """The operations that graphs have, perhaps of one kind, in the order of their numbers."""
    return [operation for operation, _ in _candidates(None if kind is None else KINDS[kind])]


def _draw(sketch: Sketch, size: Size, seed: int, types: Sequence[int], pairs: Pairs | None) -> None:
    """Add an operation, another one if it would be too large."""
    everything = len(types) > 1
    types = [type for type in types if _candidates(type, pairs)]
    for _ in range(_ATTEMPTS):
        if size is Size.SINGLE:
            found = _candidates(None if everything else types[0], pairs)
            operation, signatures = found[seed % len(found)]
        else:
            found = _candidates(_wanted(sketch, types), pairs)
            operation, signatures = sketch.random.choice(found)
        signature = sketch.random.choice(signatures)
        try:
            sketch.draw(OPERATIONS[operation], signature, SAMPLERS[operation])
        except TooLarge:
            continue
        return
    raise GeneralFailure(f"no operation was small enough in {_ATTEMPTS} attempts")


def _wanted(sketch: Sketch, types: Sequence[int]) -> int:
    """The type that the next operation is to work on."""
    linkable = [type for type in sketch.linkable_types() if type in types]
    if linkable and sketch.random.random() < _LINKED:
        return sketch.random.choice(linkable)
    return sketch.random.choice(types)


@functools.cache
def _candidates(type: int | None, pairs: Pairs | None = None) -> Candidates:
    """Operations with those of their signatures that work on a type; None for all of them."""
    found = []
    for operation in sorted(SAMPLERS.keys() & OPERATIONS.keys()):
        signatures = [
            signature
            for signature in OPERATIONS[operation].signatures
            if (type is None or _data_type(signature) == type)
            and (pairs is None or (operation, _data_type(signature)) in pairs)
        ]
        if signatures:
            found.append((operation, signatures))
    return found


def _data_type(signature: Signature) -> int:
    """The type of the data that an operation of this signature works on."""
    for name in _DATA_NAMES:
        for parameter in signature.inputs:
            if parameter.name == name and not hal.is_scalar(parameter.type):
                return parameter.type
    first = signature.inputs[0].type
    fills = signature.inputs[0].name == "dims"
    return signature.outputs[0].type if fills else first
