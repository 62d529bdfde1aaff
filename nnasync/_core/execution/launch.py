"""A launched execution: outputs in place, a fence, and information afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from nnasync._core.execution.ports import Port
from nnasync._core.execution.slots import Lease, Slot, output_regions
from nnasync.device import ExecutionInfo, FencedExecution, PreparedModel
from nnasync.errors import BadState, DeviceError, NNError
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig, Request
from nnasync.memory import Region


class Execution:
    """A launched execution, which `net.launch` returns.

    `outputs` are zero-copy regions: read them (`region.array`, `np.asarray(region)`) once the fence
    is signaled, and pass them to another launch that waits for the fence. They stay valid until the
    execution is closed, or it and its regions are dropped.
    """

    __slots__ = ("__weakref__", "_launched", "_lease", "_outputs", "_outs", "_ports")

    def __init__(
        self,
        launched: FencedExecution,
        lease: Lease,
        ports: Sequence[Port],
        outs: Sequence[Any] | None = None,
    ) -> None:
        """Takes what was launched.

        `outs` has a buffer for each output that is in one, else None.
        """
        self._launched = launched
        self._outs = outs
        self._lease = lease
        self._ports = ports
        self._outputs: tuple[Any, ...] | None = None

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Returns the outputs in place, as regions, or as the buffers that were given for them.

        Raises BadState once the execution is closed.
        """
        outputs = self._outputs
        if outputs is None:
            outputs = output_regions(self._slot(), self._lease, self._ports)
            if self._outs is not None:
                outputs = tuple(
                    region if out is None else out
                    for region, out in zip(outputs, self._outs, strict=True)
                )
            self._outputs = outputs
        return outputs

    @property
    def fence(self) -> Fence:
        """Returns the fence that is signaled when the outputs are written.

        It fails if none will be.
        """
        return self._launched.fence

    async def info(self) -> ExecutionInfo:
        """Returns status and requested timings; raises BadState while the fence is pending."""
        return await self._launched.get_execution_info()

    async def result(self) -> Any:
        """Waits for the fence and returns copies of the outputs; a tuple if there are several.

        Buffers are returned as they are.
        """
        await self.fence
        slot = self._slot()
        if self._outs is None:
            return slot.read(None)
        values = tuple(
            value.array.copy() if isinstance(value, Region) else value for value in self.outputs
        )
        return values[0] if len(values) == 1 else values

    def cancel(self) -> None:
        """Ends the work; the fence fails with Cancelled unless it is done already."""
        self._launched.cancel()

    def close(self) -> None:
        """Cancels the work if it is not done, and gives the outputs' memory back."""
        if not self.fence.done:
            self.cancel()
        self._lease.close()

    def _slot(self) -> Slot:
        slot = self._lease.slot
        if slot is None:
            raise BadState("the execution is closed, its outputs are gone")
        return slot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class FailedLaunch:
    """Stands for a launch that the device turned down: its fence has failed from the beginning."""

    __slots__ = ("_error", "fence")

    def __init__(self, error: NNError) -> None:
        self._error = error
        self.fence = Fence()
        self.fence.fail(error)

    async def get_execution_info(self) -> ExecutionInfo:
        """Returns the status of the error."""
        return ExecutionInfo(self._error.status)

    def cancel(self) -> None:
        """Does nothing, since the execution is over."""


async def fenced(
    prepared: PreparedModel, request: Request, fences: Sequence[Fence], config: ExecutionConfig
) -> FencedExecution:
    """Returns a launched execution, or a failed one if the device turned it down."""
    try:
        return await prepared.execute_fenced(request, fences, config)
    except DeviceError as error:
        return FailedLaunch(error)
