"""Instruments: observers of what the runtime does, that cost nothing where nobody looks.

An `Instrument` overrides the hooks it wants. A `Tracer` keeps one tuple of callables per hook, made
of the overridden ones only, so that reporting an event to nobody is a loop over an empty tuple:

    for hook in tracer.task_started:
        hook(task, begun_ns)

Hooks run on the thread where the event happens, and must be short. One that raises is logged, and
its instrument removed. Times are nanoseconds of CLOCK_MONOTONIC, tracks are names of threads or
streams.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from nnasync import errors, hal

__all__ = [
    "Hooks",
    "Instrument",
    "Span",
    "Timeline",
    "Traced",
    "Tracer",
    "chrome_trace",
    "write_trace",
]

logger = logging.getLogger(__name__)

Hooks = tuple[Callable[..., object], ...]


class Traced(Protocol):
    """What a hook may know of a task (`workers.Task` is one)."""

    @property
    def name(self) -> str:
        """What runs."""

    @property
    def ready_ns(self) -> int:
        """When it entered the queue."""

    @property
    def launched_ns(self) -> int:
        """When it was made; earlier than `ready_ns` if it waited for fences."""


class Instrument:
    """Base of observers; every hook does nothing until overridden."""

    def task_submitted(self, task: Traced) -> None:
        """A task entered the queue."""

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """A worker, the current thread, takes a task up, or again after a preemption."""

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """The current thread ran a task; not to the end if it was preempted, aborted or failed."""

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """The current thread, of the caller, ran an execution without a detour."""

    def loop_woken(self, at_ns: int, callbacks: int) -> None:
        """An event loop was woken, and runs that many callbacks."""


_HOOKS = tuple(name for name in vars(Instrument) if not name.startswith("_"))


class Tracer:
    """The installed instruments, as one tuple of callables for each hook."""

    __slots__ = (
        "_instruments",
        "_lock",
        "inline_run",
        "loop_woken",
        "task_ran",
        "task_started",
        "task_submitted",
    )

    task_submitted: Hooks
    task_started: Hooks
    task_ran: Hooks
    inline_run: Hooks
    loop_woken: Hooks

    def __init__(self, instruments: Iterable[Instrument] = ()) -> None:
        self._lock = threading.Lock()
        self._instruments: tuple[Instrument, ...] = ()
        self._install(())
        for instrument in instruments:
            self.add(instrument)

    @property
    def instruments(self) -> tuple[Instrument, ...]:
        """The instruments installed now, in order."""
        return self._instruments

    def add(self, instrument: Instrument) -> None:
        """Install an instrument; raises BadState if it is installed already."""
        with self._lock:
            if any(each is instrument for each in self._instruments):
                raise errors.BadState(f"{instrument!r} is installed already")
            self._install((*self._instruments, instrument))

    def remove(self, instrument: Instrument) -> bool:
        """Take an instrument out; False if it was not installed."""
        with self._lock:
            kept = tuple(each for each in self._instruments if each is not instrument)
            found = len(kept) < len(self._instruments)
            self._install(kept)
        return found

    def _install(self, instruments: tuple[Instrument, ...]) -> None:
        self._instruments = instruments
        for name in _HOOKS:
            unused = getattr(Instrument, name)
            hooks = tuple(
                _Hook(self, instrument, getattr(instrument, name))
                for instrument in instruments
                if getattr(type(instrument), name) is not unused
            )
            setattr(self, name, hooks)


class _Hook:
    """A hook of one instrument, which it removes when the hook raises."""

    __slots__ = ("_instrument", "_method", "_tracer")

    def __init__(
        self, tracer: Tracer, instrument: Instrument, method: Callable[..., object]
    ) -> None:
        self._tracer = tracer
        self._instrument = instrument
        self._method = method

    def __call__(self, *args: object) -> None:
        try:
            self._method(*args)
        except Exception:
            if self._tracer.remove(self._instrument):
                logger.exception("removed %r: its hook raised", self._instrument)


class Span(hal.Struct, frozen=True):
    """Something that took time on a track; an event without duration ends when it starts."""

    name: str
    track: str
    start_ns: int
    end_ns: int
    args: dict[str, Any] = msgspec.field(default_factory=dict)


class Timeline(Instrument):
    """Records spans, the latest `limit` of them, for `chrome_trace`.

    Executions appear on the track of the thread that ran them.
    """

    def __init__(self, limit: int = 100_000) -> None:
        if limit < 1:
            raise errors.InvalidArgument(f"a timeline keeps at least one span, got limit={limit}")
        self._spans: deque[Span] = deque(maxlen=limit)

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was recorded, in the order of ends."""
        return tuple(self._spans.copy())

    def record(self, name: str, track: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Add a span of one's own; `args` are shown with it and must be plain data."""
        self._spans.append(Span(name, track, start_ns, end_ns, args))

    def clear(self) -> None:
        """Forget the recorded spans."""
        self._spans.clear()

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Record a task's run, or the part of it up to a preemption."""
        args = {
            "finished": finished,
            "task": id(task),
            "us_since_ready": (begun_ns - task.ready_ns) / 1000,
            "us_since_launched": (begun_ns - task.launched_ns) / 1000,
        }
        self._record_here(task.name, begun_ns, ended_ns, args)

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Record an inline execution."""
        self._record_here(name, begun_ns, ended_ns, {"inline": True})

    def loop_woken(self, at_ns: int, callbacks: int) -> None:
        """Record a wake-up."""
        self._record_here("wake-up", at_ns, at_ns, {"callbacks": callbacks})

    def _record_here(self, name: str, start_ns: int, end_ns: int, args: dict[str, Any]) -> None:
        track = threading.current_thread().name
        self._spans.append(Span(name, track, start_ns, end_ns, args))


def chrome_trace(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """The spans as Chrome trace events, which Perfetto and chrome://tracing show.

    Tracks become threads, named and in order of appearance; times are microseconds.
    """
    threads: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for span in spans:
        thread = threads.setdefault(span.track, len(threads) + 1)
        event: dict[str, Any] = {"name": span.name, "pid": 1, "tid": thread, "args": span.args}
        event["ts"] = span.start_ns / 1000
        if span.end_ns > span.start_ns:
            event |= {"ph": "X", "dur": (span.end_ns - span.start_ns) / 1000}
        else:
            event |= {"ph": "i", "s": "t"}
        events.append(event)
    return [_thread_name(track, thread) for track, thread in threads.items()] + events


def _thread_name(track: str, thread: int) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": track}}


def write_trace(path: str | Path, spans: Iterable[Span]) -> None:
    """Write the spans to a JSON file that Perfetto opens; raises OSError as files do."""
    trace = {"traceEvents": chrome_trace(spans), "displayTimeUnit": "ms"}
    Path(path).write_bytes(msgspec.json.encode(trace))
