"""What ran when: every execution of the demo, in the pieces in which it had a core."""

from __future__ import annotations

from collections import deque

from nnasync.hal import Struct
from nnasync.tracing import Instrument, Traced

INLINE = -1
"""Job number of an execution that ran inline and was never queued."""

_LIMIT = 400_000


class DemoPiece(Struct):
    """A time in which one execution of a network had a core."""

    network: str
    job: int
    start_ns: int
    end_ns: int


class DemoJob(Struct):
    """A queued execution from its launch (`job`) to its end."""

    network: str
    job: int
    end_ns: int


class DemoRecorder(Instrument):
    """Instrument of the runtime that keeps pieces and jobs, the latest few hundred thousand.

    A job is known by the time at which it was launched.
    """

    def __init__(self) -> None:
        self.pieces: deque[DemoPiece] = deque(maxlen=_LIMIT)
        self.jobs: deque[DemoJob] = deque(maxlen=_LIMIT)

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Keep the piece, and the job with its last one."""
        launched_ns = task.launched_ns
        self.pieces.append(DemoPiece(task.name, launched_ns, begun_ns, ended_ns))
        if finished:
            self.jobs.append(DemoJob(task.name, launched_ns, ended_ns))

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Keep an execution on the loop's own thread."""
        self.pieces.append(DemoPiece(name, INLINE, begun_ns, ended_ns))
