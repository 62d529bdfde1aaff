"""The text of metrics of one source, whichever server hands it out.

exposition = Exposition(runtime)
exposition.open()
exposition.text()    # for Prometheus, with the content type `metrics.CONTENT_TYPE`
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from nnasync.tracing.families import Collector
from nnasync.tracing.instruments import Tracer
from nnasync.tracing.metrics import Clients, Durations, Processes, render


class Measured(Protocol):
    """What has statistics and can be observed (`runtime.Runtime` is one)."""

    @property
    def tracer(self) -> Tracer:
        """Returns the tracer, in which instruments are installed."""

    def statistics(self) -> msgspec.Struct:
        """Numbers now, and since the start."""


class Exposition:
    """Statistics, calls, durations, processes, clients of a source, and further collectors.

    Durations are those of executions between `open` and `close`.
    """

    def __init__(self, source: Measured, collectors: Iterable[Collector] = ()) -> None:
        self._source = source
        self._durations = Durations()
        calls: Collector | None = getattr(source, "calls", None)
        self._collectors: tuple[Collector, ...] = (
            *(() if calls is None else (calls,)),
            self._durations,
            Processes(source),
            Clients(source),
            *collectors,
        )

    def open(self) -> None:
        """Begin to measure; raises BadState where it has begun."""
        self._source.tracer.add(self._durations)

    def close(self) -> None:
        """Measure no more."""
        self._source.tracer.remove(self._durations)

    def text(self) -> str:
        """The metrics now; raises BadState before the source is opened."""
        return render(self._source.statistics(), *self._collectors)
