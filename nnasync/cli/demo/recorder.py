"""What ran when: every execution of the demo, in the pieces in which it had a core."""

from __future__ import annotations

from collections import deque

from nnasync.hal import Struct
from nnasync.tracing import Instrument

__all__ = ["INLINE", "Job", "Piece", "Recorder"]

INLINE = -1
"""Job number of an execution that ran inline and was never queued."""

_LIMIT = 400_000


class Piece(Struct):
    """A time in which one execution of a network had a core."""

    network: str
    job: int
    start_ns: int
    end_ns: int
    preempted: bool = False


class Job(Struct):
    """A queued execution from its submission to its end."""

    network: str
    job: int
    submitted_ns: int
    end_ns: int


class Recorder(Instrument):
    """Instrument of the runtime that keeps pieces and jobs, the latest few hundred thousand."""

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque(maxlen=_LIMIT)
        self.jobs: deque[Job] = deque(maxlen=_LIMIT)
        self._submitted: dict[int, int] = {}
        self._started: dict[int, int] = {}

    def job_submitted(self, job_id: int, name: str, at_ns: int) -> None:
        """Remember when the job came."""
        self._submitted.setdefault(job_id, at_ns)

    def job_started(self, job_id: int, name: str, track: str, at_ns: int) -> None:
        """Remember when the job got a core."""
        self._started[job_id] = at_ns

    def job_preempted(self, job_id: int, name: str, track: str, at_ns: int) -> None:
        """Keep the piece that ends here."""
        start_ns = self._started.pop(job_id, at_ns)
        self.pieces.append(Piece(name, job_id, start_ns, at_ns, True))

    def job_finished(
        self, job_id: int, name: str, track: str, at_ns: int, error: Exception | None
    ) -> None:
        """Keep the last piece and the whole job."""
        start_ns = self._started.pop(job_id, None)
        if start_ns is not None:
            self.pieces.append(Piece(name, job_id, start_ns, at_ns))
        self.jobs.append(Job(name, job_id, self._submitted.pop(job_id, at_ns), at_ns))

    def inline_run(self, name: str, track: str, start_ns: int, end_ns: int) -> None:
        """Keep an execution on the loop's own thread."""
        self.pieces.append(Piece(name, INLINE, start_ns, end_ns))
