"""Instruments: observers of the runtime, which cost nothing while none is installed.

An `Instrument` overrides the hooks it wants. A `Tracer` keeps one tuple of callables per hook, made
of the overridden ones only, so that reporting an event to nobody is a loop over an empty tuple:

    for hook in tracer.task_started:
        hook(task, begun_ns)

Hooks run on the thread where the event happens, and must be short. One that raises is treated as
all callbacks are (`callbacks`), and its instrument removed. Times are nanoseconds of
CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nnasync import errors
from nnasync._core.callbacks import after_raise
from nnasync.hal import Priority
from nnasync.tracing.marks import Layer, Mark, Phase
from nnasync.tracing.spans import listens

if TYPE_CHECKING:
    from nnasync.tracing.records import Record

logger = logging.getLogger(__name__)

Hooks = tuple[Callable[..., object], ...]
"""What is called at one kind of event, in order."""


class Traced(Protocol):
    """The part of a task that a hook may read (`workers.Task` is one)."""

    @property
    def name(self) -> str:
        """Returns what is executed, as "NETWORK on DEVICE"."""

    @property
    def priority(self) -> Priority:
        """Priority of the network."""

    @property
    def ready_ns(self) -> int:
        """Returns when it entered the queue; 0 before."""

    @property
    def launched_ns(self) -> int:
        """Returns when it was made; earlier than `ready_ns` if it waited for fences."""

    @property
    def active_ns(self) -> int:
        """Returns how long it has run so far."""


class Signal(Protocol):
    """A dependency of a task (`fences.Fence` is one)."""

    error: Exception | None

    def add_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back on the thread that signals."""


class Instrument:
    """Base of observers; every hook does nothing until overridden."""

    def task_submitted(self, task: Traced) -> None:
        """A task entered the queue."""

    def task_waits(self, task: Traced, fence: Signal) -> None:
        """A task, not yet in the queue, waits for a fence that is not signaled yet."""

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """A worker, the current thread, takes a task up, or again after a preemption."""

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """The current thread ran a task; not to the end if it was preempted, aborted or failed."""

    def task_answered(self, task: Traced, error: Exception | None) -> None:
        """A task got its answer, once; with an error it may be running still."""

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """The current thread, of the caller, ran an execution without a detour."""

    def fell_back(self, network: str, device: str, kind: str, error: Exception) -> None:
        """The reference takes the work of a device that failed; kind: prepare, partial, full."""

    def loop_woken(self, at_ns: int, callbacks: int) -> None:
        """An event loop was woken, and runs that many callbacks."""

    def marked(self, mark: Mark, begun_ns: int, ended_ns: int) -> None:
        """A layer did something else; several may do so at once on one thread."""

    def fence_sent(self, fence: Signal, name: str) -> None:
        """A fence, not signaled yet, is on its way to another process, under this name."""

    def service_told(self, records: Sequence[Record]) -> None:
        """A device's process delivered its records; it records only while this hook is used."""


_HOOKS = tuple(name for name in vars(Instrument) if not name.startswith("_"))


class Tracer:
    """The installed instruments, as one tuple of callables for each hook."""

    __slots__ = (
        "__weakref__",
        "_lock",
        "_watchers",
        "fell_back",
        "fence_sent",
        "inline_run",
        "instruments",
        "loop_woken",
        "marked",
        "service_told",
        "task_answered",
        "task_ran",
        "task_started",
        "task_submitted",
        "task_waits",
    )

    task_submitted: Hooks
    task_waits: Hooks
    task_started: Hooks
    task_ran: Hooks
    task_answered: Hooks
    inline_run: Hooks
    fell_back: Hooks
    loop_woken: Hooks
    marked: Hooks
    fence_sent: Hooks
    service_told: Hooks

    def __init__(self, instruments: Iterable[Instrument] = ()) -> None:
        self._lock = threading.Lock()
        self._watchers: tuple[Callable[[], object], ...] = ()
        self.instruments: tuple[Instrument, ...] = ()
        """The instruments installed now, in order; to be read only."""
        self._install(())
        for instrument in instruments:
            self.add(instrument)

    def add(self, instrument: Instrument) -> None:
        """Install an instrument; raises BadState if it is installed already."""
        with self._lock:
            if any(each is instrument for each in self.instruments):
                raise errors.BadState(f"{instrument!r} is installed already")
            self._install((*self.instruments, instrument))
        self._tell_watchers()

    def remove(self, instrument: Instrument) -> bool:
        """Take an instrument out; False if it was not installed."""
        with self._lock:
            kept = tuple(each for each in self.instruments if each is not instrument)
            found = len(kept) < len(self.instruments)
            self._install(kept)
        self._tell_watchers()
        return found

    def watch(self, watcher: Callable[[], object]) -> None:
        """Have it called after instruments came or went, on the thread that does that."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: Callable[[], object]) -> None:
        """Call it no more."""
        with self._lock:
            self._watchers = tuple(each for each in self._watchers if each != watcher)

    def mark(
        self, layer: Layer, phase: Phase, detail: str
    ) -> contextlib.AbstractContextManager[None]:
        """Report the body of a `with` block, which may await, as work of a layer in a phase."""
        return self._marking(Mark(layer, phase, detail)) if self.marked else _UNMARKED

    @contextlib.contextmanager
    def _marking(self, mark: Mark) -> Iterator[None]:
        begun_ns = time.monotonic_ns()
        try:
            yield
        finally:
            ended_ns = time.monotonic_ns()
            for hook in self.marked:
                hook(mark, begun_ns, ended_ns)

    def _tell_watchers(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _install(self, instruments: tuple[Instrument, ...]) -> None:
        self.instruments = instruments
        for name in _HOOKS:
            unused = getattr(Instrument, name)
            hooks = tuple(
                _Hook(self, instrument, getattr(instrument, name))
                for instrument in instruments
                if getattr(type(instrument), name) is not unused
            )
            setattr(self, name, hooks)
        listens(self, is_one=bool(self.marked))


_UNMARKED = contextlib.nullcontext()


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
        except BaseException as error:
            was_there = self._tracer.remove(self._instrument)
            if was_there or not isinstance(error, Exception):
                raised = after_raise(error, logger, f"a hook of {self._instrument!r}, now removed,")
                if raised is not None:
                    raise
