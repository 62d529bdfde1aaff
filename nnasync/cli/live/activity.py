"""Which thread ran which network when, as an instrument that is emptied several times a second."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from nnasync.hal import Struct
from nnasync.tracing import Instrument, Layer, Span, Traced

_LIMIT = 2000
_ON = " on "


class Run(Struct, frozen=True):
    """A time in which a thread, or the process of a driver, ran a network."""

    lane: str
    network: str
    start_ns: int
    end_ns: int


class Activity(Instrument):
    """Keeps the runs since they were last taken, at most `_LIMIT`; `dropped` counts the others."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque(maxlen=_LIMIT)
        self.dropped = 0

    def take(self) -> list[Run]:
        """Returns the runs since the last call, in the order of their ends."""
        taken = []
        while self._runs:
            taken.append(self._runs.popleft())
        return taken

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Keep a run on a worker."""
        self._keep(Run(_lane(), _network(task.name), begun_ns, ended_ns))

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Keep a run on the loop's thread."""
        self._keep(Run("event loop", _network(name), begun_ns, ended_ns))

    def service_told(self, records: Sequence[object]) -> None:
        """Keep the runs in the process of a device."""
        for record in records:
            if isinstance(record, Span) and record.layer is Layer.DRIVER and _ON in record.name:
                network = _network(record.name)
                self._keep(Run("driver process", network, record.start_ns, record.end_ns))

    def _keep(self, run: Run) -> None:
        self.dropped += len(self._runs) == _LIMIT
        self._runs.append(run)


def _lane() -> str:
    name = threading.current_thread().name
    return name.removeprefix("nnasync-").replace("-", " ")


def _network(executed: str) -> str:
    """The network of "NETWORK on DEVICE"."""
    return executed.partition(_ON)[0]
