"""Requests to a driver service, of a burst or plain ones: packets in shared memory, both ways.

Requests name memory by the numbers under which it was handed to the service, so that never has to
ask. Who sends looks for the answer for a short while, if that was worth it lately; for what takes
longer a thread waits, which sleeps while nothing is under way.

Thread and link know a burst weakly while it rests: one that its client drops ends as if closed.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections import OrderedDict

import msgspec

from nnasync._core.clock import now_ns
from nnasync._core.drivers.service.link import ControlCall, Link
from nnasync._core.drivers.service.offered_memories import OfferedMemories
from nnasync._core.message_queue import QueueReader, QueueWriter
from nnasync._core.wire.messages import (
    UNDECODABLE,
    CloseBurst,
    LaunchEnded,
    OpenBurst,
    encode,
)
from nnasync._core.wire.placement import current_core, staying
from nnasync._core.workers import contained
from nnasync.burst import (
    BurstArguments,
    BurstCallback,
    BurstCancel,
    BurstRequest,
    BurstResult,
    Channel,
    ResultDecoder,
    result_of,
)
from nnasync.burst.packets import request_of
from nnasync.errors import (
    BadState,
    DeviceDied,
    DeviceUnavailable,
    NNError,
    ResourceExhausted,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig
from nnasync.hal.decoders import msgpack_decoder
from nnasync.machine.here import HERE

logger = logging.getLogger(__name__)

CAPACITY = 1 << 18
"""Bytes of each queue."""
RESTED_NS = 1_000_000
"""After so long without an answer the service sleeps and its caches are cold: it takes longest."""
_MISSES = 4
_PROBE_EVERY = 64
_REMEMBERED = 256

_arguments = msgpack_decoder(BurstArguments)
_requests = msgpack_decoder(BurstRequest | BurstCancel)


class _AnsweredAtTheEnd(DeviceUnavailable):
    """The burst ended while a request was put into its queue, and its end has answered that."""


class _Ends:
    """What a burst has to close: its ends of two queues, and the thread that waits."""

    def __init__(self) -> None:
        """Raises ResourceExhausted where there is no memory or descriptor for the queues."""
        self.wanted = threading.Event()
        self.are_shut = False
        self.busy: RemoteBurst | None = None
        """The burst while it awaits answers and the thread has not heard of that yet."""
        self.writer, self.requests_there = QueueWriter.create(CAPACITY)
        try:
            self.reader, self.results_there = QueueReader.create(CAPACITY)
        except BaseException:
            self.requests_there.close()
            self.writer.close()
            raise

    def shut(self) -> None:
        """Close the queues and end the thread; idempotent."""
        self.are_shut = True
        for each in (self.reader, self.writer, self.requests_there, self.results_there):
            each.close()
        self.busy = None
        self.wanted.set()

    def want(self, burst: RemoteBurst) -> None:
        """Have the thread take answers of a burst, which it keeps meanwhile."""
        self.busy = burst
        if self.are_shut:
            self.busy = None  # There is no thread any more, and a finalizer knows this object.
        self.wanted.set()

    def wait(self, reference: weakref.ref[RemoteBurst]) -> None:
        """Waits for answers as the thread of a burst, while some are expected."""
        while not self.are_shut:
            self.wanted.wait()
            self.wanted.clear()
            busy, self.busy = self.busy, None
            burst = busy or reference()
            if burst is not None:
                burst.take_answers()
            del busy, burst


class _Ear:
    """Hears for a burst what link and client say, without keeping it alive while it rests."""

    def __init__(self, burst: RemoteBurst, ends: _Ends) -> None:
        self._burst = weakref.ref(burst)
        self._ends = ends

    @property
    def is_awaited(self) -> bool:
        """Returns whether an answer is expected."""
        burst = self._burst()
        return burst is not None and burst.is_awaited

    def receive(self, packet: bytes) -> None:
        """A packet of the client; raises BadState where it has dropped the burst."""
        burst = self._burst()
        if burst is None:
            raise BadState("the burst was dropped by its client")
        burst.receive(packet)

    def heard(self, message: LaunchEnded) -> None:
        """Does nothing, since no message is about bursts."""

    def died(self, error: NNError) -> None:
        """Have what is under way answered, and everything given back."""
        burst = self._burst()
        if burst is not None:
            burst.end(error)
        self._ends.shut()


class RemoteBurst:
    """The client's part of a burst (IBurstContext)."""

    def __init__(
        self,
        link: Link,
        memories: OfferedMemories,
        callback: BurstCallback | None,
        result_channel: Channel,
        owner: object,
        *,
        polls: bool,
    ) -> None:
        """`callback` knows the slots of a burst; plain executions have none, and name numbers.

        `owner` is the prepared model, which lives as long as its bursts. With `polls` both sides
        look for packets before they park.
        """
        self._owner = owner
        self._polls = polls
        self._what = "execute" if callback is None else "burst"
        self.number = link.number()
        self._link = link
        self._memories = memories
        self._callback = callback
        self._results = result_channel
        self._known: OrderedDict[bytes, tuple[bytes, tuple[int, ...]]] = OrderedDict()
        self._sent: set[int] = set()
        self._lock = threading.Lock()
        self.is_over = False
        """Whether it ended."""
        # On a single core the service cannot answer whom it keeps from running: it sleeps there.
        self._looks = polls and HERE.may_poll
        self._core = -1
        self._misses = 0
        # It looks for so long at least; and at most if answers usually come that late.
        self._least_ns = HERE.decisions.window_ns
        self._most_ns = HERE.decisions.longest_window_ns
        self._window_ns = self._least_ns
        self._took_ns = self._looked_ns = 0
        self._decoder = ResultDecoder()
        self._reading = threading.Lock()
        self._ends = ends = _Ends()
        self._writer, self._reader = ends.writer, ends.reader
        self._reader.polling_ns = 0
        self.ear = _Ear(self, ends)
        """What hears for it, to be given to the link."""
        waiting = threading.Thread(
            target=ends.wait, args=(weakref.ref(self),), name="nnasync-burst", daemon=True
        )
        try:
            waiting.start()
        except RuntimeError as error:
            ends.shut()
            raise ResourceExhaustedTransient(f"no thread for a burst: {error}") from error
        self._finalizer = weakref.finalize(self, _dropped, link, self.number, ends)
        self._finalizer.atexit = False

    def open(self, prepared: int) -> ControlCall:
        """Have the service serve it for a prepared model; requests may be sent at once.

        Ends, and answers what is under way, where the service refuses. Raises what keeps the
        question from being sent.
        """
        link = self._link
        try:
            link.listen(self.number, self.ear)
            with self._ends.requests_there as requests, self._ends.results_there as results:
                ordered = self._callback is not None
                call = link.begin(
                    lambda n: OpenBurst(n, self.number, prepared, self._polls, ordered),
                    [*requests.descriptors, *results.descriptors],
                )
        except BaseException:
            self.close()
            raise
        call.fence.add_callback(functools.partial(_opened, self.ear))
        return call

    def receive(self, packet: bytes) -> None:
        """Send a packet on, from any thread; raises what keeps it from being sent."""
        try:
            message = _requests.decode(packet)
        except UNDECODABLE:
            message = None
        serial = -1 if message is None else message.serial
        try:
            if self.is_over:
                self._link.check()
                raise DeviceUnavailable("the burst is closed")
            answer = self._sent_on(message, packet)
        except (DeviceDied, ResourceExhausted):
            raise
        except _AnsweredAtTheEnd:
            return
        except Exception as error:
            # It may have been closed by another thread on the way, which is no other answer.
            self._answer(_refusal(serial, contained(error, "a request of a burst")))
            return
        if answer is not None:
            self._answer(encode(msgspec.structs.replace(answer, serial=serial)))

    def _sent_on(
        self, message: BurstRequest | BurstCancel | None, packet: bytes
    ) -> BurstResult | None:
        """The answer, where it is there already; the server half answers what is no request."""
        if isinstance(message, BurstCancel):
            self._send(None, packet)
            return None
        if message is None:
            self._send(-1, packet)
            self._ends.want(self)
            return None
        config = ExecutionConfig(
            message.measure, message.deadline_ns, message.loop_timeout_ns, None, message.priority
        )
        return self._exchanged(message.serial, message.arguments, config)

    def exchange(
        self, serial: int, arguments: bytes, config: ExecutionConfig
    ) -> BurstResult | None:
        """Send a request and look for its answer, which the thread hands on where it is late.

        Raises DeviceDied, or why else it cannot be sent; it may have been answered with that too.
        """
        try:
            return self._exchanged(serial, arguments, config)
        except _AnsweredAtTheEnd as error:
            self._link.check()
            raise DeviceUnavailable(str(error)) from error.__cause__

    def _exchanged(
        self, serial: int, arguments: bytes, config: ExecutionConfig
    ) -> BurstResult | None:
        self._link.check()
        if self._callback is not None:
            known = self._known.get(arguments)
            arguments = self._numbered(arguments) if known is None else known[0]
        self._send(serial, encode(request_of(serial, arguments, config)))
        return self._look(serial)

    def _send(self, serial: int | None, packet: bytes) -> None:
        """Put a packet into the queue; raises what keeps it from being sent.

        What has no serial number has no answer.
        """
        link = self._link
        if serial is not None:
            self._sent.add(serial)
            if link.traces.is_on:
                link.traces.sent(self.number, serial)
        try:
            if self.is_over:
                raise DeviceUnavailable("the burst is closed")
            if not self._looks:
                self._tell_core()
            if not self._writer.try_write(packet):
                raise ResourceExhaustedTransient("the queue of a burst is full")
            link.check()
        except BaseException as error:
            if serial is not None:
                try:
                    self._sent.remove(serial)
                except KeyError:
                    raise _AnsweredAtTheEnd(f"the burst ended: {error}") from error
            if isinstance(error, NNError):
                # Why the link is over says more than a queue that is closed.
                link.check()
            raise

    def free_memory(self, slot: int) -> None:
        """Forget what is in a slot."""
        with self._lock:
            for key in [key for key, (_, slots) in self._known.items() if slot in slots]:
                del self._known[key]

    def close(self) -> None:
        """End the burst, here and in the service."""
        if not self.is_over:
            self.is_over = True
            self._ends.shut()
            self._link.unlisten(self.number)
            self._link.notify(CloseBurst(self.number))

    @property
    def is_awaited(self) -> bool:
        """Returns whether an answer is expected."""
        return bool(self._sent)

    # -- answers

    def _look(self, serial: int) -> BurstResult | None:
        """Look for one answer for a short while, and leave the rest to the thread."""
        if not (self._is_worth_looking() and self._reading.acquire(blocking=False)):
            self._ends.want(self)
            return None
        found, traces = None, self._link.traces
        try:
            began_ns = now_ns()
            if self._took_ns:
                self._learn(self._took_ns)
                self._took_ns = 0
            window_ns, has_rested = self._window_ns, began_ns - self._looked_ns > RESTED_NS
            until_ns = began_ns + (max(window_ns, self._most_ns) if has_rested else window_ns)
            expected, usual = self._decoder.expected(serial)
            while found is None and (packet := self._comes_by(until_ns)) is not None:
                if packet == expected and not traces.is_on and serial in self._sent:
                    self._sent.discard(serial)
                    found = usual
                else:
                    found = self._taken(packet, serial)
            ended_ns = self._looked_ns = now_ns()
            if found is None or self._misses:
                self._learn(None if found is None else ended_ns - began_ns)
            elif not has_rested:
                self._took_ns = ended_ns - began_ns  # There will be time to learn from it.
        except NNError:
            pass  # A broken queue: the thread meets it too, and ends the burst.
        finally:
            self._reading.release()
            if self._sent:
                self._ends.want(self)
        return found

    def _comes_by(self, until_ns: int) -> bytes | None:
        """A packet that comes in time: seen by looking, or slept for."""
        if self._looks:
            return self._reader.try_read() if self._reader.looks_for(until_ns) else None
        with staying(self._core):
            return self._reader.read_blocking(max(0, until_ns - now_ns()) * 1e-9)

    def _is_worth_looking(self) -> bool:
        if self._misses < _MISSES:
            return True
        self._misses += 1
        return self._misses % _PROBE_EVERY == 0

    def _taken(self, packet: bytes, serial: int | None = None) -> BurstResult | None:
        """The answer, if a packet is the one to this request; any other is handed on.

        What was answered already, because the burst ended meanwhile, is dropped.
        """
        try:
            number, result = self._decoder.decode(packet)
        except UNDECODABLE:
            self._answer(packet)  # The client half ends the burst for it.
            return None
        try:
            self._sent.remove(number)
        except KeyError:
            return None
        if self._link.traces.is_on:
            self._link.traces.answered(self.number, number, self._what)
        if number == serial:
            return result
        self._answer(packet)
        return None

    def _learn(self, took_ns: int | None) -> None:
        """Look longer the next time after a miss, and not at all after several long ones."""
        if took_ns is None:
            self._misses += self._window_ns >= self._most_ns
            self._window_ns = min(2 * self._window_ns, self._most_ns)
            return
        self._misses = 0
        wanted_ns = min(max(2 * took_ns, self._least_ns), self._most_ns)
        self._window_ns += (wanted_ns - self._window_ns) // 8

    def take_answers(self) -> None:
        """On the thread: wait for answers while there are some to come."""
        try:
            while self._sent:
                self._link.heartbeat.expect()
                with self._reading:
                    if not self._sent:
                        return  # Who held it has taken the last one.
                    packet = self._reader.read_blocking()
                self._taken(packet or b"")
        except NNError as error:
            self.end(self._link.error or error)
        except BaseException as error:
            # The client's own: its burst ends, and nobody waits for an answer for ever.
            logger.exception("the client of a burst of %s failed", self._link.who)
            self.end(contained(error, "the client of a burst"))

    def _answer(self, packet: bytes) -> None:
        """Hand an answer to the client half; one that takes none ends its burst."""
        try:
            self._results.send(packet)
        except NNError:
            self.close()

    def end(self, error: NNError) -> None:
        """End the burst, and answer what is under way with an error, each once."""
        self.close()
        while self._sent:
            try:
                serial = self._sent.pop()
            except KeyError:
                return
            self._answer(_refusal(serial, error))

    # -- requests

    def _tell_core(self) -> None:
        """Have short work come to the core of the caller, who is about to sleep on it."""
        core = current_core() if self._misses < _MISSES else -1
        if core != self._core:
            self._core = core
            self._writer.tell_core(core)

    def _numbered(self, encoded: bytes) -> bytes:
        """The arguments of a request with numbers of memories for slots; tokens stay as they are.

        Raises what the client says to a slot that it does not know.
        """
        callback = self._callback
        try:
            arguments = _arguments.decode(encoded)
        except UNDECODABLE:
            return encoded  # The server half has the answer to it.
        if callback is None:
            return encoded
        with self._lock:
            slots = tuple(dict.fromkeys(slot for slot in arguments.slots if slot >= 0))
            memories = callback.get_memories(slots) if slots else ()
            numbers = dict(zip(slots, map(self._memories.number_of, memories), strict=True))
            named = tuple(numbers.get(slot, slot) for slot in arguments.slots)
            numbered = encode(BurstArguments(arguments.inputs, arguments.outputs, named))
            self._known[encoded] = (numbered, slots)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return numbered


def _opened(ear: _Ear, fence: Fence) -> None:
    """The service has answered whether it serves a burst."""
    error = fence.error
    if error is not None:
        ear.died(contained(error, "opening a burst"))


def _dropped(link: Link, number: int, ends: _Ends) -> None:
    """A burst is no more; on any thread, amidst anything."""
    if not ends.are_shut:
        link.run_soon(functools.partial(_close, link, number, ends))


def _close(link: Link, number: int, ends: _Ends) -> None:
    ends.shut()
    link.unlisten(number)
    link.notify(CloseBurst(number))


def _refusal(serial: int, error: NNError) -> bytes:
    return encode(result_of(serial, error))
