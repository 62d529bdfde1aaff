"""A compiled model: kernels packed once, lanes of memory with bound steps, calls that use them.

A lane is what one execution needs: arrays for inputs, outputs, intermediate results and scratch,
and the steps bound to them. A call copies its inputs into a lane that is free, walks the steps, and
copies the outputs back. Several calls use several lanes at once; one lane is made when the plan is
compiled, but a large one takes pages of memory only when it first runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING

import numpy as np

from nnasync import hal
from nnasync.drivers.cpu.arena import Arena, Block, lay_out
from nnasync.drivers.cpu.resolve import known_shapes, resolve, tensors_of
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Array, Model
from nnasync.kernels import OPERATIONS, Kernel, Step, Tensor

if TYPE_CHECKING:
    from nnasync.workers import StopFlag

__all__ = ["ReferenceCall", "ReferencePlan"]


class _Node:
    """A prepared operation: its kernel and the operands it reads and writes."""

    __slots__ = ("inputs", "kernel", "outputs")

    def __init__(self, kernel: Kernel, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.kernel = kernel
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)


class _Lane:
    """Memory of one execution and the steps bound to it."""

    __slots__ = ("arena", "context", "inputs", "outputs", "steps")

    def __init__(
        self, arena: Arena, inputs: list[Array], outputs: list[Array], steps: list[Step]
    ) -> None:
        self.arena = arena
        self.context = Context()  # numpy's error state, so that overflows of floats do not warn
        self.context.run(np.seterr, all="ignore")
        self.inputs = inputs
        self.outputs = outputs
        self.steps = steps


class ReferencePlan:
    """A model prepared for the processor; any number of its calls may run at once."""

    def __init__(self, model: Model) -> None:
        graph = model.main
        self._inputs, self._outputs = graph.input_indexes, graph.output_indexes
        self._tensors = tensors_of(model)
        nodes = [self._prepare(model, position) for position in range(len(graph.operations))]
        self._storage = self._share_views(nodes)
        self._nodes = [node for node in nodes if node.outputs[0] not in self._storage]
        self._plan_memory()
        self._free = [self._make_lane()]

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Array]) -> ReferenceCall:
        """A call on C-contiguous arrays of the operands' dtypes and shapes.

        Raises InvalidArgument for an array that does not fit or is omitted.
        """
        sources = [
            self._checked("input", position, index, array)
            for position, (index, array) in enumerate(_pairs(self._inputs, inputs, "inputs"))
        ]
        targets = [
            self._checked("output", position, index, array)
            for position, (index, array) in enumerate(_pairs(self._outputs, outputs, "outputs"))
        ]
        return ReferenceCall(self, sources, targets)

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

    def lease(self) -> _Lane:
        """A lane for one execution; safe on any thread."""
        try:
            return self._free.pop()
        except IndexError:
            return self._make_lane()

    def give_back(self, lane: _Lane) -> None:
        """Ends the use of a lane."""
        self._free.append(lane)

    def _prepare(self, model: Model, position: int) -> _Node:
        operation = model.main.operations[position]
        try:
            resolve(model.main, operation, self._tensors)
            if not known_shapes(self._tensors, operation.outputs):
                raise ModelError("the shape of an output is only known when the model runs")
            outputs = [tensor for i in operation.outputs if (tensor := self._tensors[i])]
            kernel = OPERATIONS[hal.OperationType(operation.type)].prepare(
                [self._tensors[i] for i in operation.inputs], outputs
            )
        except ModelError as error:
            name = hal.operation_name(operation.type)
            raise ModelError(f"operation {position} ({name}): {error}") from error
        return _Node(kernel, operation.inputs, operation.outputs)

    def _share_views(self, nodes: Sequence[_Node]) -> dict[int, int]:
        """For each output that is an input in another shape: the operand that has the memory."""
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
        end = len(self._nodes)
        uses: dict[int, list[int]] = {}
        for index in self._inputs:
            uses.setdefault(self._root(index), []).append(-1)
        for step, node in enumerate(self._nodes):
            for index in (*node.inputs, *node.outputs):
                tensor = self._tensors[index]
                if tensor is not None and tensor.value is None:
                    uses.setdefault(self._root(index), []).append(step)
        for index in self._outputs:
            uses.setdefault(self._root(index), []).append(end)
        blocks = [
            Block(self._nbytes(index), min(steps), max(steps)) for index, steps in uses.items()
        ]
        blocks += [
            Block(spec.nbytes, step, step)
            for step, node in enumerate(self._nodes)
            for spec in node.kernel.scratch
        ]
        layout = lay_out(blocks)
        self._total = layout.total
        self._offsets = dict(zip(uses, layout.offsets, strict=False))
        self._scratch_offsets = layout.offsets[len(uses) :]

    def _root(self, index: int) -> int:
        return self._storage.get(index, index)

    def _nbytes(self, index: int) -> int:
        tensor = self._known(index)
        return tensor.size * tensor.dtype.itemsize

    def _known(self, index: int) -> Tensor:
        tensor = self._tensors[index]
        if tensor is None or not tensor.is_known:
            raise ModelError(f"operand {index}: its shape is not known")
        return tensor

    def _make_lane(self) -> _Lane:
        arena = Arena(self._total)
        arrays: list[Array | None] = []
        for index, tensor in enumerate(self._tensors):
            offset = self._offsets.get(self._root(index))
            if tensor is None or offset is None:
                arrays.append(None if tensor is None else tensor.value)
            else:
                arrays.append(arena.array(offset, tensor.shape, tensor.dtype))
        steps = self._bind_steps(arena, arrays)
        return _Lane(arena, _arrays(arrays, self._inputs), _arrays(arrays, self._outputs), steps)

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

    def _checked(self, kind: str, position: int, index: int, array: Array | None) -> Array:
        tensor = self._known(index)
        where = f"{kind} {position}"
        if array is None:
            raise InvalidArgument(f"{where} is omitted, which {kind}s of this device cannot be")
        if array.shape != tensor.shape or array.dtype != tensor.dtype:
            raise InvalidArgument(
                f"{where} is {array.dtype}{list(array.shape)},"
                f" expected {tensor.dtype}{list(tensor.shape)}"
            )
        return array


def _pairs(
    indexes: Sequence[int], arrays: Sequence[Array | None], kind: str
) -> list[tuple[int, Array | None]]:
    if len(indexes) != len(arrays):
        raise InvalidArgument(f"{len(arrays)} {kind} given, expected {len(indexes)}")
    return list(zip(indexes, arrays, strict=True))


def _arrays(arrays: Sequence[Array | None], indexes: Sequence[int]) -> list[Array]:
    return [array for index in indexes if (array := arrays[index]) is not None]


class ReferenceCall:
    """A plan bound to arrays: resumable, and used by one thread at a time."""

    __slots__ = ("_index", "_lane", "_plan", "_sources", "_targets")

    def __init__(
        self, plan: ReferencePlan, sources: Sequence[Array], targets: Sequence[Array]
    ) -> None:
        self._plan = plan
        self._sources = tuple(sources)
        self._targets = tuple(targets)
        self._lane: _Lane | None = None
        self._index = 0

    def run(self, stop: StopFlag) -> bool:
        """Runs to the end, or to the next operation boundary once `stop.raised` is not 0."""
        lane = self._lane
        try:
            if lane is None:
                if stop.raised:
                    return False
                lane = self._lane = self._plan.lease()
                for inner, source in zip(lane.inputs, self._sources, strict=True):
                    np.copyto(inner, source)
            if not lane.context.run(self._walk, lane.steps, stop):
                return False
            for target, inner in zip(self._targets, lane.outputs, strict=True):
                np.copyto(target, inner)
        except BaseException:
            self.rewind()
            raise
        self.rewind()
        return True

    def _walk(self, steps: Sequence[Step], stop: StopFlag) -> bool:
        index = self._index
        for step in steps[index:] if index else steps:
            if stop.raised:
                self._index = index
                return False
            step()
            index += 1
        return True

    def rewind(self) -> None:
        """Forgets what has run and gives the lane back."""
        lane, self._lane, self._index = self._lane, None, 0
        if lane is not None:
            self._plan.give_back(lane)
