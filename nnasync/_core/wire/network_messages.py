"""What a client and a service on another machine say beside `messages`: values travel.

No clock is shared: a time by which something is due travels as the nanoseconds that remain, less
half of what a message takes there and back. The values of requests and of buffers follow their
message, each as bytes.
"""

from __future__ import annotations

import msgspec

from nnasync._core.wire.messages import (
    Allocate,
    Call,
    Cancel,
    CloseBuffer,
    ClosePrepared,
    ForgetModel,
    GetLowerings,
    GetReasons,
    GetStatus,
    Hello,
    OfferModel,
    Ping,
    Prepare,
    Share,
    Supports,
)
from nnasync.hal import NEVER_NS, ExecutionConfig, RequestArgument, Struct


class RunForm(Struct, array_like=True, frozen=True):
    """The arguments of a request whose pools are one piece of `size` bytes, and buffers.

    Pool 0 is that piece, the others are driver-managed buffers by their `tokens`.
    """

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    tokens: tuple[int, ...]
    size: int


class Run(Call, tag="run"):
    """Execute; `form` is an encoded `RunForm`, whose inputs in its memory follow as values.

    Answered by an `ExecutionResult`, and the outputs in its memory as values. The deadline in
    `config` is of remaining time.
    """

    prepared: int
    form: bytes
    config: ExecutionConfig


class WriteBuffer(Call, tag="write"):
    """Copy the value that follows into a buffer."""

    buffer: int
    dimensions: tuple[int, ...]


class ReadBuffer(Call, tag="read"):
    """Answered by the contents of a buffer, of exactly this size, as a value."""

    buffer: int
    size: int


FromNetworkClient = (
    Hello
    | GetStatus
    | Ping
    | OfferModel
    | ForgetModel
    | Supports
    | GetLowerings
    | GetReasons
    | Prepare
    | Share
    | ClosePrepared
    | Cancel
    | Allocate
    | CloseBuffer
    | Run
    | WriteBuffer
    | ReadBuffer
)


def remaining(deadline_ns: int, now_ns: int, trip_ns: int = 0) -> int:
    """Returns the time until a deadline that will be left when a message arrives after its trip."""
    return NEVER_NS if deadline_ns >= NEVER_NS else deadline_ns - now_ns - trip_ns


def due_at(remaining_ns: int, now_ns: int) -> int:
    """Returns the deadline here, by the time that was left on arrival."""
    if remaining_ns >= NEVER_NS:
        return NEVER_NS
    return min(max(now_ns + remaining_ns, -NEVER_NS), NEVER_NS)


def places(arguments: tuple[RequestArgument, ...]) -> list[tuple[int, int]]:
    """Returns offset and length of the arguments of a `RunForm` that travel as values."""
    return [
        (each.location.offset, each.location.length)
        for each in arguments
        if not each.has_no_value and each.location.pool_index == 0 and each.location.length
    ]


def travelling(config: ExecutionConfig, now_ns: int, trip_ns: int) -> ExecutionConfig:
    """Returns a configuration as it is sent, with the remaining time for a deadline."""
    return msgspec.structs.replace(
        config, deadline_ns=remaining(config.deadline_ns, now_ns, trip_ns)
    )


def arrived(config: ExecutionConfig, now_ns: int) -> ExecutionConfig:
    """Returns a received configuration with its deadline by the clock here."""
    return msgspec.structs.replace(config, deadline_ns=due_at(config.deadline_ns, now_ns))
