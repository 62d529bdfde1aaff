"""Frames that bring values with them, put together and taken apart: pure.

A frame is a header of 16 bytes (length of the message, number of values, zero, a number that the
sender chose; little-endian), the sizes of the values (8 bytes each), the message, and the values.
Whoever receives says where they go as soon as the message is there, so that they are read from the
network into their place: `FrameReader.targets` are pieces of it. Values without a place are
skipped, and the connection stays of use.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from nnasync._core.wire.connection import MAX_MESSAGE_BYTES, Frame
from nnasync.errors import GeneralFailure, InvalidArgument, NNError

MAX_VALUES = 1024
"""Of one frame: inputs, outputs or pools of constants."""
MAX_VALUE_BYTES = 1 << 40
_HEADER = struct.Struct("<IHHQ")
_SIZE = struct.Struct("<Q")
_SKIPPED_AT_ONCE = 1 << 16


class Landing:
    """Where the values of one frame go; with an `error` they go nowhere.

    `is_filled` once all of them are there.
    """

    __slots__ = ("error", "is_filled", "message", "views")

    def __init__(
        self,
        views: Sequence[memoryview] = (),
        *,
        message: Any = None,
        error: NNError | None = None,
    ) -> None:
        self.views = views
        self.message = message
        self.error = error
        self.is_filled = False

    def drop(self) -> None:
        """Drops what landed here, because nobody wants it."""


class ValueFrame(Frame):
    """A message that arrived, with its number, and where its values are."""

    __slots__ = ("landing", "number")

    def __init__(self, message: bytes, number: int, landing: Landing) -> None:
        super().__init__(message, [])
        self.number = number
        self.landing = landing

    def take_landing(self) -> Landing:
        """Returns where the values are, and hands them to the caller.

        Raises why they were refused.
        """
        taken, self.landing = self.landing, Landing()
        if taken.error is not None:
            raise taken.error
        return taken

    def close(self) -> None:
        """Drops values that were not taken."""
        super().close()
        self.landing.drop()


Place = Callable[[int, bytes, Sequence[int]], Landing]
"""Says where the values of a frame go: of its number, its message, and their sizes."""


def framed(message: bytes, values: Sequence[memoryview], number: int) -> list[memoryview]:
    """Returns a frame in pieces, without copying the values; raises InvalidArgument."""
    if len(message) > MAX_MESSAGE_BYTES or len(values) > MAX_VALUES:
        raise InvalidArgument(
            f"a message of {len(message)} bytes with {len(values)} values is too large: at most "
            f"{MAX_MESSAGE_BYTES} bytes and {MAX_VALUES} values"
        )
    header = _HEADER.pack(len(message), len(values), 0, number)
    sizes = b"".join(_SIZE.pack(value.nbytes) for value in values)
    return [memoryview(header + sizes + message), *(each for each in values if each.nbytes)]


class FrameReader:
    """Splits what one peer sends into frames."""

    def __init__(self, who: str, place: Place, most_bytes: int = MAX_VALUE_BYTES) -> None:
        """`who` is the peer, for errors; a frame with more than `most_bytes` ends it."""
        self._who = who
        self._place = place
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        self._frame: ValueFrame | None = None
        self._rest: deque[memoryview] = deque()
        self._skip = 0
        self._fits = False
        self._scratch = memoryview(bytearray(_SKIPPED_AT_ONCE))

    @property
    def landing(self) -> Landing | None:
        """Returns the landing of the frame whose values are arriving."""
        return None if self._frame is None else self._frame.landing

    def targets(self) -> list[memoryview]:
        """Returns where the next bytes go, for `filled`; empty where they are for `feed`."""
        if self._skip:
            return [self._scratch[: self._skip]]
        return list(self._rest)

    def filled(self, count: int) -> list[ValueFrame]:
        """Notes that so many bytes were written to the targets.

        Returns the frame that completes.
        """
        if self._skip:
            self._skip -= count
            return self._whole()
        while count:
            first = self._rest.popleft()
            if count < first.nbytes:
                self._rest.appendleft(first[count:])
                break
            count -= first.nbytes
        return self._whole()

    def feed(self, data: bytes | memoryview) -> list[ValueFrame]:
        """Returns the frames that these bytes complete; there may be more than the next frame.

        Raises GeneralFailure for what is no frame; nothing more can be read then.
        """
        self._buffer += data
        frames: list[ValueFrame] = []
        while True:
            if self._frame is None and not self._begin():
                return frames
            self._fill()
            whole = self._whole()
            if not whole:
                return frames
            frames += whole

    def abandon(self, landing: Landing) -> None:
        """Writes nothing more to this landing; the rest of its values is skipped."""
        if self.landing is landing:
            self._skip += sum(view.nbytes for view in self._rest)
            self._rest.clear()
            self._fits = False

    def _begin(self) -> bool:
        """Begins the next frame; returns whether its message is there."""
        buffer = self._buffer
        if len(buffer) < _HEADER.size:
            return False
        length, count, zero, number = _HEADER.unpack_from(buffer)
        if length > MAX_MESSAGE_BYTES or count > MAX_VALUES or zero:
            raise GeneralFailure(
                f"{self._who} sent a frame of {length} bytes with {count} values: at most "
                f"{MAX_MESSAGE_BYTES} and {MAX_VALUES} are taken"
            )
        start = _HEADER.size + count * _SIZE.size
        if len(buffer) < start + length:
            return False
        sizes = [_SIZE.unpack_from(buffer, _HEADER.size + 8 * each)[0] for each in range(count)]
        if sum(sizes) > self._most_bytes:
            raise GeneralFailure(
                f"{self._who} sent a frame with {sum(sizes)} bytes of values: at most "
                f"{self._most_bytes} are taken"
            )
        message = bytes(buffer[start : start + length])
        del buffer[: start + length]
        landing = self._place(number, message, sizes) if count else Landing()
        self._frame = ValueFrame(message, number, landing)
        self._fits = [view.nbytes for view in landing.views] == sizes
        if self._fits:
            self._rest.extend(view for view in landing.views if view.nbytes)
        else:
            self._skip = sum(sizes)
        return True

    def _fill(self) -> None:
        """Copies the part of the values that has arrived already."""
        buffer = self._buffer
        while buffer and (targets := self.targets()):
            count = min(len(buffer), targets[0].nbytes)
            targets[0][:count] = buffer[:count]
            del buffer[:count]
            if self._skip:
                self._skip -= count
            elif count < targets[0].nbytes:
                self._rest[0] = targets[0][count:]
            else:
                self._rest.popleft()

    def _whole(self) -> list[ValueFrame]:
        """Returns the frame, if all of it is there."""
        if self._frame is None or self._rest or self._skip:
            return []
        frame, self._frame = self._frame, None
        frame.landing.is_filled = self._fits
        return [frame]
