"""The packets of a burst: msgspec arrays in MessagePack, with the fields of the HAL's.

What succeeds is answered with the same fields again and again. So results begin with a head of
fixed length, which has the serial number, and what follows is neither encoded nor decoded anew as
long as it is what it was.
"""

from __future__ import annotations

import msgspec

from nnasync.errors import BadState, Cancelled, DeviceDied, ModelError, NNError
from nnasync.hal import (
    DEFAULT_LOOP_TIMEOUT_NS,
    NEVER_NS,
    NOT_AVAILABLE,
    ExecutionConfig,
    OutputShape,
    Priority,
    RequestArgument,
)
from nnasync.hal.decoders import msgpack_decoder

MAX_MESSAGE_BYTES = 1 << 20
_LONGEST_TEXT = 4000

KINDS: dict[str, type[NNError]] = {
    kind.__name__: kind for kind in (BadState, Cancelled, DeviceDied, ModelError)
}
"""Classes of errors that travel as the status of another class."""


class BurstArguments(msgspec.Struct, frozen=True, array_like=True):
    """Inputs and outputs; a pool index counts in `slots`, of which negative ones are tokens."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    slots: tuple[int, ...]


class BurstCancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """The client waits no longer for the request of this serial number."""

    serial: int


class BurstRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="run"):
    """One execution to begin; `arguments` is an encoded `BurstArguments`."""

    serial: int
    arguments: bytes
    measure: bool = False
    deadline_ns: int = NEVER_NS
    loop_timeout_ns: int = DEFAULT_LOOP_TIMEOUT_NS
    priority: Priority | None = None


class BurstResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the request of the same serial number.

    `kind` is the class of an error that travels as the status of another class.
    """

    serial: int
    status: int = 0
    message: str = ""
    output_shapes: tuple[OutputShape, ...] = ()
    time_on_device_ns: int = NOT_AVAILABLE
    time_in_driver_ns: int = NOT_AVAILABLE
    kind: str = ""
    reason: str = ""


def result_of(serial: int, error: NNError) -> BurstResult:
    """The answer that a request failed."""
    kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS)
    return BurstResult(
        serial,
        int(error.status),
        str(error)[:_LONGEST_TEXT],
        getattr(error, "output_shapes", ()),
        kind=next(kinds, ""),
        reason=error.reason,
    )


def request_of(serial: int, arguments: bytes, config: ExecutionConfig) -> BurstRequest:
    """A request with what it may take."""
    return BurstRequest(
        serial,
        arguments,
        config.measure,
        config.deadline_ns,
        config.loop_timeout_ns,
        config.priority,
    )


encode = msgspec.msgpack.Encoder().encode
decode_arguments = msgpack_decoder(BurstArguments).decode
decode_request = msgpack_decoder(BurstRequest | BurstCancel).decode
decode_result = msgpack_decoder(BurstResult).decode

_HEAD = b"\x98\xcf"
"""Eight fields follow, of which the first is a number of eight bytes."""
_HEAD_BYTES = 10


class ResultEncoder:
    """Encodes the results of one burst, from any thread."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[object, bytes] = (None, b"")

    def again(self, serial: int, outcome: object) -> bytes | None:
        """The packet for an outcome that is the very object of the last success, else None."""
        last, tail = self._last
        if outcome is not last or serial < 0:
            return None
        return _HEAD + serial.to_bytes(8, "big") + tail

    def first(self, result: BurstResult, outcome: object) -> bytes:
        """The packet of a result, which is remembered for its outcome if that is a success."""
        if result.serial < 0:
            return encode(result)
        tail = encode(msgspec.structs.replace(result, serial=0))[2:]
        if not result.status:
            self._last = (outcome, tail)
        return _HEAD + result.serial.to_bytes(8, "big") + tail


class ResultDecoder:
    """Decodes the results of one burst, from any thread."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = (b"", BurstResult(-1))

    def expected(self, serial: int) -> tuple[bytes | None, BurstResult]:
        """The packet of the next success, should it be as the last one, and what that says."""
        tail, result = self._last
        if not tail or serial < 0:
            return None, result
        return _HEAD + serial.to_bytes(8, "big") + tail, result

    def decode(self, packet: bytes) -> tuple[int, BurstResult]:
        """The serial number and the rest, whose own serial number may be that of another.

        Equal rests are one object. Raises one of UNDECODABLE.
        """
        known, result = self._last
        tail = packet[_HEAD_BYTES:]
        if tail == known and tail and packet.startswith(_HEAD):
            return int.from_bytes(packet[2:_HEAD_BYTES], "big"), result
        result = decode_result(packet)
        if not result.status and packet.startswith(_HEAD):
            self._last = (tail, result)
        return result.serial, result


UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoding hostile bytes raises: a skipped part may be nested deeply, a text be no UTF-8."""
