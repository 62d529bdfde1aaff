"""An execution beside others: of those in the queue, on whichever thread is free first."""

from __future__ import annotations

from typing import Protocol

from nnasync._core.plans.guarded import Health
from nnasync.errors import DeviceError
from nnasync.hal import ExecutionConfig, ExecutionResult, Request


class OnWorker(Protocol):
    """Runs an execution that is queued for workers; where it `is_spread`, loops take it as well."""

    async def __call__(
        self, request: Request, config: ExecutionConfig, *, is_spread: bool = False
    ) -> ExecutionResult: ...


async def run_beside(
    on_worker: OnWorker, request: Request, config: ExecutionConfig, health: Health | None
) -> ExecutionResult:
    """Run on a worker or on the thread of a loop.

    On that nothing falls back on what stands by for the device, so a worker then repeats the run.
    """
    try:
        return await on_worker(request, config, is_spread=True)
    except DeviceError:
        if health is None or not health.suspects:
            raise
        return await on_worker(request, config)
