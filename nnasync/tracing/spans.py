"""Spans that drivers mark: what an engine does, and in which phase, without knowing the runtime.

    with span(Phase.TRANSFORMATION, "pack the weights"):
        ...

An engine may do so wherever it is called: while it compiles, binds and runs. The span is told to
the instruments of the runtime whose thread this is; on a thread that an engine made for itself, to
those of the only runtime that is traced, if one is. While nobody listens, `span` returns a context
that does nothing; where that is too much, in a run of microseconds, `if SWITCH.on:` is 15 ns.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from nnasync.tracing.marks import Layer, Mark, Phase


class _Tracer(Protocol):
    """A tracer, as far as marks go."""

    @property
    def marked(self) -> Sequence[Callable[..., object]]:
        """Hooks of the instruments that listen to marks: mark, begin, end."""


class _Switch:
    """Whether any tracer of the process has an instrument that listens to marks."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


SWITCH = _Switch()
"""`SWITCH.on`: whether anybody in the process listens to marks; looked at before any is made."""
_NOTHING = contextlib.nullcontext()
_References = tuple["weakref.ref[_Tracer]", ...]


class _Listeners:
    """The tracers that have instruments for marks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.all: _References = ()

    def change(self, tracer: _Tracer | None, *, is_one: bool) -> None:
        # Collecting a tracer may come here on a thread that is here already.
        with self._lock:
            rest = tuple(each for each in self.all if each() not in (None, tracer))
            if is_one and tracer is not None:
                rest = (*rest, weakref.ref(tracer, self._forget))
            self.all = rest
            SWITCH.on = bool(rest)

    def _forget(self, _: weakref.ref[_Tracer]) -> None:
        self.change(None, is_one=False)


_listeners = _Listeners()


class _Here(threading.local):
    """The tracers of the runtimes that the current thread belongs to."""

    tracers: _References = ()


_here = _Here()


def span(
    phase: Phase, detail: str, layer: Layer = Layer.DRIVER
) -> contextlib.AbstractContextManager[None]:
    """Report the body of a `with` block on this thread as work of a driver in a phase."""
    return _Span(Mark(layer, phase, detail)) if SWITCH.on else _NOTHING


def belongs_to(tracer: _Tracer) -> None:
    """Assigns what engines mark on the current thread to this tracer, from now on."""
    _here.tracers = (*_here.tracers, weakref.ref(tracer))


def leaves(tracer: _Tracer) -> None:
    """Ends that: the tracer listens no more, because its runtime is closed."""
    listens(tracer, is_one=False)
    _here.tracers = tuple(each for each in _here.tracers if each() not in (None, tracer))


def listens(tracer: _Tracer, *, is_one: bool) -> None:
    """A tracer has got its first instrument for marks, or lost its last."""
    _listeners.change(tracer, is_one=is_one)


class _Span:
    """A piece of work under way."""

    __slots__ = ("_begun_ns", "_mark")

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._begun_ns = 0

    def __enter__(self) -> None:
        self._begun_ns = time.monotonic_ns()

    def __exit__(self, *exception: object) -> None:
        ended_ns = time.monotonic_ns()
        alone = _listeners.all if len(_listeners.all) == 1 else ()
        for reference in _here.tracers or alone:
            tracer = reference()
            if tracer is not None:
                for hook in tracer.marked:
                    hook(self._mark, self._begun_ns, ended_ns)
