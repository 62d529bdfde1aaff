"""One trace over both processes: the part of the service.

While its client traces, a recorder is among the instruments of the runtime here. What it recorded
is handed over when it is asked for; what nobody fetches is dropped, and counted.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from nnasync._core.engine_device import EngineDevice
from nnasync._core.wire.messages import (
    Launch,
    Message,
    OfferModel,
    Prepare,
    PrepareFromCache,
    Trace,
)
from nnasync._core.wire.span_forms import MOST_RECORDS, LaunchForm, Spans, form_of
from nnasync.device import Device
from nnasync.errors import InvalidArgument
from nnasync.fences import Fence
from nnasync.tracing import Instrument, Layer, Mark, Phase, Traced, Tracer
from nnasync.tracing.instruments import Signal
from nnasync.tracing.records import Span
from nnasync.tracing.timeline import Timeline

LIMIT = 20_000
"""Records that wait to be asked for."""
_LOOK_EVERY_S = 0.02
_LOOKS = 50

_PHASES: dict[type, Phase] = {
    Launch: Phase.EXECUTION,
    OfferModel: Phase.PREPARATION,
    Prepare: Phase.COMPILATION,
    PrepareFromCache: Phase.COMPILATION,
}
"""Calls of which it is worth knowing how long they took."""

Work = Callable[[], Awaitable[Any]]

_launching: contextvars.ContextVar[int] = contextvars.ContextVar("launching", default=0)


class Recorder(Timeline):
    """Records a timeline that is emptied again and again, and the launch of each task."""

    # Every message of the client wakes the loop: that tells nothing.
    loop_woken = Instrument.loop_woken

    def __init__(self, limit: int = LIMIT) -> None:
        super().__init__(limit)
        self._launches: dict[int, int] = {}
        self._begun: deque[LaunchForm] = deque(maxlen=limit)
        self._ended: deque[LaunchForm] = deque(maxlen=limit)
        self._told_dropped = 0

    def task_submitted(self, task: Traced) -> None:
        """Remembers the launch that a task belongs to."""
        self._remember(task)

    def task_waits(self, task: Traced, fence: Signal) -> None:
        """Remembers the launch of a task that waits; the client knows for what."""
        if not self._remember(task):
            super().task_waits(task, fence)

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """Records the time in the queue, and the start of a launch."""
        super().task_started(task, begun_ns)
        launch = self._launches.pop(id(task), 0)
        if launch:
            self._begun.append(LaunchForm(launch, threading.current_thread().name, begun_ns))

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Records a run on this thread, which may be that of a launch."""
        super().inline_run(name, begun_ns, ended_ns)
        launch = _launching.get()
        if launch:
            self._begun.append(LaunchForm(launch, threading.current_thread().name, begun_ns))

    def task_answered(self, task: Traced, error: Exception | None) -> None:
        """Records an error, and forgets a launch that never began."""
        super().task_answered(task, error)
        self._launches.pop(id(task), None)

    def signaled(self, launch: int, fence: Fence) -> None:
        """Records that the fence of a launch is final; a failed one releases nothing."""
        if fence.error is None:
            name = threading.current_thread().name
            self._ended.append(LaunchForm(launch, name, time.monotonic_ns()))

    def take(self) -> Spans:
        """Returns the oldest of the records that wait."""
        spans = [form_of(each) for each in _popped(self._records) if isinstance(each, Span)]
        begun, signaled = tuple(_popped(self._begun)), tuple(_popped(self._ended))
        dropped, self._told_dropped = self.dropped - self._told_dropped, self.dropped
        return Spans(os.getpid(), tuple(spans), begun, signaled, dropped, self.has_some)

    @property
    def has_some(self) -> bool:
        """Returns whether records wait."""
        return bool(self._records or self._begun or self._ended)

    def _remember(self, task: Traced) -> bool:
        launch = _launching.get()
        if launch:
            self._launches[id(task)] = launch
        return launch > 0


class Tracing:
    """Traces for one client, as long as it asks for that."""

    def __init__(self, device: Device, *, trusts: bool) -> None:
        """Takes the device; only a trusted client is told anything, since it is alone here.

        Any other client would see the work of others.
        """
        self._tracer: Tracer | None = None
        if isinstance(device, EngineDevice):
            self._tracer = device.workers.tracer
        self._trusts = trusts
        self._recorder: Recorder | None = None
        self._switched_off: Recorder | None = None
        """The last one that was switched off, of which there may be more to tell than was asked."""

    def asked(self, message: Trace) -> Work:
        """Returns the work that answers the client; raises InvalidArgument where it may not ask."""
        if not self._trusts:
            raise InvalidArgument("a service that several clients share does not tell its spans")
        if message.is_on:
            recorder = self._on()
        else:
            self.off()
            recorder = self._switched_off or Recorder(1)

        async def work() -> Spans:
            for _ in range(_LOOKS):
                if recorder.has_some or recorder is not self._recorder:
                    break
                await anyio.sleep(_LOOK_EVERY_S)
            return recorder.take()

        return work

    def timed(self, message: Message, work: Work) -> Work:
        """Returns work that also records how long answering a message took, if that is traced."""
        recorder, phase = self._recorder, _PHASES.get(type(message))
        if recorder is None or phase is None:
            return work
        begun_ns = time.monotonic_ns()

        async def recorded() -> Any:
            try:
                return await work()
            finally:
                mark = Mark(Layer.IPC, phase, type(message).__name__)
                recorder.marked(mark, begun_ns, time.monotonic_ns())

        return recorded

    def off(self) -> None:
        """Stops recording."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            self._switched_off = recorder
            if self._tracer is not None:
                self._tracer.remove(recorder)

    @contextmanager
    def launching(self, launch: int) -> Iterator[None]:
        """Assigns what enters the queue in the block to this launch."""
        token = _launching.set(launch)
        try:
            yield
        finally:
            _launching.reset(token)

    def follow(self, launch: int, fence: Fence) -> None:
        """Records when the fence of a launch is signaled, before anybody hears of it."""
        recorder = self._recorder
        if recorder is not None:
            fence.add_callback(functools.partial(recorder.signaled, launch))

    def _on(self) -> Recorder:
        if self._recorder is None:
            self._recorder, self._switched_off = Recorder(), None
            if self._tracer is not None:
                self._tracer.add(self._recorder)
        return self._recorder


def _popped(records: deque[Any]) -> Iterator[Any]:
    """Yields as many records as an answer takes; other threads only add."""
    for _ in range(MOST_RECORDS):
        try:
            yield records.popleft()
        except IndexError:
            return
