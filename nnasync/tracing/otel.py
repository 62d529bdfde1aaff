"""Spans of OpenTelemetry for what a runtime executes, here and in the processes of its devices.

    from nnasync.tracing.otel import SpanInstrument

    async with nn.open_runtime(instruments=[SpanInstrument()]) as rt: ...

It speaks to the API package alone (pip install 'nnasync[otel]'): an application that has set up no
SDK pays for an instrument and gets nothing. A span is a child of the one that is current where the
call is made, so a request's span, whoever made it, has its executions below it:

    POST /digits                      the request: `nnasync.asgi.RequestSpans`, or another's
      execute digits                  from the call to its answer, with events `started`,
                                      `preempted`; by a worker, or on the thread of the loop
      execute on litert-cpu           a call to a device in another process, from here
        run digits                    what the worker there did, by its own account
        queue digits                  and how long it waited for that

What a process tells of its runs has no name of the call. Both read the same clock, so a run belongs
to the call around it that was answered first after it; runs of launches, which nobody waits for in
one piece, have no parent.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from nnasync import hal
from nnasync.errors import NNError
from nnasync.tracing.instruments import Instrument, Signal, Traced
from nnasync.tracing.marks import Layer, Mark, Phase
from nnasync.tracing.records import Record, Span

SCOPE = "nnasync"
_DONE = "done"
_MOST_OPEN = 4096
_MOST_CALLS = 1024

Attributes = dict[str, str | int | float | bool]


class _Open:
    """An execution under way: where it was called, once that is known, and what became of it.

    A worker may be through with it before the thread that submitted it says so.
    """

    __slots__ = ("answered", "context", "events")

    def __init__(self) -> None:
        self.context: contexts.Context | None = None
        self.events: list[tuple[str, int]] = []
        self.answered: Callable[[], None] | None = None


class _Call(hal.Struct, frozen=True):
    """A call to a device in another process that was answered."""

    device: str
    begun_ns: int
    ended_ns: int
    context: Any


class SpanInstrument(Instrument):
    """Makes spans of executions, with the tracer of a provider, by default the global one."""

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], _Open] = {}
        self._calls: deque[_Call] = deque(maxlen=_MOST_CALLS)

    def task_waits(self, task: Traced, fence: Signal) -> None:
        """Note where an execution behind fences was called."""
        self._begin(task)

    def task_submitted(self, task: Traced) -> None:
        """Note where an execution was called; behind fences that is known already."""
        self._begin(task)

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """Note when a worker took it up."""
        self._note(task, "started" if task.active_ns == 0 else "resumed", begun_ns)

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Note when it was preempted, or done: of its answer one hears a little later."""
        self._note(task, _DONE if finished else "preempted", ended_ns)

    def task_answered(self, task: Traced, error: Exception | None) -> None:
        """Make its span, as soon as it is known where it was called."""
        ended_ns = time.monotonic_ns()
        with self._lock:
            known = self._entry(task)
            if known.context is None and error is None:
                known.answered = functools.partial(self._end, task, known, ended_ns, None)
                return
            del self._open[_key(task)]
        self._end(task, known, ended_ns, error)

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Make the span of an execution on the thread of its caller."""
        attributes: Attributes = {"nnasync.lane": "inline"}
        self._execution(name, begun_ns, attributes, contexts.get_current()).end(_wall_ns(ended_ns))

    def marked(self, mark: Mark, begun_ns: int, ended_ns: int) -> None:
        """Make spans of compilations, and of calls to devices in other processes."""
        if mark.layer is Layer.IPC:
            here = contexts.get_current()
            device = mark.detail.rpartition(" on ")[2]
            span = self._span(
                mark.detail, begun_ns, {"nnasync.device": device}, here, SpanKind.CLIENT
            )
            span.end(_wall_ns(ended_ns))
            around = trace.set_span_in_context(span, here)
            self._calls.append(_Call(device, begun_ns, ended_ns, around))
        elif mark.phase is Phase.COMPILATION and mark.layer is Layer.RUNTIME:
            name = f"compile {mark.detail}"
            attributes: Attributes = {"nnasync.network": mark.detail}
            self._span(name, begun_ns, attributes, None).end(_wall_ns(ended_ns))

    def service_told(self, records: Sequence[Record]) -> None:
        """Make spans of what a device's process did for calls."""
        for record in records:
            if isinstance(record, Span) and "task" in record.args:
                self._in_service(record)

    # -- spans

    def _in_service(self, record: Span) -> None:
        network = record.name.rpartition(" on ")[0] or record.name
        is_run = "finished" in record.args
        attributes: Attributes = {
            "nnasync.network": network,
            "nnasync.device": record.process,
            "process.pid": record.pid,
            "thread.name": record.track,
        }
        call = self._call_around(record)
        parent = contexts.Context() if call is None else call.context
        name = f"{'run' if is_run else 'queue'} {network}"
        span = self._span(name, record.start_ns, attributes, parent, SpanKind.SERVER)
        span.end(_wall_ns(record.end_ns))

    def _call_around(self, record: Span) -> _Call | None:
        around = [
            call
            for call in list(self._calls)
            if call.device == record.process
            and call.begun_ns <= record.start_ns
            and record.end_ns <= call.ended_ns
        ]
        return min(around, key=lambda call: call.ended_ns, default=None)

    def _end(self, task: Traced, known: _Open, ended_ns: int, error: Exception | None) -> None:
        attributes: Attributes = {"nnasync.lane": "worker", "nnasync.priority": task.priority.name}
        context = contexts.get_current() if known.context is None else known.context
        span = self._execution(task.name, task.launched_ns, attributes, context)
        for event, at_ns in known.events:
            if event == _DONE:
                ended_ns = at_ns
            else:
                span.add_event(event, timestamp=_wall_ns(at_ns))
        if error is not None:
            if isinstance(error, NNError) and error.reason:
                span.set_attribute("nnasync.reason", error.reason)
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end(_wall_ns(ended_ns))

    def _execution(
        self, name: str, begun_ns: int, attributes: Attributes, context: contexts.Context
    ) -> trace.Span:
        network, _, device = name.rpartition(" on ")
        attributes |= {"nnasync.network": network or name, "nnasync.device": device}
        return self._span(f"execute {network or name}", begun_ns, attributes, context)

    def _span(
        self,
        name: str,
        begun_ns: int,
        attributes: Attributes,
        context: Any,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> trace.Span:
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, start_time=_wall_ns(begun_ns)
        )

    def _begin(self, task: Traced) -> None:
        with self._lock:
            known = self._entry(task)
            if known.context is None:
                known.context = contexts.get_current()
            if known.answered is not None:
                del self._open[_key(task)]
        if known.answered is not None:
            known.answered()

    def _note(self, task: Traced, event: str, at_ns: int) -> None:
        with self._lock:
            self._entry(task).events.append((event, at_ns))

    def _entry(self, task: Traced) -> _Open:
        """Returns the entry of an execution; drops the oldest where too many stay open."""
        known = self._open.get(_key(task))
        if known is None:
            known = self._open[_key(task)] = _Open()
            if len(self._open) > _MOST_OPEN:
                del self._open[next(iter(self._open))]
        return known


def _key(task: Traced) -> tuple[int, int]:
    # The number of a dead task may be that of a new one, but not with the same time.
    return id(task), task.launched_ns


def _wall_ns(at_ns: int) -> int:
    """A time of CLOCK_MONOTONIC as the time of day, which spans have."""
    return at_ns + time.time_ns() - time.monotonic_ns()
