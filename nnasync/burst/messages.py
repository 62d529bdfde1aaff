"""The packets of a burst: msgspec arrays in MessagePack, with the fields of the HAL's."""

from __future__ import annotations

import msgspec

from nnasync.hal import NOT_AVAILABLE, OutputShape, RequestArgument
from nnasync.hal.decoders import msgpack_decoder
from nnasync.scheduler import NEVER_NS

__all__ = [
    "MAX_MESSAGE_BYTES",
    "UNDECODABLE",
    "Arguments",
    "BurstCancel",
    "BurstRequest",
    "BurstResult",
    "decode_arguments",
    "decode_request",
    "decode_result",
    "encode",
]

MAX_MESSAGE_BYTES = 1 << 20


class Arguments(msgspec.Struct, frozen=True, array_like=True):
    """Inputs and outputs; a pool index counts in `slots`, of which negative ones are tokens."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    slots: tuple[int, ...]


class BurstCancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """The client waits no longer for the request of this serial number."""

    serial: int


class BurstRequest(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="run"):
    """One execution to begin; `arguments` is an encoded `Arguments`."""

    serial: int
    arguments: bytes
    measure: bool = False
    deadline_ns: int = NEVER_NS


class BurstResult(msgspec.Struct, frozen=True, array_like=True):
    """The answer to the request of the same serial number."""

    serial: int
    status: int = 0
    message: str = ""
    output_shapes: tuple[OutputShape, ...] = ()
    time_on_device_ns: int = NOT_AVAILABLE
    time_in_driver_ns: int = NOT_AVAILABLE
    has_died: bool = False


encode = msgspec.msgpack.Encoder().encode
decode_arguments = msgpack_decoder(Arguments).decode
decode_request = msgpack_decoder(BurstRequest | BurstCancel).decode
decode_result = msgpack_decoder(BurstResult).decode

UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoding hostile bytes raises: a skipped part may be nested deeply, a text be no UTF-8."""
