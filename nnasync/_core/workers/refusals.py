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
    """Returns the error of an execution that came after the end, or was in flight then."""
    return because("closing", DeviceUnavailable(text))


def no_thread(text: str) -> ResourceExhaustedTransient:
    """Returns the error for a system that gives no more threads."""
    return because("threads", ResourceExhaustedTransient(text))


def unwatched(error: Exception) -> NNError:
    """Returns the error of an execution whose deadline cannot be watched."""
    if isinstance(error, BadState):
        return closed()
    return no_thread(f"no thread to watch deadlines: {error}")


def stopped(name: str) -> GeneralFailure:
    """Returns the error of an execution whose run ended early though nobody had stopped it."""
    return GeneralFailure(
        f"{name} stopped without having been asked to: `run` of its driver gave False or nothing, "
        "where True means that it ran to the end"
    )


def missed(task: Task) -> MissedDeadline:
    """Returns the error of an execution that missed its deadline, before it began or since.

    A policy may also have given it up before its deadline.
    """
    if task.started_ns:
        text = f"the deadline of {task.name} passed during its execution"
        return because("running", MissedDeadlineTransient(text))
    if task.deadline_ns > now_ns():
        text = f"{task.name} could not be ready by its deadline any more: others took longer before"
        return because("queue", MissedDeadlinePersistent(text))
    text = f"the deadline of {task.name} passed before its execution"
    return because("queue", MissedDeadlinePersistent(text))
