"""The errors of executions that the workers do not finish."""

from __future__ import annotations

from nnasync._core.clock import now_ns
from nnasync._core.workers.task import Task
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
    because,
)


def closed(text: str = "the runtime is closed") -> DeviceUnavailable:
    """It came too late, or was in flight."""
    return because("closing", DeviceUnavailable(text))


def no_thread(text: str) -> ResourceExhaustedTransient:
    """The system gives no more threads."""
    return because("threads", ResourceExhaustedTransient(text))


def unwatched(error: Exception) -> NNError:
    """The error of an execution whose deadline cannot be watched."""
    if isinstance(error, BadState):
        return closed()
    return no_thread(f"no thread to watch deadlines: {error}")


def stopped(task: Task) -> GeneralFailure:
    """Its run ended early, and nobody wanted that."""
    return GeneralFailure(f"{task.name} stopped without having been asked to")


def missed(task: Task) -> MissedDeadline:
    """Its deadline has passed, before it began or since, or a policy gave it up before that."""
    if task.started_ns:
        text = f"the deadline of {task.name} passed during its execution"
        return because("running", MissedDeadlineTransient(text))
    if task.deadline_ns > now_ns():
        text = f"{task.name} could not be ready by its deadline any more: others took longer before"
        return because("queue", MissedDeadlinePersistent(text))
    text = f"the deadline of {task.name} passed before its execution"
    return because("queue", MissedDeadlinePersistent(text))
