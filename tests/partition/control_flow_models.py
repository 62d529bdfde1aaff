"""Models with IF and WHILE: small ones, random nested ones, and random graphs inside of either."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import numpy as np

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model.graph import Value
from nnasync._core.partition import (
    Assignment,
    PartitionedModel,
    Support,
    all_steps,
    distribute,
    find_control_flow,
    split,
)
from nnasync._core.partition.assignment import Border
from nnasync._core.partition.control_flow import view
from nnasync.conformance.random_graphs import RandomGraph, model_of
from nnasync.hal import (
    Array,
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from tests.partition.models import SHAPE

BOOL8 = OperandType.TENSOR_BOOL8


def number(value: float) -> Array:
    return np.array([value], np.float32)


def branching() -> Model:
    """y = which ? (x + x) * x : x * 3 * x, and one ADD around it on either side."""
    builder = nn.ModelBuilder("branching")
    which = builder.input("which", (1,), type=BOOL8)
    x = builder.input("x", SHAPE)

    def then(g: Any, v: Value) -> Value:
        return g.mul(g.add(v, v), v)  # type: ignore[no-any-return]

    def otherwise(g: Any, v: Value) -> Value:
        return g.mul(g.mul(v, number(3)), v)  # type: ignore[no-any-return]

    y = builder.cond(which, then, otherwise, builder.add(x, number(0.5)))
    builder.output("y", builder.add(y, x))
    return builder.build()


def counting(turns: float = 5) -> Model:
    """Total and count after so many turns of total = (total + x) * 0.5."""
    builder = nn.ModelBuilder("counting")
    x = builder.input("x", SHAPE)

    def goes_on(g: Any, count: Value, total: Value, x: Value) -> Value:
        return g.operation(OperationType.LESS, count, number(turns))  # type: ignore[no-any-return]

    def turn(g: Any, count: Value, total: Value, x: Value) -> tuple[Value, Value]:
        return g.add(count, number(1)), g.mul(g.add(total, x), number(0.5))

    start = np.zeros(1, np.float32), np.ones(SHAPE, np.float32)
    count, total = builder.while_loop(goes_on, turn, *start, constants=(x,))
    builder.output("count", count)
    builder.output("total", total)
    return builder.build()


class RandomNest:
    """A random model of rows of floats, with IF and WHILE in one another to a depth of three."""

    def __init__(self, seed: int) -> None:
        self._numbers = random.Random(f"nest {seed}")
        self._left = 4
        builder = nn.ModelBuilder(f"nest {seed}")
        inputs = [builder.input(f"x{index}", SHAPE) for index in range(2)]
        values = self._grown(builder, inputs, 0, least=4)
        builder.output("y", values[-1])
        if len(values) > len(inputs) + 1:
            builder.output("z", values[-2])
        self.model = builder.build()

    def _grown(self, g: Any, values: Sequence[Value], depth: int, least: int) -> list[Value]:
        """The values, and those of some operations on them."""
        found = list(values)
        for number in range(least + self._numbers.randrange(3)):
            flow = depth < 3 and self._left > 0 and (self._numbers.random() < 0.35 or number == 1)
            found.append(self._flow(g, found, depth) if flow else self._plain(g, found))
        return found

    def _plain(self, g: Any, values: Sequence[Value]) -> Value:
        a, b = self._numbers.choice(values), self._numbers.choice(values)
        kind = self._numbers.randrange(5)
        if kind == 4:
            return g.tanh(a)  # type: ignore[no-any-return]
        if kind == 3:
            return g.mul(a, number(self._numbers.uniform(-1, 1)))  # type: ignore[no-any-return]
        types = OperationType.MAXIMUM, OperationType.MINIMUM
        if kind == 2:
            return g.operation(self._numbers.choice(types), a, b)  # type: ignore[no-any-return]
        return g.tanh((g.add, g.mul)[kind](a, b))  # type: ignore[no-any-return]

    def _flow(self, g: Any, values: Sequence[Value], depth: int) -> Value:
        self._left -= 1
        a, b = self._numbers.choice(values), self._numbers.choice(values)
        if self._numbers.random() < 0.5:
            parts = [lambda h, *v: self._grown(h, v, depth + 1, 1)[-1]] * 2
            return g.cond(_is_low(g, a), *parts, a, b)  # type: ignore[no-any-return]
        turns = number(self._numbers.randrange(4))

        def goes_on(h: Any, count: Value, total: Value, other: Value) -> Value:
            return h.operation(OperationType.LESS, count, turns)  # type: ignore[no-any-return]

        def turn(h: Any, count: Value, total: Value, other: Value) -> tuple[Value, Value]:
            inner = self._grown(h, (total, other), depth + 1, 1)
            return h.add(count, number(1)), h.tanh(inner[-1])

        start = g.mul(_first(g, a), number(0))
        return g.while_loop(goes_on, turn, start, a, constants=(b,))[1]  # type: ignore[no-any-return]


def _first(g: Any, value: Value) -> Value:
    largest = g.operation(OperationType.REDUCE_MAX, value, np.array([0, 1], np.int32), False)
    return g.reshape(largest, (1,))  # type: ignore[no-any-return]


def _is_low(g: Any, value: Value) -> Value:
    return g.operation(OperationType.LESS, _first(g, value), number(0.4))  # type: ignore[no-any-return]


# -- a random graph inside


def in_if(graph: RandomGraph) -> Model:
    """IF of a flag over the graph and the same graph."""
    model = model_of(graph)
    body = model.main
    flag = Operand(BOOL8, (1,), 1, lifetime=OperandLifeTime.SUBGRAPH_INPUT)
    reference = Operand(
        OperandType.SUBGRAPH, lifetime=OperandLifeTime.SUBGRAPH, number_of_consumers=1
    )
    ends = _ends(body)
    count = len(body.input_indexes)
    inputs, outputs = tuple(range(3, 3 + count)), tuple(range(3 + count, 3 + len(ends)))
    main = Subgraph(
        (flag, reference, reference, *ends),
        (Operation(OperationType.IF, (0, 1, 2, *inputs), outputs),),
        (0, *inputs),
        outputs,
    )
    return replace(model, main=main, referenced=(body,))


def in_while(graph: RandomGraph, turns: int = 2) -> Model:
    """WHILE count < turns: count += 1, and what the graph gives; its inputs stay as they are."""
    model = model_of(graph)
    values = _padded(bytes(model.operand_values))
    start = len(values)
    numbers = np.array([turns, 1], np.float32).tobytes() + bytes(4)
    body, condition = _turn(model.main, start), _condition(model.main, start)
    ends = _ends(model.main)
    count = len(model.main.input_indexes)
    outputs = ends[count:]
    carried = [replace(each, lifetime=_INPUT, number_of_consumers=1) for each in outputs]
    references = [
        Operand(
            OperandType.SUBGRAPH,
            number_of_consumers=1,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(offset=number),
        )
        for number in (0, 1)
    ]
    given = [replace(_COUNT, number_of_consumers=1), *carried, *ends[:count]]
    results = [replace(_COUNT, lifetime=_OUTPUT), *outputs]
    inputs = tuple(range(2, 2 + len(given)))
    written = tuple(range(2 + len(given), 2 + len(given) + len(results)))
    main = Subgraph(
        (*references, *given, *results),
        (Operation(OperationType.WHILE, (0, 1, *inputs), written),),
        inputs,
        written,
    )
    return replace(model, main=main, referenced=(condition, body), operand_values=values + numbers)


replace = msgspec.structs.replace
_INPUT, _OUTPUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT
_COUNT = Operand(OperandType.TENSOR_FLOAT32, (1,), lifetime=_INPUT)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


def _ends(body: Subgraph) -> list[Operand]:
    """Operands of a main subgraph for the inputs and the outputs of another."""
    given = [replace(body.operands[index], number_of_consumers=1) for index in body.input_indexes]
    return given + [
        replace(body.operands[index], number_of_consumers=0) for index in body.output_indexes
    ]


def _constant(offset: int, dimensions: tuple[int, ...] = (1,)) -> Operand:
    type = OperandType.TENSOR_FLOAT32 if dimensions else OperandType.INT32
    location = DataLocation(0, offset, 4)
    return Operand(type, dimensions, 1, lifetime=OperandLifeTime.CONSTANT_COPY, location=location)


def _turn(body: Subgraph, start: int) -> Subgraph:
    """The body of the loop: the graph, and one more on the count."""
    first = len(body.operands)
    results = [body.operands[index] for index in body.output_indexes]
    extra = [
        replace(_COUNT, number_of_consumers=1),
        _constant(start + 4),
        _constant(start + 8, ()),
        replace(_COUNT, lifetime=_OUTPUT),
        *(replace(each, lifetime=_INPUT, number_of_consumers=0) for each in results),
    ]
    unused = tuple(range(first + 4, first + len(extra)))
    add = Operation(OperationType.ADD, (first, first + 1, first + 2), (first + 3,))
    return Subgraph(
        (*body.operands, *extra),
        (*body.operations, add),
        (first, *unused, *body.input_indexes),
        (first + 3, *body.output_indexes),
    )


def _condition(body: Subgraph, start: int) -> Subgraph:
    ends = _ends(body)
    count = len(body.input_indexes)
    unread = [
        replace(each, lifetime=_INPUT, number_of_consumers=0)
        for each in ends[count:] + ends[:count]
    ]
    goes_on = Operand(BOOL8, (1,), lifetime=_OUTPUT)
    operands = (
        replace(_COUNT, number_of_consumers=1),
        *unread,
        _constant(start),
        goes_on,
    )
    last = len(operands) - 1
    return Subgraph(
        operands,
        (Operation(OperationType.LESS, (0, last - 1), (last,)),),
        tuple(range(1 + len(unread))),
        (last,),
    )


# -- devices


def everything(model: Model, *, flow: bool = False) -> Support:
    """A device that takes all operations; of IF and WHILE, unless `flow`, only what must be whole.

    Without `flow` whatever can be interpreted is interpreted.
    """
    found = find_control_flow(model)

    def answers(place: Model, operations: Collection[int]) -> tuple[bool, ...]:
        count = len(place.main.operations)
        return tuple(flow or index not in operations for index in range(count))

    bodies = {number: answers(view(model, number), each) for number, each in found.bodies.items()}
    return Support(answers(model, found.main), bodies)


def randomly(model: Model, seed: int) -> Assignment:
    """Devices of random abilities and costs; what all refuse, device 0 takes."""
    numbers = random.Random(f"devices {seed}")
    count = numbers.randint(2, 4)
    full = everything(model)

    def some(answers: Sequence[bool]) -> tuple[bool, ...]:
        return tuple(answer and numbers.random() < 0.6 for answer in answers)

    support = [full] + [
        Support(some(full.main), {number: some(row) for number, row in full.bodies.items()})
        for _ in range(count - 1)
    ]

    def rate(place: Model) -> list[list[float]]:
        return [[numbers.random() for _ in place.main.operations] for _ in range(count)]

    return distribute(model, support, rate, border=Border(numbers.choice([0, 0.1, 1]), 0))


def interpreted(model: Model, seed: int) -> PartitionedModel:
    """The model in steps over such devices, its control flow interpreted."""
    return split(model, randomly(model, seed))


def engines(parts: PartitionedModel) -> list[ReferenceEngine]:
    return [ReferenceEngine() for _ in range(1 + max(s.device for s in all_steps(parts)))]
