"""If, Loop and Scan, whose subgraphs become subgraphs of IF and WHILE.

A subgraph of ONNX sees the values around it; one of the HAL sees only what it is given. So what a
subgraph reads from outside becomes an input of it, unless it is constant. A branch whose condition
is known while the file is read is converted in place.

A Scan is a loop of known length that takes a slice of each of its inputs in each turn. Rows that a
loop collects are kept in a tensor that has room for all, which moves up by one row in each turn: so
the number of turns must be known, and nothing may end the loop earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.importers.onnx.folding import with_constants
from nnasync._core.importers.onnx.forms import Convert, axis_of
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxNode, reads_of
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.quantized_forms import with_floats
from nnasync._core.importers.onnx.scope import OnnxScope
from nnasync._core.model import ModelBuilder, Value
from nnasync._core.model.control_flow import ControlFlow
from nnasync._core.model.graph import int32_array
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType, Shape, dtype_of

_FOREVER = 2**31 - 1
_MOST_ROWS = 2**16

ConvertAll = Callable[[OnnxScope], None]
"""Converts all operators of a scope's graph."""


class _Element(msgspec.Struct, frozen=True, eq=False):
    """An input of a body that is a slice of a value in each turn."""

    name: str
    source: str
    axis: int
    backwards: bool


class _Row(msgspec.Struct, frozen=True, eq=False):
    """An output of a body that is collected."""

    name: str
    axis: int = 0
    backwards: bool = False


class _Loop(msgspec.Struct, frozen=True, eq=False):
    """A body, and how it is repeated; names are those of its inputs and outputs.

    `turns` is a number, a value that is computed, or None for a loop that only its condition ends.
    """

    body: OnnxGraph
    turns: int | Value | None
    counter: str
    condition: str
    next_condition: str
    states: tuple[str, ...]
    next_states: tuple[str, ...]
    elements: tuple[_Element, ...]
    rows: tuple[_Row, ...]


class _Collected(msgspec.Struct, frozen=True, eq=False):
    """Type and shape of what is collected from an output of a body, and along which axis."""

    type: OperandType
    row: Shape
    axis: int
    backwards: bool

    def all(self, turns: int) -> Shape:
        """The shape of all rows."""
        return (*self.row[: self.axis], turns, *self.row[self.axis :])


def converters(convert_all: ConvertAll) -> dict[str, Convert]:
    """Returns the converters of operators with subgraphs, given what converts a graph."""

    def branch(scope: OnnxScope, step: Step) -> None:
        _if(scope, step.node, convert_all)

    def loop(scope: OnnxScope, step: Step) -> None:
        _repeat(scope, step.node, _loop_of(scope, step.node), convert_all)

    def scan(scope: OnnxScope, step: Step) -> None:
        _repeat(scope, step.node, _scan_of(scope, step.node), convert_all)

    return {"If": branch, "Loop": loop, "Scan": scan}


def _body(scope: OnnxScope, node: OnnxNode, name: str) -> OnnxGraph:
    """A subgraph, which knows the constants around it."""
    graph = node.graphs.get(name)
    if graph is None:
        raise ModelError(f"has no {name}")
    around = {each: scope.array(each) for each in reads_of(graph)}
    known = {each: array for each, array in around.items() if array is not None}
    constants = {**known, **graph.constants}
    return with_floats(with_constants(msgspec.structs.replace(graph, constants=constants)))


def _taken(scope: OnnxScope, graphs: Sequence[OnnxGraph]) -> dict[str, Value]:
    """The values that subgraphs read from outside and that are computed there."""
    names = sorted({name for graph in graphs for name in reads_of(graph)})
    found = {name: scope.operand(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _inner(
    scope: OnnxScope, graph: OnnxGraph, builder: ControlFlow, taken: dict[str, Value]
) -> OnnxScope:
    """The scope of a subgraph, in which these values stand for those around it."""
    inner = OnnxScope(graph, builder)
    inner.budget = scope.budget
    for name in reads_of(graph):
        if name not in graph.constants:
            inner.borrow(scope, name, taken.get(name))
    return inner


# -- If


def _if(scope: OnnxScope, node: OnnxNode, convert_all: ConvertAll) -> None:
    known = scope.array(node.inputs[0])
    if known is not None:
        if known.size != 1:
            raise ModelError(f"its condition has {known.size} elements")
        name = "then_branch" if known.reshape(-1)[0] else "else_branch"
        _in_place(scope, node, _body(scope, node, name), convert_all)
        return
    graphs = [_body(scope, node, name) for name in ("then_branch", "else_branch")]
    taken = _taken(scope, graphs)
    shapes: list[list[Shape]] = []

    def part(graph: OnnxGraph) -> Callable[..., Sequence[Value]]:
        def build(builder: ControlFlow, *values: Value) -> Sequence[Value]:
            inner = _inner(scope, graph, builder, dict(zip(taken, values, strict=True)))
            convert_all(inner)
            shapes.append([inner.shape(port.name) for port in graph.outputs])
            return [inner.value(port.name) for port in graph.outputs]

        return build

    then, otherwise = (part(graph) for graph in graphs)
    results = scope.builder.cond(scope.input(node, 0), then, otherwise, *taken.values())
    if shapes[0] != shapes[1]:
        raise ModelError(f"its branches give shapes {shapes[0]} and {shapes[1]}")
    _define(scope, node, results, shapes[0])


def _in_place(scope: OnnxScope, node: OnnxNode, graph: OnnxGraph, convert_all: ConvertAll) -> None:
    """Convert a branch as if it stood where its If is."""
    inner = _inner(scope, graph, scope.builder, {})
    convert_all(inner)
    for name, port in zip(node.outputs, graph.outputs, strict=True):
        if name:
            scope.borrow(inner, port.name, None, name)


def _define(scope: OnnxScope, node: OnnxNode, results: Any, shapes: Sequence[Shape]) -> None:
    values = (results,) if isinstance(results, Value) else results
    for name, value, shape in zip(node.outputs, values, shapes, strict=False):
        if name:
            scope.define(name, value, shape)


# -- Loop and Scan


def _loop_of(scope: OnnxScope, node: OnnxNode) -> _Loop:
    body = _body(scope, node, "body")
    inputs, outputs = [port.name for port in body.inputs], [port.name for port in body.outputs]
    count = len(inputs) - 2
    if count < 0 or len(node.inputs) != count + 2 or len(outputs) < count + 1:
        raise ModelError(f"gives its body {len(node.inputs)} values, it takes {len(inputs)}")
    return _Loop(
        body=body,
        turns=_turns(scope, node),
        counter=inputs[0],
        condition=inputs[1],
        next_condition=outputs[0],
        states=tuple(inputs[2:]),
        next_states=tuple(outputs[1 : count + 1]),
        elements=(),
        rows=tuple(_Row(name) for name in outputs[count + 1 :]),
    )


def _turns(scope: OnnxScope, node: OnnxNode) -> int | Value | None:
    if not scope.has(node, 0):
        return None
    known = scope.array(node.inputs[0])
    if known is None:
        return scope.value(node.inputs[0])
    turns = int(known.reshape(-1)[0])
    return None if turns >= _FOREVER else max(turns, 0)


def _scan_of(scope: OnnxScope, node: OnnxNode) -> _Loop:
    body = _body(scope, node, "body")
    inputs, outputs = [port.name for port in body.inputs], [port.name for port in body.outputs]
    scanned = int(node.attribute("num_scan_inputs", 0))
    count = len(node.inputs) - scanned
    if not 0 < scanned <= len(node.inputs) == len(inputs) or not count <= len(outputs):
        raise ModelError(f"gives its body {len(node.inputs)} values, it takes {len(inputs)}")
    rows = len(outputs) - count
    axes, directions = (_numbers(node, f"scan_input_{name}", scanned) for name in _PER_PORT)
    row_axes, row_directions = (_numbers(node, f"scan_output_{name}", rows) for name in _PER_PORT)
    elements = tuple(
        _Element(name, source, axis_of(axis, len(scope.shape(source))), bool(direction))
        for name, source, axis, direction in zip(
            inputs[count:], node.inputs[count:], axes, directions, strict=True
        )
    )
    lengths = {scope.shape(each.source)[each.axis] for each in elements}
    if len(lengths) != 1:
        raise ModelError(f"has inputs of lengths {sorted(lengths)}")
    return _Loop(
        body=body,
        turns=lengths.pop(),
        counter="",
        condition="",
        next_condition="",
        states=tuple(inputs[:count]),
        next_states=tuple(outputs[:count]),
        elements=elements,
        rows=tuple(
            _Row(name, axis, bool(direction))
            for name, axis, direction in zip(outputs[count:], row_axes, row_directions, strict=True)
        ),
    )


_PER_PORT = ("axes", "directions")


def _numbers(node: OnnxNode, name: str, count: int) -> list[int]:
    """An attribute of one number per input or output, each 0 by default."""
    given = [int(number) for number in node.attribute(name, [0] * count)]
    if len(given) != count:
        raise ModelError(f"has {len(given)} {name} for {count}")
    return given


def _repeat(scope: OnnxScope, node: OnnxNode, loop: _Loop, convert_all: ConvertAll) -> None:
    repetition = _Repetition(scope, node, loop, convert_all)
    collected = repetition.collected()
    results = scope.builder.while_loop(
        repetition.goes_on,
        lambda builder, *values: repetition.turn(builder, values, collected),
        *repetition.first(collected),
        constants=repetition.constants,
    )
    shapes = [*repetition.shapes, *(each.all(repetition.length) for each in collected)]
    _define(scope, node, results[2:], shapes)


class _Repetition:
    """A loop as WHILE: counter and condition, then states, then what is collected."""

    def __init__(
        self, scope: OnnxScope, node: OnnxNode, loop: _Loop, convert_all: ConvertAll
    ) -> None:
        self._scope = scope
        self._loop = loop
        self._convert_all = convert_all
        self._taken = _taken(scope, [loop.body])
        first = len(node.inputs) - len(loop.states) - len(loop.elements)
        names = node.inputs[first : first + len(loop.states)]
        self._states = [scope.value(name) for name in names]
        self.shapes = [scope.shape(name) for name in names]
        self._condition = self._first_condition(node)
        self._sources = [scope.value(each.source) for each in loop.elements]
        turns = [loop.turns] if isinstance(loop.turns, Value) else []
        self.constants = [*turns, *self._sources, *self._taken.values()]

    def _first_condition(self, node: OnnxNode) -> Any:
        has = self._loop.condition and self._scope.has(node, 1)
        if not has:
            return np.asarray([True])
        known = self._scope.array(node.inputs[1])
        return self._scope.value(node.inputs[1]) if known is None else known.reshape(1)

    def first(self, collected: Sequence[_Collected]) -> list[Any]:
        """The values before the first turn."""
        counter = np.zeros(1, np.int32)
        rooms = [np.zeros(each.all(self.length), dtype_of(each.type)) for each in collected]
        return [counter, self._condition, *self._states, *rooms]

    @property
    def length(self) -> int:
        """Returns the number of turns, where it is known."""
        return self._loop.turns if isinstance(self._loop.turns, int) else 0

    def goes_on(
        self, builder: ControlFlow, counter: Value, condition: Value, *rest: Value
    ) -> Value:
        """Returns whether there is another turn."""
        turns: Any = self._loop.turns
        if turns is None:
            return condition
        if isinstance(turns, Value):
            turns = rest[len(rest) - len(self.constants)]
        else:
            turns = np.asarray([turns], np.int32)
        less = builder.operation(OperationType.LESS, counter, turns)
        return builder.operation(OperationType.LOGICAL_AND, less, condition)

    def turn(
        self, builder: ControlFlow, values: Sequence[Value], collected: Sequence[_Collected]
    ) -> list[Value]:
        """The values after a turn."""
        inner, counter = self._converted(builder, values), values[0]
        first = 2 + len(self._loop.states)
        rooms = values[first : first + len(collected)]
        rows = [inner.value(row.name) for row in self._loop.rows]
        return [
            builder.operation(OperationType.ADD, counter, np.ones(1, np.int32), 0),
            self._next_condition(inner, values[1]),
            *(inner.value(name) for name in self._loop.next_states),
            *(
                _moved_up(builder, room, row, each, self.length)
                for room, row, each in zip(rooms, rows, collected, strict=True)
            ),
        ]

    def _next_condition(self, inner: OnnxScope, condition: Value) -> Value:
        if not self._loop.next_condition:
            return condition
        return inner.value(self._loop.next_condition)

    def _converted(self, builder: ControlFlow, values: Sequence[Value]) -> OnnxScope:
        """The body, converted; the values are those of WHILE and its constants."""
        loop = self._loop
        constants = values[len(values) - len(self.constants) :]
        offset = len(constants) - len(self._taken)
        taken = dict(zip(self._taken, constants[offset:], strict=True))
        inner = _inner(self._scope, loop.body, builder, taken)
        states = values[2 : 2 + len(loop.states)]
        for name, value, shape in zip(loop.states, states, self.shapes, strict=True):
            inner.define(name, value, shape)
        if loop.counter:
            inner.define(loop.counter, values[0], ())
            inner.define(loop.condition, values[1], ())
        sources = constants[offset - len(self._sources) : offset]
        for each, source in zip(loop.elements, sources, strict=True):
            shape = (*source.shape[: each.axis], *source.shape[each.axis + 1 :])
            inner.define(each.name, _element(builder, source, each, values[0]), shape)
        self._convert_all(inner)
        return inner

    def collected(self) -> list[_Collected]:
        """Returns the values that each turn adds to; a trial build of the body finds them."""
        loop = self._loop
        if not loop.rows:
            return []
        if not isinstance(loop.turns, int) or not 0 < loop.turns <= _MOST_ROWS:
            raise ModelError("collects results of an unknown number of turns")
        builder = ModelBuilder("body")
        outer = [np.zeros(1, np.int32), np.zeros(1, np.bool_), *self._states, *self.constants]
        values = [_like(builder, each) for each in outer]
        inner = self._converted(builder, values)
        if loop.next_condition and not self._always(inner, values[1]):
            raise ModelError("collects results of a loop that may end at any time")
        return [self._collected(inner, row) for row in loop.rows]

    def _always(self, inner: OnnxScope, condition: Value) -> bool:
        """Returns whether the loop runs for as many turns as there are."""
        first = self._condition
        if isinstance(first, Value) or not first.all():
            return False
        known = inner.array(self._loop.next_condition)
        if known is not None:
            return bool(known.all())
        found = inner.operand(self._loop.next_condition)
        return found is not None and found.index == condition.index

    def _collected(self, inner: OnnxScope, row: _Row) -> _Collected:
        type, shape = OperandType(inner.value(row.name).type), inner.shape(row.name)
        return _Collected(type, shape, axis_of(row.axis, len(shape) + 1), row.backwards)


def _like(builder: ModelBuilder, value: Any) -> Value:
    if not isinstance(value, Value):
        value = builder.constant(value)
    return builder.input(
        "",
        value.shape,
        type=OperandType(value.type),
        scale=value.scale,
        zero_point=value.zero_point,
    )


def _element(builder: ControlFlow, source: Value, element: _Element, counter: Value) -> Value:
    """The slice of a value that a turn takes."""
    length, place = source.shape[element.axis], counter
    if element.backwards:
        last = np.asarray([length - 1], np.int32)
        place = builder.operation(OperationType.SUB, last, counter, 0)
    like = source if source.scale else None
    taken = builder.operation(OperationType.GATHER, source, element.axis, place, like=like)
    shape = (*source.shape[: element.axis], *source.shape[element.axis + 1 :]) or (1,)
    return builder.operation(OperationType.RESHAPE, taken, int32_array(shape), like=like)


def _moved_up(builder: ControlFlow, room: Value, row: Value, what: _Collected, turns: int) -> Value:
    """All rows without the oldest one, and with another at the end where the newest ones are."""
    shape = what.all(1)
    if row.shape != shape:
        row = builder.operation(OperationType.RESHAPE, row, int32_array(shape))
    if turns == 1:
        return row
    begin, size = [0] * len(shape), list(room.shape)
    begin[what.axis], size[what.axis] = int(not what.backwards), turns - 1
    kept = builder.operation(OperationType.SLICE, room, int32_array(begin), int32_array(size))
    pair = (row, kept) if what.backwards else (kept, row)
    return builder.operation(OperationType.CONCATENATION, *pair, what.axis)
