"""The ring and its packets, pure: a header with two counters, and records in a circle of bytes.

The header's words, of eight bytes each, belong to one side each and lie two cache lines apart,
since lines are fetched in pairs:

    0    magic, version, capacity in bytes
    128  the writer's: bytes written, nothing, whether it closed, and the number of the core it
         waits on for answers, plus one, or 0
    256  the reader's: bytes read, position of the writer it waits for, whether it closed
    384  the circle

A counter never goes back and never wraps; its remainder by the capacity is the place in the circle.
A record is a word with the packet's length, then its bytes, filled up to a multiple of eight;
they may go round the end, the word cannot. The reader sees a record when the writer's counter is
past it. Nothing here waits; `ordered` says whether the processor keeps loads and stores in order.
"""

from __future__ import annotations

import platform
import threading
from typing import NoReturn

from nnasync.errors import GeneralFailure, InvalidArgument

MAGIC = int.from_bytes(b"nnaFMQ\r\n", "little")
VERSION = 1
HEADER_BYTES = 384
LENGTH_BYTES = 8
MIN_CAPACITY = 64
MAX_CAPACITY = 1 << 24

ORDERED = platform.machine() in ("x86_64", "AMD64")
"""Whether this processor makes stores visible, and does loads, in the order of the program."""

FULL, CLOSED = -1, -2
"""What `Producer.write` returns where the packet was not written."""

_MAGIC, _VERSION, _CAPACITY = 0, 1, 2
_WRITTEN, _WRITER_CLOSED, _WRITER_CORE = 16, 18, 19
_READ, _WANTS_DATA, _READER_CLOSED = 32, 33, 34


def check_capacity(capacity: int) -> int:
    """The capacity itself; raises InvalidArgument unless it is a fitting multiple of eight."""
    if not MIN_CAPACITY <= capacity <= MAX_CAPACITY or capacity % 8:
        raise InvalidArgument(
            f"a message queue cannot hold {capacity} bytes: its capacity is a multiple of 8 "
            f"from {MIN_CAPACITY} to {MAX_CAPACITY}"
        )
    return capacity


def prepare(memory: memoryview, capacity: int) -> None:
    """Write the header of an empty ring into zeroed memory."""
    words = memory[:HEADER_BYTES].cast("Q")
    words[_VERSION], words[_CAPACITY] = VERSION, check_capacity(capacity)
    words[_MAGIC] = MAGIC


def read_capacity(memory: memoryview) -> int:
    """Capacity of a ring that a peer made; raises InvalidArgument if there is none in `memory`."""
    if len(memory) < HEADER_BYTES:
        raise InvalidArgument(
            f"{len(memory)} bytes are no message queue: its header alone takes {HEADER_BYTES}"
        )
    words = memory[:HEADER_BYTES].cast("Q")
    if words[_MAGIC] != MAGIC:
        raise InvalidArgument("this memory holds no message queue: it does not begin like one")
    if (version := words[_VERSION]) != VERSION:
        raise InvalidArgument(
            f"the message queue has layout {version}, this side knows {VERSION}: "
            "both processes need the same version of nnasync"
        )
    capacity = check_capacity(words[_CAPACITY])
    if HEADER_BYTES + capacity > len(memory):
        raise InvalidArgument(
            f"the message queue claims {capacity} bytes, but only "
            f"{len(memory) - HEADER_BYTES} follow its header"
        )
    return capacity


class _Side:
    """What both sides have: their position, the circle, and what is wrong with the peer."""

    __slots__ = (
        "_data",
        "_fence",
        "_lengths",
        "_ordered",
        "_peer",
        "_words",
        "capacity",
        "fault",
        "position",
    )

    def __init__(self, memory: memoryview, capacity: int, *, ordered: bool = ORDERED) -> None:
        self.capacity = check_capacity(capacity)
        self.position = 0
        self.fault: str | None = None
        self._words = memory[:HEADER_BYTES].cast("Q")
        self._data = memory[HEADER_BYTES : HEADER_BYTES + capacity]
        self._lengths = self._data.cast("Q")
        self._ordered = ordered
        self._fence = threading.Lock()
        self._peer = 0

    @property
    def progress(self) -> int:
        """Grows whenever this side or, as far as is known here, the other has moved."""
        return self.position + self._peer

    def order(self) -> None:
        """Keep what is before this call before what is after it, on any processor."""
        for _ in range(2):
            with self._fence:
                pass

    def detach(self) -> None:
        """Let go of the memory; from now on nothing is there."""
        words = memoryview(bytearray(HEADER_BYTES)).cast("Q")
        words[_WRITTEN] = words[_READ] = self._peer = self.position
        self._words = words
        self._data = self._lengths = memoryview(b"")

    def mistrust(self, counter: int, lowest: int, highest: int) -> NoReturn:
        """Break over a counter that cannot be."""
        self.break_off(f"its counter is {counter}, not a multiple of 8 in {lowest}..{highest}")

    def break_off(self, reason: str) -> NoReturn:
        """Have nothing to do with this peer any more; raises GeneralFailure, as all calls then."""
        self.fault = f"the other side of the message queue broke it: {reason}"
        self._peer = self.position
        raise GeneralFailure(self.fault)


class Producer(_Side):
    """The writer's side of a ring."""

    __slots__ = ()

    def write(self, message: bytes) -> int:
        """Append a packet and return its position; FULL where there is no space now, or CLOSED.

        Raises InvalidArgument for a packet that never fits, GeneralFailure for a broken ring.
        """
        if self.fault is not None:
            raise GeneralFailure(self.fault)
        words, capacity = self._words, self.capacity
        if words[_READER_CLOSED]:
            return CLOSED
        size = len(message)
        start = self.position
        stop = start + LENGTH_BYTES + ((size + 7) & -8)
        if stop - self._peer > capacity and not self._has_space(size, stop):
            return FULL
        at = start % capacity
        self._lengths[at >> 3] = size
        begin = at + LENGTH_BYTES
        end = begin + size
        if end <= capacity:
            self._data[begin:end] = message
        else:
            first = capacity - begin
            self._data[begin:] = message[:first]
            self._data[: size - first] = message[first:]
        if not self._ordered:
            self.order()
        self.position = words[_WRITTEN] = stop
        return start

    def reader_waits(self, since: int) -> bool:
        """Returns whether the reader waits for what was written from position `since` on."""
        if not self._ordered:
            self.order()
            return True
        return since < self._words[_WANTS_DATA] <= self.position

    def tell_core(self, core: int) -> None:
        """Tell the reader on which core its answers are waited for; -1: on any."""
        self._words[_WRITER_CORE] = core + 1

    def close(self) -> None:
        """Tell the reader that nothing more comes."""
        self._words[_WRITER_CLOSED] = 1

    def _has_space(self, size: int, stop: int) -> bool:
        if stop - self.position > self.capacity:
            raise InvalidArgument(
                f"a packet of {size} bytes never fits: the message queue takes up to "
                f"{self.capacity - LENGTH_BYTES}"
            )
        read = self._words[_READ]
        if not self._peer <= read <= self.position or read & 7:
            self.mistrust(read, self._peer, self.position)
        self._peer = read
        if not self._ordered:
            self.order()
        return stop - self._peer <= self.capacity


class Consumer(_Side):
    """The reader's side of a ring."""

    __slots__ = ()

    def read(self) -> bytes | None:
        """Take the oldest packet, None if there is none; raises GeneralFailure if broken."""
        start, capacity = self.position, self.capacity
        written = self._peer
        if written == start:
            if self.fault is not None:
                raise GeneralFailure(self.fault)
            written = self._words[_WRITTEN]
            if written == start:
                return None
            if not start < written <= start + capacity or written & 7:
                self.mistrust(written, start, start + capacity)
            self._peer = written
            if not self._ordered:
                self.order()
        at = start % capacity
        size = self._lengths[at >> 3]
        stop = start + LENGTH_BYTES + ((size + 7) & -8)
        if stop > written:
            self.break_off(f"a packet of {size} bytes where {written - start} are written")
        begin = at + LENGTH_BYTES
        end = begin + size
        if end <= capacity:
            message = self._data[begin:end].tobytes()
        else:
            rest = end - capacity
            message = b"".join((self._data[begin:], self._data[:rest]))
        if not self._ordered:
            self.order()
        self.position = self._words[_READ] = stop
        return message

    def watch(self, looks: int) -> bool:
        """Look so many times whether the writer has moved; True as soon as it has."""
        words, position = self._words, self.position
        for _ in range(looks):  # noqa: SIM110 -- a generator would take twice as long
            if words[_WRITTEN] != position:
                return True
        return False

    def want_data(self) -> None:
        """Tell the writer to ring with its next packet."""
        self._words[_WANTS_DATA] = self.position + 1

    def writer_closed(self) -> bool:
        """Returns whether the writer closed the ring; what it wrote before can still be read."""
        return self._words[_WRITER_CLOSED] != 0

    def writer_core(self) -> int:
        """Returns the core on which the writer says it is: any number, -1 if none."""
        return self._words[_WRITER_CORE] - 1

    def close(self) -> None:
        """Tell the writer that nobody reads on."""
        self._words[_READER_CLOSED] = 1
