"""A subgraph with all shapes known: kernels packed once, lanes of memory with bound steps.

A lane is what one execution needs: arrays for inputs, outputs, intermediate results and scratch,
and the steps bound to them. An execution copies its inputs into a lane that is free, walks the
steps, and copies the outputs back. Several executions use several lanes at once. A lane takes pages
of memory when it is first leased, and gives them back when it is trimmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context

import msgspec
import numpy as np

from nnasync._core.drivers.cpu.execution_limits import MAX_EXECUTION_BYTES, check_memory
from nnasync._core.drivers.cpu.resolve import declared, operation_at
from nnasync._core.plans.arena import (
    Arena,
    Block,
    MemoryPlan,
    PlannedBlock,
    aligned,
    lay_out,
    lower_bound,
)
from nnasync._core.validation import subgraph_tensors
from nnasync.errors import ModelError
from nnasync.extensions import operation_label
from nnasync.hal import Array, Model, OperationType, Shape, Subgraph
from nnasync.kernels import MEMORY_BYTES, PACKING, Kernel, NotConstant, Packing, Step, Tensor


class Unresolved(Exception):
    """A shape of the subgraph is only known when it runs, or it branches."""


def silent_context(memory_bytes: int) -> Context:
    """A context in which overflows of floats do not warn and kernels know how much memory is left.

    Numpy keeps its error state there.
    """
    context = Context()
    context.run(np.seterr, all="ignore")
    context.run(MEMORY_BYTES.set, memory_bytes)
    return context


class _Node:
    """A prepared operation: its kernel and the operands it reads and writes."""

    __slots__ = ("inputs", "kernel", "name", "outputs")

    def __init__(
        self, name: str, kernel: Kernel, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        self.name = name
        self.kernel = kernel
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)


class Lane:
    """Memory of one execution and the steps bound to it."""

    __slots__ = ("arena", "context", "inputs", "outputs", "steps")

    def __init__(
        self,
        arena: Arena,
        inputs: list[Array | None],
        outputs: list[Array],
        steps: list[Step],
        context: Context,
    ) -> None:
        self.arena = arena
        self.context = context
        self.inputs = inputs
        self.outputs = outputs
        self.steps = steps


class Program:
    """A subgraph prepared for inputs of certain shapes; any number of executions may share it.

    `shapes` are those of the inputs, None for an omitted one and for all of them what the model
    says. `packing` records or replays packed weights. Raises Unresolved, or ModelError that names
    the operation at fault.
    """

    def __init__(
        self,
        model: Model,
        subgraph: Subgraph,
        shapes: Sequence[Shape | None] | None = None,
        *,
        memory_limit_bytes: int = MAX_EXECUTION_BYTES,
        packing: Packing | None = None,
    ) -> None:
        self._subgraph = subgraph
        self._limit_bytes = memory_limit_bytes
        self._tensors = subgraph_tensors(model, subgraph)
        if shapes is not None:
            self._take_shapes(shapes)
        context = silent_context(memory_limit_bytes)
        context.run(PACKING.set, packing)
        places = range(len(subgraph.operations))
        nodes = [context.run(self._prepare, model, place) for place in places]
        self._storage = self._share_views(nodes)
        self._nodes = [node for node in nodes if node.outputs[0] not in self._storage]
        self._plan_memory()
        self._free = [self._make_lane()]

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the outputs."""
        return tuple(self._known(index).shape for index in self._subgraph.output_indexes)

    @property
    def memory_plan(self) -> MemoryPlan:
        """Returns where everything lies in the memory of a lane."""
        names = [*(self._label(index) for index in self._uses), *self._scratch_names]
        offsets = (*self._offsets.values(), *self._scratch_offsets)
        return MemoryPlan(
            blocks=tuple(
                PlannedBlock(name, block.nbytes, block.first, block.last, offset)
                for name, block, offset in zip(names, self._blocks, offsets, strict=True)
            ),
            operations=tuple(node.name for node in self._nodes),
            total=self.nbytes,
            unshared=sum(aligned(block.nbytes) for block in self._blocks),
            lower_bound=lower_bound(self._blocks),
        )

    def lease(self) -> Lane:
        """A lane for one execution; safe on any thread."""
        try:
            lane = self._free.pop()
        except IndexError:
            lane = self._make_lane()
        lane.arena.populate()
        return lane

    def give_back(self, lane: Lane) -> None:
        """Ends the use of a lane."""
        self._free.append(lane)

    def trim(self) -> None:
        """Gives the memory of idle lanes back; one stays bound, without pages."""
        lanes = []
        try:
            while True:
                lanes.append(self._free.pop())
        except IndexError:
            pass
        if lanes:
            lanes[0].arena.trim()
            self._free.append(lanes[0])

    def _take_shapes(self, shapes: Sequence[Shape | None]) -> None:
        for index, shape in zip(self._subgraph.input_indexes, shapes, strict=True):
            tensor = self._tensors[index]
            if shape is None or tensor is None:
                self._tensors[index] = None
            else:
                self._tensors[index] = msgspec.structs.replace(tensor, shape=shape, exact=True)

    def _prepare(self, model: Model, position: int) -> _Node:
        operation = self._subgraph.operations[position]
        if operation.type in (OperationType.IF, OperationType.WHILE):
            raise Unresolved
        inputs = [self._tensors[index] for index in operation.inputs]
        if any(tensor is not None and not tensor.is_known for tensor in inputs):
            raise Unresolved
        try:
            known = operation_at(model, self._subgraph, position)
            targets = declared(self._tensors, operation.outputs)
            try:
                results, kernel = known.specialize(inputs, targets)
            except NotConstant:
                if not all(tensor.is_known for tensor in targets):
                    raise Unresolved from None
                results, kernel = targets, known.prepare(inputs, targets)
        except ModelError as error:
            name = operation_label(model.extension_name_to_prefix, operation.type)
            raise ModelError(f"operation {position} ({name}): {error}") from error
        for index, result in zip(operation.outputs, results, strict=True):
            self._tensors[index] = result
        return _Node(known.name, kernel, operation.inputs, operation.outputs)

    def _share_views(self, nodes: Sequence[_Node]) -> dict[int, int]:
        """Returns for each output that only reshapes an input the operand with its memory."""
        storage: dict[int, int] = {}
        for node in nodes:
            if node.kernel.view_of is None:
                continue
            source = node.inputs[node.kernel.view_of]
            tensor = self._tensors[source]
            if tensor is not None and tensor.value is None:
                storage[node.outputs[0]] = storage.get(source, source)
        return storage

    def _plan_memory(self) -> None:
        """Lays out the memory of a lane: operands by lifetime, then scratch of each operation."""
        self._uses = self._find_uses()
        self._blocks = [
            Block(self._nbytes(index), min(steps), max(steps))
            for index, steps in self._uses.items()
        ]
        self._scratch_names = [
            f"scratch of {node.name}" for node in self._nodes for _ in node.kernel.scratch
        ]
        self._blocks += [
            Block(spec.nbytes, step, step)
            for step, node in enumerate(self._nodes)
            for spec in node.kernel.scratch
        ]
        layout = lay_out(self._blocks)
        self.nbytes = layout.total
        """Size of the memory of a lane."""
        check_memory(layout.total, self._limit_bytes)
        self._offsets = dict(zip(self._uses, layout.offsets, strict=False))
        self._scratch_offsets = layout.offsets[len(self._uses) :]

    def _find_uses(self) -> dict[int, list[int]]:
        """Returns for each operand that needs memory the steps at which it is written or read."""
        uses: dict[int, list[int]] = {}
        for index in self._subgraph.input_indexes:
            if self._tensors[index] is not None:
                uses.setdefault(self._root(index), []).append(-1)
        for step, node in enumerate(self._nodes):
            for index in (*node.inputs, *node.outputs):
                tensor = self._tensors[index]
                if tensor is not None and tensor.value is None:
                    uses.setdefault(self._root(index), []).append(step)
        for index in self._subgraph.output_indexes:
            uses.setdefault(self._root(index), []).append(len(self._nodes))
        return uses

    def _root(self, index: int) -> int:
        return self._storage.get(index, index)

    def _label(self, index: int) -> str:
        name = self._subgraph.operands[index].name
        return f"operand {index} {name}".rstrip()

    def _nbytes(self, index: int) -> int:
        tensor = self._known(index)
        return tensor.size * tensor.dtype.itemsize

    def _known(self, index: int) -> Tensor:
        tensor = self._tensors[index]
        if tensor is None or not tensor.is_known:
            raise Unresolved
        return tensor

    def _make_lane(self) -> Lane:
        arena = Arena(self.nbytes)
        arrays: list[Array | None] = []
        for index, tensor in enumerate(self._tensors):
            offset = self._offsets.get(self._root(index))
            if tensor is None or offset is None:
                arrays.append(None if tensor is None else tensor.value)
            else:
                arrays.append(arena.array(offset, tensor.shape, tensor.dtype))
        context = silent_context(self._limit_bytes - self.nbytes)
        steps = context.run(self._bind_steps, arena, arrays)
        inputs = [arrays[index] for index in self._subgraph.input_indexes]
        outputs = _arrays(arrays, self._subgraph.output_indexes)
        return Lane(arena, inputs, outputs, steps, context)

    def _bind_steps(self, arena: Arena, arrays: Sequence[Array | None]) -> list[Step]:
        steps = []
        offsets = iter(self._scratch_offsets)
        for node in self._nodes:
            scratch = [
                arena.array(next(offsets), spec.shape, np.dtype(spec.dtype))
                for spec in node.kernel.scratch
            ]
            inputs = [arrays[index] for index in node.inputs]
            steps.append(node.kernel.bind(inputs, _arrays(arrays, node.outputs), scratch))
        return steps


def _arrays(arrays: Sequence[Array | None], indexes: Sequence[int]) -> list[Array]:
    return [array for index in indexes if (array := arrays[index]) is not None]
