"""Drawing a graph, one operation at a time: where arguments come from, and how large they are.

A `Sketch` is a graph that grows. A `Pick` is the operation that is being added: a sampler (see
`samplers`) gives it an argument for each parameter of the signature, by name. A tensor argument is
either a value that the sketch has already, of the type, shape, quantization and properties that
are asked for, or a new one with random values, which is a constant or an input with equal odds.
The operation's own rule then says what comes out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from nnasync import hal
from nnasync.conformance.random_graphs.graph import GraphOperand, Origin, RandomGraph
from nnasync.conformance.random_graphs.operands import (
    PLAIN_TYPES,
    QUANTIZED,
    Property,
    random_values,
)
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, ChannelQuant, Shape, Struct
from nnasync.kernels import Operation, Signature, Tensor

T = TypeVar("T")
Quantization = tuple[float, int]
"""Scale and zero point."""

_CONSTANT = 0.5
_LINK = 0.8
"""How often a fitting value of an earlier operation is taken."""
_SHARE = 0.1
"""How often a fitting value that no operation made is taken again."""
_SHOWN = 0.1
"""How often a value that is used inside is put out too."""
_SCALES = (0.1, 2.0)


class TooLarge(Exception):
    """The operation would have an operand beyond the limits, or a scale; try another one."""


class GraphLimits(Struct, frozen=True):
    """How large dimensions and operands may be; computed ones keep to the number of elements."""

    dimension: int
    elements: int


class Sketch:
    """A graph that grows; the same seed gives the same graph."""

    def __init__(self, seed: str, limits: GraphLimits) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(self.random.getrandbits(64))
        self.limits = limits
        self._operands: list[GraphOperand] = []
        self._operations: list[hal.Operation] = []
        self._properties: dict[int, Property] = {}
        """Of the operands that may be taken as arguments again."""

    def __len__(self) -> int:
        return len(self._operations)

    def linkable_types(self) -> list[int]:
        """Types of the values that operations have made, one for each value."""
        made = (self._operands[index] for index in self._properties)
        return [operand.type for operand in made if operand.origin is Origin.COMPUTED]

    def draw(self, operation: Operation, signature: Signature, sampler: Sampler) -> None:
        """Add an operation; raises TooLarge, and then the sketch is as it was."""
        operands, properties = len(self._operands), dict(self._properties)
        pick = Pick(self, operation, signature)
        try:
            sampler(pick)
            pick.finish()
        except TooLarge:
            del self._operands[operands:]
            self._properties = properties
            raise

    def finish(self, name: str) -> RandomGraph:
        """The graph; it has an input, and what nobody reads is put out."""
        read = {index for each in self._operations for index in each.inputs}
        outputs = tuple(
            index
            for each in self._operations
            for index in each.outputs
            if index not in read or self.random.random() < _SHOWN
        )
        self._ensure_input()
        return RandomGraph(tuple(self._operands), tuple(self._operations), outputs, name)

    def add(self, operand: GraphOperand, properties: Property | None = None) -> int:
        """Add an operand; with `properties` it may be taken again."""
        self._operands.append(operand)
        if properties is not None:
            self._properties[len(self._operands) - 1] = properties
        return len(self._operands) - 1

    def add_operation(self, operation: hal.Operation) -> None:
        """Add an operation whose operands are there."""
        self._operations.append(operation)

    def operand(self, index: int) -> GraphOperand:
        """An operand by its index."""
        return self._operands[index]

    def find(self, fits: Callable[[GraphOperand, Property], bool]) -> int | None:
        """An operand to be taken as an argument; None if there is none, or a new one is better."""
        found = [
            index
            for index, properties in self._properties.items()
            if fits(self._operands[index], properties)
        ]
        for computed, odds in ((True, _LINK), (False, _SHARE)):
            fitting = [
                index
                for index in found
                if (self._operands[index].origin is Origin.COMPUTED) == computed
            ]
            if fitting and self.random.random() < odds:
                return self.random.choice(fitting)
        return None

    def _ensure_input(self) -> None:
        if any(operand.origin is Origin.INPUT for operand in self._operands):
            return
        tensors = [
            index
            for index, operand in enumerate(self._operands)
            if operand.origin is Origin.CONSTANT and not hal.is_scalar(operand.type)
        ]
        index = self.random.choice(tensors)
        changed = msgspec.structs.replace(self._operands[index], origin=Origin.INPUT)
        self._operands[index] = changed


class Pick:
    """One operation that is being added: its arguments, by the names of its parameters."""

    def __init__(self, sketch: Sketch, operation: Operation, signature: Signature) -> None:
        self.random = sketch.random
        self.numbers = sketch.numbers
        self.limits = sketch.limits
        self.operation = operation
        self.signature = signature
        self.results = len(signature.outputs)
        """How many outputs the operation is to have."""
        self._sketch = sketch
        self._parameters = {parameter.name: parameter for parameter in signature.inputs}
        self._given: dict[str, list[int]] = {name: [] for name in self._parameters}
        self._quantizations: dict[int, Quantization] = {}
        self._shapes: dict[int, Shape] = {}
        self._private: set[int] = set()

    # -- choices

    def chance(self, odds: float) -> bool:
        """True with these odds."""
        return self.random.random() < odds

    def integer(self, lowest: int, highest: int) -> int:
        """A whole number, both limits included."""
        return self.random.randint(lowest, highest)

    def small(self, highest: int) -> int:
        """A whole number from 1 on, small ones more often."""
        if highest < 1:
            raise TooLarge
        return self.random.randint(
            1, min(highest, 1 << self.random.randrange(highest.bit_length()))
        )

    def uniform(self, lowest: float, highest: float) -> float:
        """A number as float32 holds it."""
        return float(np.float32(lowest + self.random.random() * (highest - lowest)))

    def choose(self, items: Sequence[T]) -> T:
        """One of the items."""
        return self.random.choice(items)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """The items in any order."""
        found = list(items)
        self.random.shuffle(found)
        return found

    def rank(self, name: str, *, lowest: int = 1, highest: int = 4) -> int:
        """A rank that the parameter takes."""
        ranks = self._parameters[name].ranks or tuple(range(lowest, highest + 1))
        return self.choose([rank for rank in ranks if lowest <= rank <= highest])

    def shape(self, rank: int, steps: Sequence[int] = (), *, lowest: int = 1) -> Shape:
        """A shape within the limits; dimensions are multiples of `steps`, from `lowest` on."""
        steps = [*steps, *[1] * (rank - len(steps))]
        dimensions = [lowest * step for step in steps]
        for axis in self.shuffled(range(rank)):
            others = math.prod(dimensions) // dimensions[axis]
            room = min(self.limits.dimension, self.limits.elements // others) // steps[axis]
            dimensions[axis] = steps[axis] * (lowest - 1 + self.small(room - lowest + 1))
        return tuple(dimensions)

    def quantization(self, type: int) -> Quantization:
        """A random scale and zero point; 0 and 0 for types without."""
        limits = hal.zero_points(type)
        if type not in QUANTIZED or limits is None:
            return 0.0, 0
        return self.uniform(*_SCALES), self.random.randint(*limits)

    # -- arguments

    def has(self, name: str) -> bool:
        """Returns whether the signature has this parameter."""
        return name in self._parameters

    def type_of(self, name: str) -> int:
        """The operand type of a parameter."""
        return self._parameters[name].type

    def given(self, name: str) -> GraphOperand:
        """The argument that was given last for a parameter."""
        return self._sketch.operand(self._given[name][-1])

    def tensor(
        self,
        name: str,
        shape: Shape | Callable[[], Shape],
        *,
        fits: Callable[[Shape], bool] | None = None,
        needs: Property = Property.NONE,
        quantization: Quantization | None = None,
    ) -> GraphOperand:
        """Give a tensor of this shape, or one that `fits` and if there is none a new `shape()`.

        With `quantization`, scale and zero point are those. The values may be any with the
        properties that it `needs`.
        """
        parameter = self._parameters[name]

        def is_fitting(operand: GraphOperand, properties: Property) -> bool:
            return (
                operand.type == parameter.type
                and needs in properties
                and (not parameter.ranks or len(operand.shape) in parameter.ranks)
                and (quantization in (None, (operand.scale, operand.zero_point)))
                and (operand.shape == shape if fits is None else fits(operand.shape))
            )

        found = self._sketch.find(is_fitting)
        if found is not None:
            self._given[name].append(found)
            return self._sketch.operand(found)
        new = shape() if callable(shape) else shape
        scale, zero_point = quantization or self.quantization(parameter.type)
        self._check_size(new)
        value = random_values(self.numbers, parameter.type, new, zero_point=zero_point, needs=needs)
        plain = parameter.type in PLAIN_TYPES
        return self._leaf(name, value, (scale, zero_point), needs if plain else None)

    def values(
        self, name: str, value: Array, quantization: Quantization = (0.0, 0)
    ) -> GraphOperand:
        """Give a tensor with these values."""
        dtype = hal.dtype_of(self.type_of(name))
        return self._leaf(name, np.asarray(value).astype(dtype), quantization, None)

    def integers(self, name: str, numbers: Sequence[int]) -> GraphOperand:
        """Give a vector of integers."""
        return self.values(name, np.asarray(numbers, np.int32))

    def channels(self, name: str, shape: Shape, axis: int) -> GraphOperand:
        """Give a tensor with scales of its own for each channel along an axis."""
        self._check_size(shape)
        type = self.type_of(name)
        scales = tuple(self.uniform(*_SCALES) for _ in range(shape[axis]))
        value = random_values(self.numbers, type, shape)
        return self._leaf(name, value, (0.0, 0), None, ChannelQuant(scales, axis))

    def scalar(self, name: str, value: float) -> None:
        """Give a scalar."""
        type = self.type_of(name)
        constant = np.asarray(value, hal.dtype_of(type))
        index = self._sketch.add(GraphOperand(type, Origin.CONSTANT, value=constant))
        self._given[name].append(index)

    def omit(self, name: str) -> None:
        """Leave an argument out."""
        type = self.type_of(name)
        scale = 1.0 if type in QUANTIZED else 0.0
        self._given[name].append(self._sketch.add(GraphOperand(type, Origin.OMITTED, scale=scale)))

    # -- results

    def output(self, position: int, quantization: Quantization) -> None:
        """State scale and zero point of an output that the rule leaves open."""
        self._quantizations[position] = quantization

    def unknown(self, position: int, shape: Shape) -> None:
        """Have an output whose shape depends on values; a dimension of 0 is not known."""
        self._shapes[position] = shape
        self._private.add(position)

    def private(self, position: int) -> None:
        """Have an output that no other operation may read: its values are not settled."""
        self._private.add(position)

    def finish(self) -> None:
        """Add operation and outputs to the sketch; raises TooLarge."""
        inputs = [index for name in self._parameters for index in self._given[name]]
        types = [each.type for each in self.signature.results(self.results) or ()]
        tensors = [self._sketch.operand(index).tensor for index in inputs]
        results = self.operation.infer(tensors, types)
        outputs = tuple(
            self._add_output(position, result) for position, result in enumerate(results)
        )
        self._sketch.add_operation(hal.Operation(self.operation.type, tuple(inputs), outputs))

    def _add_output(self, position: int, result: Tensor) -> int:
        shape = self._shapes.get(position, result.shape)
        if position not in self._shapes and not hal.is_scalar(result.type):
            if not hal.is_fully_specified(result.type, shape):
                raise GeneralFailure(f"{self.operation.name}: shape of output {position} is open")
            self._check_size(shape)
        quantization = (result.scale, result.zero_point)
        if result.type in QUANTIZED and not result.scale:
            quantization = self._quantizations.get(position) or self.quantization(result.type)
        operand = GraphOperand(result.type, Origin.COMPUTED, shape, *quantization)
        if position in self._private or result.type not in PLAIN_TYPES:
            return self._sketch.add(operand)
        non_negative = self.operation.facts.non_negative
        return self._sketch.add(operand, Property.NON_NEGATIVE if non_negative else Property.NONE)

    def _leaf(
        self,
        name: str,
        value: Array,
        quantization: Quantization,
        properties: Property | None,
        channel_quant: ChannelQuant | None = None,
    ) -> GraphOperand:
        origin = Origin.CONSTANT if self.chance(_CONSTANT) else Origin.INPUT
        operand = GraphOperand(
            self.type_of(name), origin, value.shape, *quantization, channel_quant, value
        )
        self._given[name].append(self._sketch.add(operand, properties))
        return operand

    def _check_size(self, shape: Shape) -> None:
        if math.prod(shape) > self.limits.elements:
            raise TooLarge


Sampler = Callable[[Pick], None]
"""Gives a pick an argument for each parameter of its signature."""
