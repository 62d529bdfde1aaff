"""The timeline: an instrument that keeps what happened when, for a trace.

Executions are spans on the track of the thread that ran them, inside the process of their device.
Time in a queue, and marks of layers and phases, may overlap others of their track. A fence that a
task waited for is a flow, from the thread that signaled it to the start of the task. Where both are
in different processes, each tells of its end, and the timeline joins them by the fence's name.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from nnasync import errors
from nnasync.tracing.instruments import Instrument, Signal, Traced
from nnasync.tracing.marks import Layer, Mark, Phase
from nnasync.tracing.records import Arrival, Departure, Flow, Record, Span, TrackPlace

_UNFINISHED = 4096


class _Waiting:
    """The state of a task between its runs."""

    __slots__ = ("foreign", "signals", "since_ns")

    def __init__(self) -> None:
        self.since_ns = 0
        self.foreign: list[str] = []
        self.signals: list[tuple[TrackPlace, int, int]] = []


class _ThreadState(threading.local):
    process = ""


class Timeline(Instrument):
    """Records spans and flows, the latest `limit` of them, for `chrome_trace`."""

    def __init__(self, limit: int = 100_000) -> None:
        if limit < 1:
            raise errors.InvalidArgument(f"a timeline keeps at least one span, got limit={limit}")
        self._records: deque[Record] = deque(maxlen=limit)
        self._dropped = 0
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._lock = threading.Lock()
        self._here = _ThreadState()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The recorded spans, in the order of ends."""
        return tuple(each for each in self.records if isinstance(each, Span))

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The recorded flows, in the order of ends."""
        return tuple(each for each in self.records if isinstance(each, Flow))

    @property
    def records(self) -> tuple[Span | Flow, ...]:
        """Returns all records; both ends of a fence between processes are one flow."""
        return tuple(_joined(self._records.copy()))

    @property
    def dropped(self) -> int:
        """Returns how many records were dropped because there were more than `limit`."""
        return self._dropped

    def record(self, name: str, track: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Add a span of one's own; `args` are shown with it and must be plain data."""
        self._keep(Span(name, track, start_ns, end_ns, args, layer=Layer.APPLICATION))

    def clear(self) -> None:
        """Discard all records."""
        self._records.clear()

    def task_waits(self, task: Traced, fence: Signal) -> None:
        """Follow a fence: its signal is the start of a flow to the task."""
        # Fences of services have names while somebody traces; others know nothing of it.
        foreign = getattr(fence, "origin", "")
        if foreign:
            with self._lock:
                self._waits(_key(task)).foreign.append(foreign)
            return
        fence.add_callback(functools.partial(self._signaled, _key(task)))

    def fence_sent(self, fence: Signal, name: str) -> None:
        """Follow a fence that another process waits for."""
        fence.add_callback(functools.partial(self._departed, name))

    def service_told(self, records: Sequence[Record]) -> None:
        """Keep what the process of a device recorded."""
        for record in records:
            self._keep(record)

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """Record the time in the queue, and the fences that the task waited for."""
        with self._lock:
            waited = self._waiting.pop(_key(task), None) or _Waiting()
        device = _device(task.name)
        self._here.process = device
        target = TrackPlace(threading.current_thread().name, device)
        for source, start_ns, end_ns in waited.signals:
            self._keep(Flow(source, start_ns, end_ns, target, begun_ns))
        for name in waited.foreign:
            self._keep(Arrival(name, target, begun_ns))
        self._keep(
            Span(
                task.name,
                f"queue {task.priority.name}",
                min(waited.since_ns or task.ready_ns, begun_ns),
                begun_ns,
                {"task": id(task), "resumed": waited.since_ns > 0},
                layer=Layer.RUNTIME,
                phase=Phase.EXECUTION,
                concurrent=True,
            )
        )

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Record a task's run, or the part of it up to a preemption."""
        if not finished:
            with self._lock:
                self._waits(_key(task)).since_ns = ended_ns
        args = {
            "finished": finished,
            "task": id(task),
            "priority": task.priority.name,
            "us_since_ready": (begun_ns - task.ready_ns) / 1000,
            "us_since_launched": (begun_ns - task.launched_ns) / 1000,
        }
        self._record_run(task.name, begun_ns, ended_ns, args)

    def task_answered(self, task: Traced, error: Exception | None) -> None:
        """Record an error at the time of the answer."""
        with self._lock:
            self._waiting.pop(_key(task), None)
        if error is not None:
            at_ns = time.monotonic_ns()
            what = f"{task.name}: {type(error).__name__}"
            args = {
                "task": id(task),
                "priority": task.priority.name,
                "us_active": task.active_ns / 1000,
                "error": str(error),
            }
            self._record_event(what, at_ns, args)

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Record an inline execution."""
        self._record_run(name, begun_ns, ended_ns, {"inline": True})

    def loop_woken(self, at_ns: int, callbacks: int) -> None:
        """Record a wake-up."""
        self._record_event("wake-up", at_ns, {"callbacks": callbacks})

    def marked(self, mark: Mark, begun_ns: int, ended_ns: int) -> None:
        """Record work of a layer on the track of the layer."""
        track = mark.layer.name.lower()
        layer, phase = mark.layer, mark.phase
        span = Span(
            mark.detail, track, begun_ns, ended_ns, layer=layer, phase=phase, concurrent=True
        )
        self._keep(span)

    def _signaled(self, key: tuple[int, int], fence: Signal) -> None:
        """Callback of a fence, on the thread that signals it; a failed one releases nothing."""
        if fence.error is not None:
            return
        begun_ns = time.monotonic_ns()
        place = TrackPlace(threading.current_thread().name, self._here.process)
        with self._lock:
            signals = self._waits(key).signals
            signals.append((place, begun_ns, max(begun_ns + 1, time.monotonic_ns())))

    def _departed(self, name: str, fence: Signal) -> None:
        """Records the departure of a fence that another process waits for."""
        if fence.error is None:
            now_ns = time.monotonic_ns()
            place = TrackPlace(threading.current_thread().name, self._here.process)
            self._keep(Departure(name, place, now_ns, now_ns + 1))

    def _keep(self, record: Record) -> None:
        if len(self._records) == self._records.maxlen:
            with self._lock:
                self._dropped += 1
        self._records.append(record)

    def _waits(self, key: tuple[int, int]) -> _Waiting:
        """The state of a task; the oldest entries are dropped when too many tasks never end."""
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
            if len(self._waiting) > _UNFINISHED:
                del self._waiting[next(iter(self._waiting))]
        return waiting

    def _record_run(self, name: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> None:
        track, device = threading.current_thread().name, _device(name)
        layer, phase = Layer.DRIVER, Phase.EXECUTION
        self._keep(
            Span(name, track, start_ns, end_ns, args, process=device, layer=layer, phase=phase)
        )

    def _record_event(self, name: str, at_ns: int, args: dict[str, Any]) -> None:
        track = threading.current_thread().name
        self._keep(Span(name, track, at_ns, at_ns, args, layer=Layer.RUNTIME))


def _key(task: Traced) -> tuple[int, int]:
    # The number of a dead task may be that of a new one, but not with the same time.
    return id(task), task.launched_ns


def _joined(records: Collection[Record]) -> Iterator[Span | Flow]:
    """Records with both ends of a fence made one; an end without the other is left out."""
    departures = {each.fence: each for each in records if isinstance(each, Departure)}
    for each in records:
        if isinstance(each, Span | Flow):
            yield each
        elif isinstance(each, Arrival) and each.fence in departures:
            left = departures[each.fence]
            yield Flow(left.source, left.start_ns, left.end_ns, each.target, each.target_ns)


def _device(name: str) -> str:
    """The device in the name of a task."""
    return name.rpartition(" on ")[2] if " on " in name else ""
