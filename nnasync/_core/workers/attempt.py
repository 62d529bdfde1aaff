"""One run of a task that was taken from the queue, to its end or until it is stopped."""

from __future__ import annotations

from nnasync._core.clock import now_ns
from nnasync._core.workers.task import Task, contained
from nnasync.errors import NNError
from nnasync.tracing import Tracer


def attempted(task: Task, tracer: Tracer) -> tuple[bool, NNError | None, int, int]:
    """Run a task on this thread; a failure of the device is told, not raised.

    Returns whether it finished, its failure if it failed (else it was stopped), how long it took
    and when it ended, in nanoseconds.
    """
    begun_ns = now_ns()
    task.started_ns = task.started_ns or begun_ns
    for hook in tracer.task_started:
        hook(task, begun_ns)
    failure: NNError | None = None
    finished = False
    try:
        finished = task.call.run(task.stop)
    except BaseException as error:
        failure = contained(error, task.name)
    ended_ns = now_ns()
    task.active_ns += ended_ns - begun_ns
    for run_hook in tracer.task_ran:
        run_hook(task, begun_ns, ended_ns, finished)
    return finished, failure, ended_ns - begun_ns, ended_ns
