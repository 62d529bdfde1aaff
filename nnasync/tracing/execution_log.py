"""The narrator: an instrument that writes VLOG lines of what executions do."""

from __future__ import annotations

from nnasync.tracing.instruments import Instrument, Signal, Traced
from nnasync.tracing.marks import Mark
from nnasync.tracing.verbose import vlog


class ExecutionLog(Instrument):
    """Writes lines of the tags `execution` (tasks, runs, answers) and `manager` (phases).

    Its lines go by what is on when they are written.
    """

    def task_submitted(self, task: Traced) -> None:
        """A line when a task is queued."""
        vlog.execution("%s: queued, %s", _who(task), task.priority.name)

    def task_waits(self, task: Traced, fence: Signal) -> None:
        """A line for each fence that a task waits for."""
        vlog.execution("%s: waits for %r", _who(task), fence)

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """A line when a worker takes a task up."""
        waited_ms = (begun_ns - task.ready_ns) / 1e6
        vlog.execution("%s: starts, %.3f ms after it was ready", _who(task), waited_ms)

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """A line when a worker puts a task down."""
        what = "ran to its end" if finished else "stopped"
        vlog.execution("%s: %s, %.3f ms", _who(task), what, (ended_ns - begun_ns) / 1e6)

    def task_answered(self, task: Traced, error: Exception | None) -> None:
        """A line with a task's error; the end of a run has a line already."""
        if error is not None:
            vlog.execution("%s: answered %s: %s", _who(task), type(error).__name__, error)

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """A line for an inline run."""
        vlog.execution("%s: ran inline, %.3f ms", name, (ended_ns - begun_ns) / 1e6)

    def marked(self, mark: Mark, begun_ns: int, ended_ns: int) -> None:
        """A line for what else was done."""
        vlog.manager("%s %.3f ms", mark, (ended_ns - begun_ns) / 1e6)


def _who(task: Traced) -> str:
    return f"{task.name} ({id(task):#x})"
