"""A burst to a driver service: its packets travel in shared memory, both ways.

What a slot holds is told in the same queue ahead of the first request that names it, so the service
never has to ask. Who sends looks for the answer for a short while, if that was worth it lately; for
what takes longer a thread waits, which sleeps while nothing is under way.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from nnasync.burst import (
    Arguments,
    BurstCallback,
    BurstCancel,
    BurstRequest,
    BurstResult,
    Channel,
)
from nnasync.clock import now_ns
from nnasync.drivers.service.link import Link
from nnasync.drivers.service.memories import Memories
from nnasync.drivers.service.messages import (
    UNDECODABLE,
    BurstMemory,
    CloseBurst,
    FreeBurstMemory,
    LaunchEnded,
    encode,
)
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.message_queue import QueueReader, QueueWriter
from nnasync.workers import contained

__all__ = ["FREE", "PUT", "REQUEST", "RemoteBurst"]

REQUEST, PUT, FREE = b"r", b"+", b"-"

CAPACITY = 1 << 18
"""Bytes of each queue."""
WINDOW_NS = 60_000
"""How long the sender looks for the answer at least."""
LONGEST_WINDOW_NS = 400_000
"""And at most, if answers usually come that late: what may run on the thread of an event loop."""
_MISSES = 4
_PROBE_EVERY = 64
_REMEMBERED = 256

_arguments = msgspec.msgpack.Decoder(Arguments)
_requests = msgspec.msgpack.Decoder(BurstRequest | BurstCancel)
_results = msgspec.msgpack.Decoder(BurstResult)


class RemoteBurst:
    """The client's part of a burst (IBurstContext)."""

    def __init__(
        self,
        link: Link,
        memories: Memories,
        callback: BurstCallback,
        result_channel: Channel,
        owner: object,
    ) -> None:
        """`owner` is the prepared model, which lives as long as its bursts."""
        self._owner = owner
        self.number = link.number()
        self._link = link
        self._memories = memories
        self._callback = callback
        self._results = result_channel
        self._told: dict[int, int] = {}
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._sent: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._misses = 0
        self._usual_ns = WINDOW_NS // 2
        self._reading = threading.Lock()
        self._wanted = threading.Event()
        self._writer, self._requests_there = QueueWriter.create(CAPACITY)
        try:
            self._reader, self._results_there = QueueReader.create(CAPACITY)
        except BaseException:
            self._requests_there.close()
            self._writer.close()
            raise
        self._reader.polling_ns = 0
        self._thread = threading.Thread(target=self._wait, name="nnasync-burst", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def handovers(self) -> Iterator[list[int]]:
        """The descriptors for the service, which are closed afterwards."""
        with self._requests_there as requests, self._results_there as results:
            yield [*requests.descriptors, *results.descriptors]

    def receive(self, packet: bytes) -> None:
        """Send a packet on, from any thread; raises what keeps it from being sent."""
        self._link.check()
        try:
            request = _requests.decode(packet)
        except UNDECODABLE:
            request = None  # The server half has the answer to it.
        serial = -1 if request is None else request.serial
        if self._closed:
            self._answer(_refusal(serial, DeviceUnavailable("the burst is closed")))
            return
        if isinstance(request, BurstCancel):
            self._write(REQUEST, packet)
            return
        if request is not None:
            try:
                self._tell_slots(request.arguments)
            except Exception as error:
                failure = contained(error, "naming the memory of a burst")
                self._answer(_refusal(serial, failure))
                return
        self._sent.add(serial)
        try:
            self._write(REQUEST, packet)
            self._link.check()
        except NNError as error:
            # The end of the link may have answered it already.
            if serial not in self._sent:
                return
            self._sent.discard(serial)
            if isinstance(error, InvalidArgument):
                self._answer(_refusal(serial, error))
                return
            raise
        self._look(serial)

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot."""
        with self._lock:
            told = self._told.pop(slot, None)
            for key in [key for key, slots in self._known.items() if slot in slots]:
                del self._known[key]
        if told is not None and not self._closed:
            with contextlib.suppress(NNError):
                self._write(FREE, encode(FreeBurstMemory(slot)))

    def close(self) -> None:
        """End the burst."""
        if not self._closed:
            self._shut()
            self._link.hush(self.number)
            self._link.tell(CloseBurst(self.number))

    # -- what the link says

    def heard(self, message: LaunchEnded) -> None:
        """Nothing is said about bursts."""

    def died(self, error: NNError) -> None:
        """Answer what is under way."""
        self._end(error)

    # -- answers

    def _look(self, serial: int) -> None:
        """Take answers for a short while, and leave the rest to the thread."""
        if self._misses >= _MISSES:
            self._misses += 1
            if self._misses % _PROBE_EVERY:
                self._wanted.set()
                return
        if not self._reading.acquire(blocking=False):
            self._wanted.set()
            return
        began_ns = now_ns()
        window_ns = min(max(2 * self._usual_ns, WINDOW_NS), LONGEST_WINDOW_NS)
        try:
            try_read = self._reader.try_read
            while serial in self._sent:
                packet = try_read()
                if packet is not None:
                    self._hand_on(packet)
                elif now_ns() - began_ns >= window_ns:
                    break
            self._learn(now_ns() - began_ns, window_ns, has_missed=serial in self._sent)
        except NNError:
            pass  # A broken queue: the thread meets it too, and ends the burst.
        finally:
            self._reading.release()
        if self._sent:
            self._wanted.set()

    def _learn(self, took_ns: int, window_ns: int, *, has_missed: bool) -> None:
        """Look longer the next time after a miss, and not at all after several long ones."""
        if not has_missed:
            self._misses = 0
            self._usual_ns += (took_ns - self._usual_ns) // 8
            return
        self._usual_ns = min(2 * self._usual_ns, LONGEST_WINDOW_NS)
        self._misses += window_ns >= LONGEST_WINDOW_NS

    def _wait(self) -> None:
        """What the thread does: wait for answers while there are some to come."""
        while True:
            self._wanted.wait()
            self._wanted.clear()
            try:
                while self._sent:
                    with self._reading:
                        packet = self._reader.read_blocking()
                    self._hand_on(packet or b"")
            except NNError as error:
                self._end(self._link.error or error)
            if self._closed:
                return

    def _hand_on(self, packet: bytes) -> None:
        try:
            self._sent.discard(_results.decode(packet).serial)
        except UNDECODABLE:
            pass  # The client half ends the burst for it.
        self._answer(packet)

    def _answer(self, packet: bytes) -> None:
        """Hand an answer to the client half; one that takes none ends its burst."""
        try:
            self._results.send(packet)
        except NNError:
            self.close()

    def _end(self, error: NNError) -> None:
        """Answer what is under way with an error, each once."""
        if not self._closed:
            self._shut()
        while self._sent:
            try:
                serial = self._sent.pop()
            except KeyError:
                return
            self._answer(_refusal(serial, error))

    def _shut(self) -> None:
        self._closed = True
        for each in (self._reader, self._writer, self._requests_there, self._results_there):
            each.close()
        self._wanted.set()

    # -- requests

    def _write(self, kind: bytes, packet: bytes) -> None:
        if not self._writer.try_write(kind + packet):
            raise ResourceExhaustedTransient("the queue of a burst is full")

    def _tell_slots(self, encoded: bytes) -> None:
        """Tell the service what is in the slots of a request."""
        if encoded in self._known:
            return
        try:
            slots = _arguments.decode(encoded).slots
        except UNDECODABLE:
            return
        with self._lock:
            for slot in dict.fromkeys(slots):
                if slot in self._told:
                    continue
                (memory,) = self._callback.get_memories([slot])
                number = self._memories.number_of(memory)
                self._write(PUT, encode(BurstMemory(slot, number)))
                self._told[slot] = number
            self._known[encoded] = slots
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)


def _refusal(serial: int, error: NNError) -> bytes:
    has_died = isinstance(error, DeviceDied)
    return encode(BurstResult(serial, int(error.status), str(error), has_died=has_died))
