"""The ways of a request to a device, and the memory of a case that it reads and writes.

All inputs lie in one pool and all outputs in another, each at a multiple of four bytes. An output
without elements has a buffer of one byte. Before each execution the outputs are filled with a
pattern, so that what a device does not write cannot be right by chance of an earlier run.
"""

from __future__ import annotations

import enum

import numpy as np

from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.conformance.cases import Case
from nnasync.device import PreparedModel
from nnasync.errors import DeviceUnavailable, GeneralFailure, NNError
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    Array,
    DataLocation,
    ErrorStatus,
    ExecutionConfig,
    ExecutionResult,
    Request,
    RequestArgument,
    Shape,
)
from nnasync.memory import Pool, layout

_ALIGNMENT = 4
_PATTERN = 0xA5


class Path(enum.Enum):
    """How an execution gets to the device.

    The first one is asynchronous, so that the device knows durations when others follow: an
    execution of known short duration may take another way inside than an unknown one. CACHED is a
    synchronous execution of a model that was loaded from its compilation cache.
    """

    ASYNC = "async"
    SYNC = "sync"
    FENCED = "fenced"
    BURST = "burst"
    CACHED = "cached"
    RUNTIME = "runtime"


class CaseBuffers:
    """Inputs and outputs of a case in two pools."""

    def __init__(self, case: Case) -> None:
        self._case = case
        sizes = [0 if value is None else value.nbytes for value in case.inputs]
        offsets, total = layout(sizes, _ALIGNMENT)
        self._input_pool = Pool.allocate(max(total, 1))
        self._inputs = [
            _input_argument(value, DataLocation(0, offset, size))
            for value, offset, size in zip(case.inputs, offsets, sizes, strict=True)
        ]
        for value, offset in zip(case.inputs, offsets, strict=True):
            if value is not None:
                self._input_pool.array(value.dtype, value.shape, offset)[...] = value
        self._given = bytes(self._input_pool.view)
        sizes = [max(output.value.nbytes, 1) for output in case.outputs]
        offsets, total = layout(sizes, _ALIGNMENT)
        self._output_pool = Pool.allocate(max(total, 1))
        self._outputs = [
            DataLocation(1, offset, size) for offset, size in zip(offsets, sizes, strict=True)
        ]

    def request(self, *, too_small: bool = False) -> Request:
        """A request for the whole case; perhaps the first output lacks one byte."""
        outputs = [RequestArgument(location=location) for location in self._outputs]
        if too_small:
            first = self._outputs[0]
            shorter = DataLocation(first.pool_index, first.offset, first.length - 1)
            outputs[0] = RequestArgument(location=shorter)
        pools = (self._input_pool, self._output_pool)
        return Request(tuple(self._inputs), tuple(outputs), pools)

    def clear(self) -> None:
        """Fill the outputs with the pattern."""
        np.frombuffer(self._output_pool.view, np.uint8)[...] = _PATTERN

    def output(self, position: int, shape: Shape) -> Array:
        """A copy of an output; the shape takes no more than its buffer has."""
        dtype = self._case.outputs[position].value.dtype
        return self._output_pool.array(dtype, shape, self._outputs[position].offset).copy()

    def restore(self) -> None:
        """Put the inputs back, which a request that is not of this case may have written to."""
        self._input_pool.view[:] = self._given

    def inputs_are_intact(self) -> bool:
        """Returns whether nobody wrote to the inputs."""
        return self._input_pool.view == self._given

    def close(self) -> None:
        """Give the memory back."""
        self._input_pool.close()
        self._output_pool.close()


def _input_argument(value: Array | None, location: DataLocation) -> RequestArgument:
    if value is None:
        return RequestArgument(has_no_value=True)
    if value.size == 0:
        return RequestArgument(location=location, dimensions=value.shape)
    return RequestArgument(location=location)


async def execute(
    path: Path,
    prepared: PreparedModel,
    request: Request,
    config: ExecutionConfig = DEFAULT_CONFIG,
) -> ExecutionResult:
    """One execution over a path of prepared models; raises what the device does.

    A fenced execution is followed by a second one that waits for its fence. A burst has no loop
    timeout.
    """
    if path is Path.BURST:
        return await _burst(prepared, request, config)
    if path is Path.FENCED:
        return await _fenced(prepared, request, config)
    run = prepared.execute if path is Path.ASYNC else prepared.execute_synchronously
    return await run(request, config)


async def _fenced(
    prepared: PreparedModel, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    first = await prepared.execute_fenced(request, (), config)
    launched = await prepared.execute_fenced(request, (first.fence,), config)
    try:
        await launched.fence
    except NNError:
        await first.fence  # Where it failed, its own error counts, not that of its dependant.
        raise
    info = await launched.get_execution_info()
    if info.status != ErrorStatus.NONE:
        raise GeneralFailure(f"the fence is signaled, but the info says {info.status.name}")
    return ExecutionResult(timing=info.timing_launched)


async def _burst(
    prepared: PreparedModel, request: Request, config: ExecutionConfig
) -> ExecutionResult:
    requests, results = LocalChannel(), LocalChannel()
    controller = BurstController(requests, results)
    answered = Fence()
    outcomes: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        answered.signal()

    context = await prepared.configure_execution_burst(controller, requests, results)
    controller.attach(context)
    try:
        controller.send(controller.encode(request), done, config)
        await answered
    finally:
        controller.close(DeviceUnavailable("the burst was closed"))
    outcome = outcomes[0]
    if isinstance(outcome, NNError):
        raise outcome
    return outcome
