"""One trace over both processes: the client's part.

While an instrument of the runtime wants it (it has the hook `service_told`), the service is asked
for what it recorded, again and again: an answer is one batch, and the next one is asked for when it
was taken, so a client that is slow is not flooded. Nothing is asked, and nothing recorded, while
nobody looks.

Fences between processes have a name meanwhile. Who signals one and who was released by it each say
so, and the timeline makes an arrow of the two.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import anyio

from nnasync._core.clock import now_ns
from nnasync._core.drivers.service.call_observer import CallObserver
from nnasync._core.drivers.service.link import ControlCall, Link
from nnasync._core.drivers.service.remote_fence import RemoteFence
from nnasync._core.wire.messages import Trace, decode
from nnasync._core.wire.span_forms import Spans, arrivals, departures, records_of
from nnasync.errors import BadState, InvalidArgument, NNError
from nnasync.fences import Fence
from nnasync.tracing import Layer, Mark, Phase, Tracer
from nnasync.tracing.records import Record, TrackPlace

logger = logging.getLogger(__name__)

_FLUSH_S = 1.0
_MOST_WAITING = 4096
_BETWEEN_FULL_NS = 2_000_000
_BETWEEN_NS = 20_000_000
"""Pauses between an answer and the next question, after one that was full and after others."""
_links = itertools.count(1)
_local_fences = itertools.count(1)


class Traces(CallObserver):
    """Reports the work of one device in another process to instruments, over all connections."""

    def __init__(self) -> None:
        self.is_on = False
        self.device = ""
        self._tracers: tuple[Tracer, ...] = ()
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._reader: _TraceReader | None = None
        self._begun: dict[tuple[int, int], tuple[int, contextvars.Context]] = {}

    def observe(self, tracer: Tracer) -> None:
        """Tell the instruments of a runtime, as long as they want to know."""
        with self._lock:
            self._tracers = (*self._tracers, tracer)
        tracer.watch(self._changed)
        self._changed()

    def follow(self, link: Link, device: str) -> None:
        """Go on with a new connection to the device of this name."""
        with self._lock:
            self._link, self._reader = link, None
        self.device = device
        link.traces = self
        self._changed()

    async def finish(self) -> None:
        """Tell no instrument any more, after what there is left to tell."""
        with self._lock:
            reader, self._reader, self._link = self._reader, None, None
            self.is_on = False
        if reader is not None:
            reader.stop()
            await reader.at_its_end(_FLUSH_S)
        tracers, self._tracers = self._tracers, ()
        for tracer in tracers:
            tracer.unwatch(self._changed)

    # -- what the client does

    def mark(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Report what is done inside `with`, which may await, as a call to the service."""
        return self._marking(what) if self.is_on else super().mark(what)

    def sent(self, burst: int, serial: int) -> None:
        """A request of a burst is on its way."""
        begun = self._begun
        # Instruments may want to know for whom that is, which another thread does not.
        begun[burst, serial] = now_ns(), contextvars.copy_context()
        if len(begun) > _MOST_WAITING:
            with contextlib.suppress(KeyError, RuntimeError):  # Another thread was as fast.
                del begun[next(iter(begun))]

    def answered(self, burst: int, serial: int, what: str) -> None:
        """Notes that a call of a burst was answered; `what` is in the name that is reported."""
        begun = self._begun.pop((burst, serial), None)
        if begun is not None:
            begun_ns, context = begun
            context.run(self._report, what, begun_ns)

    def launching(self, number: int, fence: RemoteFence, wait_for: Sequence[Fence]) -> None:
        """Name the fence of a launch, and those that it waits for."""
        reader = self._reader
        if reader is None:
            return
        fence.origin = f"{reader.origin}{number}"
        names = []
        for each in wait_for:
            name = getattr(each, "origin", "")
            if not name:
                name = f"here/{next(_local_fences)}"
                for tracer in self._tracers:
                    for hook in tracer.fence_sent:
                        hook(each, name)
            names.append(name)
        reader.awaits(number, names)

    # -- what the service does

    def deliver(self, records: Sequence[Record]) -> None:
        """Hand records on to whoever wants them."""
        for tracer in self._tracers:
            for hook in tracer.service_told:
                hook(records)

    def lost(self, reader: _TraceReader) -> None:
        """A connection tells no more."""
        with self._lock:
            if self._reader is reader:
                self._reader = None
                self.is_on = False

    def _changed(self) -> None:
        """Instruments came or went, or the connection is a new one."""
        with self._lock:
            wanted = any(tracer.service_told for tracer in self._tracers)
            link, reader = self._link, self._reader
            if link is None or wanted == (reader is not None):
                self.is_on = reader is not None
                return
            self.is_on = wanted
            self._reader = _TraceReader(self, link) if wanted else None
            started = self._reader
        if started is not None:
            started.start()
        elif reader is not None:
            reader.stop()

    @contextlib.contextmanager
    def _marking(self, what: str) -> Iterator[None]:
        begun_ns = now_ns()
        try:
            yield
        finally:
            self._report(what, begun_ns)

    def _report(self, what: str, begun_ns: int) -> None:
        mark = Mark(Layer.IPC, Phase.EXECUTION, f"{what} on {self.device}")
        ended_ns = now_ns()
        for tracer in self._tracers:
            for hook in tracer.marked:
                hook(mark, begun_ns, ended_ns)


class _TraceReader:
    """Asks one connection for what its service recorded, until it is stopped."""

    def __init__(self, traces: Traces, link: Link) -> None:
        self.origin = f"{next(_links)}/"
        self.ended = Fence()
        self._traces = traces
        self._link = link
        self._since_ns = now_ns()
        self._wanted = True
        self._received = 0
        self._asking = threading.Lock()
        self._awaited: OrderedDict[int, Sequence[str]] = OrderedDict()

    def start(self) -> None:
        self._ask()

    def stop(self) -> None:
        """Ask for the last time; `ended` is signaled when all is told."""
        self._wanted = False
        self._ask()

    async def at_its_end(self, patience_s: float) -> None:
        """Wait until all is told, or nothing was for so long."""
        received = -1
        while not self.ended.done and received != self._received:
            received = self._received
            with anyio.move_on_after(patience_s, shield=True):
                await self.ended

    def awaits(self, launch: int, fences: Sequence[str]) -> None:
        """Remember what a launch waits for."""
        if fences:
            self._awaited[launch] = fences
            if len(self._awaited) > _MOST_WAITING:
                self._awaited.popitem(last=False)

    def _ask(self) -> None:
        if self.ended.done:
            return
        try:
            # The service must hear last what was wanted last.
            with self._asking:
                wanted = self._wanted
                call = self._link.begin(lambda number: Trace(number, wanted))
        except NNError:
            self._end()
            return
        call.fence.add_callback(lambda fence: self._answered(call, is_last=not wanted))

    def _answered(self, call: ControlCall, *, is_last: bool) -> None:
        """Take an answer, on the thread of the link, and ask for the next one."""
        # The error is the link's own: raised here, it would keep all frames of its thread.
        error = call.fence.error
        has_more = False
        if error is None:
            try:
                received: Spans = decode(call.value, Spans)
                self._traces.deliver(self._records(received))
                self._received += 1
                has_more = received.has_more
            except NNError as failure:
                error = failure
        if error is not None:
            self._explain(error)
            self._end()
        elif is_last and not has_more:
            self._end()
        elif is_last or self._wanted:
            self._ask_later(_BETWEEN_FULL_NS if has_more else _BETWEEN_NS)
        # Otherwise the last answer is on its way.

    def _ask_later(self, pause_ns: int) -> None:
        """Ask again after a while: a service that answers at once shall not keep us busy."""
        try:
            self._link.watchdog.arm(now_ns() + pause_ns, self._ask)
        except BadState:
            self._end()  # The link is over.
        except RuntimeError as error:
            logger.warning("%s is not traced any more: %s", self._traces.device, error)
            self._end()

    def _explain(self, error: Exception) -> None:
        if isinstance(error, InvalidArgument):
            logger.info("%s is not traced: %s", self._traces.device, error)
        elif self._link.error is None:
            logger.warning("%s is not traced any more: %s", self._traces.device, error)

    def _records(self, received: Spans) -> list[Record]:
        place = TrackPlace("", self._traces.device, received.pid)
        records = list(records_of(received, self._traces.device, self._since_ns, now_ns()))
        for form in received.begun:
            records += arrivals(form, self._awaited.pop(form.launch, ()), place)
        records += departures(received.signaled, self.origin, place)
        return records

    def _end(self) -> None:
        self._wanted = False
        self._traces.lost(self)
        self.ended.signal()
