"""What a client and a driver service say to each other: msgspec arrays in MessagePack.

Numbers of calls, models, memories, prepared models, launches and bursts are the client's choice:
whatever is made has a name before its answer is there, and nothing is asked for a name alone. File
descriptors travel beside a message in the order of its fields. An answer bears the number of its
call; answers may overtake one another. Times are of CLOCK_MONOTONIC, which processes of one machine
share.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from nnasync import errors
from nnasync.device import Lowering
from nnasync.errors import REASONS, GeneralFailure, NNError, OutputInsufficientSize, because
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceType,
    ExecutionConfig,
    ExecutionPreference,
    Extension,
    HalVersion,
    OutputShape,
    Priority,
    Struct,
)
from nnasync.hal.decoders import msgpack_decoder
from nnasync.memory import ImageLayout

MAGIC = "nnasync driver service"
PROTOCOL = 1

T = TypeVar("T")


class Message(Struct, array_like=True, gc=False):
    """Base of all that is sent."""


class Call(Message):
    """Base of what a client wants to be answered, under this number."""

    call: int


# -- parts of messages


class PoolForm(Message):
    """A piece of memory behind a file descriptor.

    With a `refusal`, which says why the client itself cannot hand it over, there is no descriptor.
    """

    kind: str
    size: int
    offset: int
    writable: bool
    image_layout: ImageLayout | None = None
    refusal: str = ""


# -- from the client


class Hello(Message, tag="hello"):
    """The first message, in every version of the protocol."""

    magic: str
    protocol: int
    version: str
    call: int = 0


class GetStatus(Call, tag="status"):
    """Answered by a `DeviceStatus`."""


class Ping(Call, tag="ping"):
    """Answered at once by the loop of the service, which shows that it turns."""


class OfferModel(Call, tag="model"):
    """A model: `form` is an encoded `ModelDescription` without operand values.

    The first descriptor is of the copied operand values if `values` says so, the others are of the
    pools.
    """

    model: int
    form: bytes
    values: PoolForm | bytes
    pools: tuple[PoolForm, ...]


class ForgetModel(Message, tag="-model"):
    """Says that the model is not used in questions any more; what was prepared of it stays."""

    model: int


class Supports(Call, tag="supports"):
    """Answered for each operation of the model."""

    model: int


class GetLowerings(Call, tag="lowerings"):
    """Answered by the ways to run the model."""

    model: int
    preference: ExecutionPreference


class GetReasons(Call, tag="reasons"):
    """Asks why not; answered with a reason for each operation, empty where there is none."""

    model: int


class Prepare(Call, tag="prepare"):
    """Prepare a model as `prepared`; descriptors are of the cache files."""

    model: int
    prepared: int
    preference: ExecutionPreference
    priority: Priority
    deadline_ns: int
    model_files: int
    data_files: int
    token: bytes
    lowering: Lowering | None = None


class PrepareFromCache(Call, tag="restore"):
    """Prepares a model from what was kept in cache files."""

    prepared: int
    deadline_ns: int
    model_files: int
    data_files: int
    token: bytes


class Share(Call, tag="share"):
    """Prepare `prepared` over the plan of one that is there (`of`), with another priority."""

    prepared: int
    of: int
    priority: Priority


class ClosePrepared(Call, tag="-prepared"):
    """Close a prepared model."""

    prepared: int


class OfferMemory(Message, tag="memory"):
    """Memory for requests; that it cannot be used is told by the executions that name it."""

    memory: int
    pool: PoolForm


class ForgetMemory(Message, tag="-memory"):
    """Says that no later request names a memory."""

    memory: int


class Cancel(Message, tag="cancel"):
    """Says that nobody waits for the answer to this call any more."""

    call: int


class Launch(Call, tag="launch"):
    """Answered by nothing, with the fence as descriptor; the descriptors are fences to wait for."""

    launch: int
    prepared: int
    form: bytes
    config: ExecutionConfig
    fences: int


class CancelLaunch(Message, tag="abort"):
    """End a launched execution."""

    launch: int


class LaunchInfo(Call, tag="info"):
    """Answered by an `ExecutionInfo`."""

    launch: int


class ForgetLaunch(Message, tag="-launch"):
    """A launched execution is not asked about any more."""

    launch: int


class OpenBurst(Call, tag="burst"):
    """Serve a burst; the descriptors are of its queues, for requests and for results.

    Both carry messages of the burst protocol, in which numbers of memories stand for slots. Unless
    it is `ordered`, it is for plain executions, which run side by side. With `polls` who reads
    looks for packets before he parks.
    """

    burst: int
    prepared: int
    polls: bool = True
    ordered: bool = True


class CloseBurst(Message, tag="-burst"):
    """End a burst."""

    burst: int


class Allocate(Call, tag="allocate"):
    """Allocate a driver-managed buffer; answered by its token."""

    buffer: int
    desc: BufferDesc
    prepared: tuple[int, ...]
    input_roles: tuple[BufferRole, ...]
    output_roles: tuple[BufferRole, ...]


class CopyBuffer(Call, tag="copy"):
    """Copy a buffer to memory, or from it."""

    buffer: int
    memory: int
    dimensions: tuple[int, ...]
    is_from: bool


class CloseBuffer(Call, tag="-buffer"):
    """Give a buffer back."""

    buffer: int


class Trace(Call, tag="trace"):
    """Record what the device does from now on, or no more; answered by `Spans`.

    Where there is nothing to tell, the answer to one that `is_on` comes some time later.
    """

    is_on: bool


FromClient = (
    Hello
    | GetStatus
    | Ping
    | OfferModel
    | ForgetModel
    | Supports
    | GetLowerings
    | GetReasons
    | Prepare
    | PrepareFromCache
    | Share
    | ClosePrepared
    | OfferMemory
    | ForgetMemory
    | Cancel
    | Launch
    | CancelLaunch
    | LaunchInfo
    | ForgetLaunch
    | OpenBurst
    | CloseBurst
    | Allocate
    | CopyBuffer
    | CloseBuffer
    | Trace
)


# -- from the service


class Welcome(Message):
    """The answer to `Hello`: what the device says of itself."""

    version: str
    name: str
    device_version: str
    type: DeviceType
    feature_level: HalVersion
    capabilities: Capabilities
    extensions: tuple[Extension, ...]
    cache_files: tuple[int, int]
    caches_late: bool


class Failed(Message):
    """An error, by the name of its class."""

    kind: str
    text: str
    output_shapes: tuple[OutputShape, ...] = ()
    reason: str = ""


class Answer(Message, tag="answer"):
    """The answer to a call: an encoded struct, nothing, or an error."""

    call: int
    value: bytes | Failed


class LaunchEnded(Message, tag="ended"):
    """A launched execution is over."""

    launch: int
    failure: Failed | None


FromService = Answer | LaunchEnded

encode = msgspec.msgpack.Encoder().encode

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
"""What decoding hostile bytes raises."""


def decode(data: bytes, type: Any) -> Any:
    """Decodes what a peer sent; raises GeneralFailure if it is not of that type."""
    try:
        return msgpack_decoder(type).decode(data)
    except UNDECODABLE as error:
        raise GeneralFailure(f"a message cannot be decoded: {error}") from error


# -- errors

_CLASSES: dict[str, type[NNError]] = {
    each.__name__: each
    for each in (
        errors.InvalidArgument,
        errors.ModelError,
        errors.OutputInsufficientSize,
        errors.BadState,
        errors.Cancelled,
        errors.DeviceUnavailable,
        errors.GeneralFailure,
        errors.DeviceDied,
        errors.MissedDeadlineTransient,
        errors.MissedDeadlinePersistent,
        errors.ResourceExhaustedTransient,
        errors.ResourceExhaustedPersistent,
    )
}
_LONGEST_TEXT = 4000


def failed(error: BaseException) -> Failed:
    """Returns an error as it travels; a class of its own travels as the nearest known one."""
    text = str(error)[:_LONGEST_TEXT]
    for kind in type(error).__mro__:
        if kind.__name__ in _CLASSES and _CLASSES[kind.__name__] is kind:
            shapes = getattr(error, "output_shapes", ())
            return Failed(kind.__name__, text, shapes, getattr(error, "reason", ""))
    return Failed("GeneralFailure", f"{type(error).__name__}: {text}")


def error_of(failure: Failed) -> NNError:
    """Returns the error of a failure; an unknown class becomes a GeneralFailure."""
    kind = _CLASSES.get(failure.kind)
    if kind is None:
        return GeneralFailure(f"{failure.kind}: {failure.text}")
    if kind is OutputInsufficientSize:
        return OutputInsufficientSize(failure.text, failure.output_shapes)
    error = kind(failure.text)
    return because(failure.reason, error) if failure.reason in REASONS else error
