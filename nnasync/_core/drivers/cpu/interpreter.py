"""Subgraphs that branch (IF, WHILE) or whose shapes are found while they run.

A run is a generator that yields between operations, so that it can be stopped there and resumed, at
any depth of nested subgraphs. Where the shapes of the inputs settle all others, the subgraph runs
as a `Program`, made once for each set of shapes; the body of a loop usually does. Otherwise
operations are specialized one by one, each remembering what it has prepared for the shapes it met,
unless a shape depended on values.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.clock import now_ns
from nnasync._core.drivers.cpu.execution_limits import MAX_EXECUTION_BYTES, check_memory
from nnasync._core.drivers.cpu.program import Program
from nnasync._core.drivers.cpu.programs import Programs, Shapes
from nnasync._core.drivers.cpu.resolve import declared, operation_at
from nnasync._core.validation import subgraph_tensors
from nnasync._core.workers import StopFlag
from nnasync.errors import MissedDeadlineTransient, ModelError
from nnasync.extensions import operation_label
from nnasync.hal import Array, Model, OperandLifeTime, OperationType, Shape, Subgraph
from nnasync.kernels import MEMORY_BYTES, Kernel, NotConstant, Tensor
from nnasync.tracing import vlog

Values = list[Array | None]
Run = Generator[None, None, list[Array]]
"""One execution under way: it yields between operations and returns the outputs."""

_REMEMBERED = 16
"""So many sets of input shapes are remembered for each operation."""


class Interpreter:
    """A model whose main subgraph, or one that it refers to, needs a run to know its shapes."""

    def __init__(self, model: Model, memory_limit_bytes: int = MAX_EXECUTION_BYTES) -> None:
        self._model = model
        self._limit_bytes = memory_limit_bytes
        self._main = _InterpretedGraph(model, model.main, memory_limit_bytes)
        self._referenced = [
            _InterpretedGraph(model, each, memory_limit_bytes) for each in model.referenced
        ]

    def run(self, inputs: Sequence[Array | None], stop: StopFlag) -> Run:
        """Execute the main subgraph; the loop timeout is that of the stop flag."""
        return self._run(self._main, inputs, stop, 0)

    def trim(self) -> None:
        """Give the idle memory of the programs back."""
        for graph in (self._main, *self._referenced):
            graph.trim()

    def _run(
        self,
        graph: _InterpretedGraph,
        inputs: Sequence[Array | None],
        stop: StopFlag,
        held_bytes: int,
    ) -> Run:
        """Execute a subgraph; `held_bytes` is what those around it keep meanwhile."""
        program = graph.program(inputs)
        if program is not None:
            check_memory(held_bytes + program.nbytes, self._limit_bytes)
            MEMORY_BYTES.set(self._limit_bytes - held_bytes - program.nbytes)
            return (yield from _run_program(program, inputs))
        values = graph.initial(inputs)
        sizes: dict[int, int] = {}
        for node in graph.nodes:
            yield
            vlog.cpuexe("%s", node.label)
            arguments = [values[index] for index in node.inputs]
            try:
                if node.type == OperationType.IF:
                    results = yield from self._run_if(graph, node, arguments, stop, held_bytes)
                elif node.type == OperationType.WHILE:
                    results = yield from self._run_while(graph, node, arguments, stop, held_bytes)
                else:
                    results = node.compute(arguments, held_bytes)
            except ModelError as error:
                raise ModelError(f"{node.label}: {error}") from error
            for index, result in zip(node.outputs, results, strict=True):
                values[index] = result
                sizes[index] = result.nbytes
                held_bytes += result.nbytes
            for index in node.last_uses:
                values[index] = None
                held_bytes -= sizes.pop(index, 0)
        return graph.results(values)

    def _run_if(
        self,
        graph: _InterpretedGraph,
        node: _InterpretedNode,
        arguments: Values,
        stop: StopFlag,
        held_bytes: int,
    ) -> Run:
        taken = node.inputs[1] if _is_true(arguments[0]) else node.inputs[2]
        branch = self._subgraph(graph, taken)
        results = yield from self._run(branch, arguments[3:], stop, held_bytes)
        graph.check(node, results)
        return results

    def _run_while(
        self,
        graph: _InterpretedGraph,
        node: _InterpretedNode,
        arguments: Values,
        stop: StopFlag,
        held_bytes: int,
    ) -> Run:
        condition, body = (self._subgraph(graph, index) for index in node.inputs[:2])
        values = arguments[2:]
        carried_bytes = held_bytes
        begun_ns = now_ns()
        while True:
            (goes_on,) = yield from self._run(condition, values, stop, carried_bytes)
            if not _is_true(goes_on):
                break
            if now_ns() - begun_ns > stop.loop_timeout_ns:
                raise MissedDeadlineTransient(
                    f"{node.label}: the loop took more than {stop.loop_timeout_ns / 1e9:g} s"
                )
            results = yield from self._run(body, values, stop, carried_bytes)
            values[: len(results)] = results
            carried_bytes = held_bytes + sum(result.nbytes for result in results)
            yield
        results = [value for value in values[: len(node.outputs)] if value is not None]
        if len(results) < len(node.outputs):
            raise ModelError("an omitted value of a loop cannot be its output")
        graph.check(node, results)
        return results

    def _subgraph(self, graph: _InterpretedGraph, index: int) -> _InterpretedGraph:
        return self._referenced[graph.subgraph.operands[index].location.offset]


class _InterpretedGraph:
    """A subgraph with what is remembered of its runs."""

    def __init__(self, model: Model, subgraph: Subgraph, memory_limit_bytes: int) -> None:
        self.subgraph = subgraph
        self.tensors = subgraph_tensors(model, subgraph)
        self.nodes = [
            _InterpretedNode(model, subgraph, place, self.tensors, memory_limit_bytes)
            for place in range(len(subgraph.operations))
        ]
        self._limit_bytes = memory_limit_bytes
        self._model = model
        self._programs = Programs()
        _find_last_uses(self.nodes, subgraph)

    def program(self, inputs: Sequence[Array | None]) -> Program | None:
        """The program for inputs of these shapes, if they settle all shapes."""

        def make(shapes: Shapes) -> Program:
            self._check_inputs(inputs)
            limit_bytes = self._limit_bytes
            return Program(self._model, self.subgraph, shapes, memory_limit_bytes=limit_bytes)

        shapes = tuple(None if array is None else array.shape for array in inputs)
        return self._programs.find(shapes, make)

    def trim(self) -> None:
        """Give the idle memory of the programs back."""
        self._programs.trim()

    def initial(self, inputs: Sequence[Array | None]) -> Values:
        """The values before the first operation: constants and inputs."""
        values: Values = [None if tensor is None else tensor.value for tensor in self.tensors]
        for index, array in zip(self.subgraph.input_indexes, inputs, strict=True):
            values[index] = array
        return values

    def results(self, values: Values) -> list[Array]:
        """The values of the outputs."""
        found = []
        for index in self.subgraph.output_indexes:
            value = values[index]
            if value is None:
                raise ModelError(f"operand {index} is an output without a value")
            found.append(value)
        return found

    def check(self, node: _InterpretedNode, results: Sequence[Array]) -> None:
        """Raise ModelError unless the results fit the shapes that the model states for them."""
        for index, result in zip(node.outputs, results, strict=True):
            self._check_shape(index, result)

    def _check_inputs(self, inputs: Sequence[Array | None]) -> None:
        for index, array in zip(self.subgraph.input_indexes, inputs, strict=True):
            if array is not None:
                self._check_shape(index, array)

    def _check_shape(self, index: int, array: Array) -> None:
        tensor = self.tensors[index]
        stated = () if tensor is None else tensor.shape
        if not hal.has_dimensions(array.shape, stated):
            raise ModelError(f"operand {index} is {list(array.shape)}, expected {list(stated)}")


class _InterpretedNode:
    """An operation of a subgraph, with the kernels that it has prepared so far."""

    def __init__(
        self,
        model: Model,
        subgraph: Subgraph,
        place: int,
        tensors: Sequence[Tensor | None],
        memory_limit_bytes: int,
    ) -> None:
        self._limit_bytes = memory_limit_bytes
        operation = subgraph.operations[place]
        self.type = operation.type
        self.inputs = operation.inputs
        self.outputs = operation.outputs
        self.last_uses: tuple[int, ...] = ()
        name = operation_label(model.extension_name_to_prefix, operation.type)
        self.label = f"operation {place} ({name})"
        self._tensors = [tensors[index] for index in operation.inputs]
        self._prepared: dict[tuple[Shape | None, ...], tuple[list[Tensor], Kernel]] = {}
        if self.type in (OperationType.IF, OperationType.WHILE):
            return
        try:
            self._known = operation_at(model, subgraph, place)
            self._targets = declared(tensors, operation.outputs)
        except ModelError as error:
            raise ModelError(f"{self.label}: {error}") from error

    def compute(self, arrays: Values, held_bytes: int) -> list[Array]:
        """The outputs, in memory of their own or, for a change of shape, in that of the input.

        Raises ModelError where they and `held_bytes` together are above the limit of memory.
        """
        MEMORY_BYTES.set(self._limit_bytes - held_bytes)
        results, kernel = self._specialized(arrays)
        if kernel.view_of is not None:
            source: Any = arrays[kernel.view_of]
            return [source.reshape(results[0].shape)]
        nbytes = sum(tensor.size * tensor.dtype.itemsize for tensor in results)
        nbytes += held_bytes + sum(spec.nbytes for spec in kernel.scratch)
        check_memory(nbytes, self._limit_bytes)
        MEMORY_BYTES.set(self._limit_bytes - nbytes)
        outputs = [np.empty(tensor.shape, tensor.dtype) for tensor in results]
        scratch = [np.empty(spec.shape, spec.dtype) for spec in kernel.scratch]
        kernel.bind(arrays, outputs, scratch)()
        return outputs

    def _specialized(self, arrays: Values) -> tuple[list[Tensor], Kernel]:
        key = tuple(None if array is None else array.shape for array in arrays)
        found = self._prepared.get(key)
        if found is not None:
            return found
        inputs = [
            None
            if array is None or tensor is None
            else msgspec.structs.replace(tensor, shape=array.shape, exact=True)
            for array, tensor in zip(arrays, self._tensors, strict=True)
        ]
        try:
            found = self._known.specialize(inputs, self._targets)
        except NotConstant:
            known = [
                None if tensor is None else msgspec.structs.replace(tensor, value=array)
                for tensor, array in zip(inputs, arrays, strict=True)
            ]
            return self._known.specialize(known, self._targets)
        if len(self._prepared) >= _REMEMBERED:
            self._prepared.clear()
        self._prepared[key] = found
        return found


def _find_last_uses(nodes: Sequence[_InterpretedNode], subgraph: Subgraph) -> None:
    """Have each operation forget what nobody reads after it."""
    kept = set(subgraph.output_indexes)
    kept |= {i for i, each in enumerate(subgraph.operands) if hal.is_constant(each)}
    for node in reversed(nodes):
        uses = {*node.inputs, *node.outputs} - kept
        node.last_uses = tuple(
            index for index in uses if subgraph.operands[index].lifetime != OperandLifeTime.SUBGRAPH
        )
        kept |= uses


def _run_program(program: Program, inputs: Sequence[Array | None]) -> Run:
    lane = program.lease()
    try:
        for inner, source in zip(lane.inputs, inputs, strict=True):
            if inner is not None and source is not None:
                np.copyto(inner, source)
        for step in lane.steps:
            step()
            yield
        return [output.copy() for output in lane.outputs]
    finally:
        program.give_back(lane)


def _is_true(condition: Array | None) -> bool:
    if condition is None or condition.size != 1:
        raise ModelError("a condition must be one boolean")
    return bool(condition.reshape(1).view(np.uint8)[0])
