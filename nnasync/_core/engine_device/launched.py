"""A fenced execution of an engine, and the timings of a task."""

from __future__ import annotations

from nnasync._core.device_helpers import failed_info
from nnasync._core.workers import Task, Workers
from nnasync.device import ExecutionInfo
from nnasync.fences import Fence
from nnasync.hal import NOT_AVAILABLE, ErrorStatus, Timing


class Done:
    """The task of an execution that ran within its launch."""

    __slots__ = ("fence", "finished_ns", "launched_ns")

    def __init__(self, launched_ns: int, fence: Fence) -> None:
        self.fence = fence
        self.launched_ns = launched_ns
        self.finished_ns = fence.signaled_at_ns

    @property
    def ready_ns(self) -> int:
        """Returns 0, since it waited for nothing."""
        return self.launched_ns

    @property
    def started_ns(self) -> int:
        """Returns 0, since it was not queued."""
        return self.launched_ns


class Launched:
    """A fenced execution (IFencedExecutionCallback)."""

    __slots__ = ("_measure", "_task", "_workers")

    def __init__(self, task: Task | Done, workers: Workers, *, measure: bool) -> None:
        self._task = task
        self._workers = workers
        self._measure = measure

    @property
    def fence(self) -> Fence:
        """Returns the fence that is signaled when the outputs are written."""
        return self._task.fence

    def cancel(self) -> None:
        """End the execution."""
        if isinstance(self._task, Task):
            self._workers.abandon(self._task)

    async def get_execution_info(self) -> ExecutionInfo:
        """Returns status and timings; raises BadState while the fence is pending."""
        task = self._task
        failed = failed_info(task.fence)
        if failed is not None or not self._measure:
            return failed or ExecutionInfo()
        return ExecutionInfo(
            ErrorStatus.NONE,
            timing_of(task, task.launched_ns),
            timing_of(task, task.ready_ns),
        )


def timing_of(task: Task | Done, since_ns: int) -> Timing:
    """Returns the durations of a finished task: running, and since a point in time."""
    if not task.finished_ns:
        return Timing(NOT_AVAILABLE, NOT_AVAILABLE)
    return Timing(task.finished_ns - task.started_ns, task.finished_ns - since_ns)
