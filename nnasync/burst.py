"""The burst protocol: many executions of one prepared model over a channel that is kept alive.

The client half (`BurstController`) names memory by slots, small numbers that it allocates, most
recently freed first; the server half (`BurstServer`) asks for the memory of a slot it does not
know once (`get_memories`) and keeps it until the slot is freed. A request carries what the HAL's
packet has (inputs, outputs, slots, whether to measure), and beside that a deadline and a serial
number, so that answers may overtake one another: a missed deadline is answered while an earlier
execution still runs. The server begins one execution only after the device has let go of all
before it.

Messages are msgspec arrays in MessagePack. The arguments of a request are an encoding of their own
inside it: a client that uses the same memory again sends the same bytes, and the server, which
trusts nothing that arrives, checks and binds each distinct encoding once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from nnasync.errors import (
    BY_STATUS,
    BadState,
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
    OutputInsufficientSize,
)
from nnasync.fences import Fence, merge
from nnasync.hal import (
    NOT_AVAILABLE,
    ErrorStatus,
    ExecutionResult,
    Memory,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from nnasync.scheduler import NEVER_NS

__all__ = [
    "Begin",
    "BurstCallback",
    "BurstContext",
    "BurstController",
    "BurstServer",
    "Channel",
    "InlineBurstContext",
    "LocalChannel",
    "Outcome",
]

Outcome = ExecutionResult | NNError

MAX_REMEMBERED_REQUESTS = 256
MAX_MESSAGE_BYTES = 1 << 20


class Arguments(msgspec.Struct, frozen=True, array_like=True):
    """Inputs and outputs of a request; a location's pool index counts in `slots`."""

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


_encoder = msgspec.msgpack.Encoder()
_arguments = msgspec.msgpack.Decoder(Arguments)
_requests = msgspec.msgpack.Decoder(BurstRequest | BurstCancel)
_results = msgspec.msgpack.Decoder(BurstResult)

_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What decoding hostile bytes raises: a skipped part may be nested deeply, a text be no UTF-8."""


class Channel(Protocol):
    """One direction of a burst: messages in order, from one sender to one receiver."""

    def send(self, message: bytes) -> None:
        """Hand a message over; raises ResourceExhaustedTransient when full, BadState closed."""

    def listen(self, receive: Callable[[bytes], None]) -> None:
        """Have every message handed to `receive`."""

    def close(self) -> None:
        """End the channel; idempotent."""


class LocalChannel:
    """A channel within a process: the receiver runs on the sender's thread."""

    __slots__ = ("_receive",)

    def __init__(self) -> None:
        self._receive: Callable[[bytes], None] | None = None

    def send(self, message: bytes) -> None:
        """Call the receiver."""
        receive = self._receive
        if receive is None:
            raise BadState("the channel is closed, or nobody listens yet")
        receive(message)

    def listen(self, receive: Callable[[bytes], None]) -> None:
        """Set the receiver."""
        self._receive = receive

    def close(self) -> None:
        """Forget the receiver."""
        self._receive = None


class BurstCallback(Protocol):
    """What a server asks its client (IBurstCallback)."""

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """The memory behind each slot; raises InvalidArgument if one is unknown."""


class BurstContext(Protocol):
    """What a client keeps of its burst (IBurstContext)."""

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot; harmless if it is unknown."""

    def close(self) -> None:
        """End the burst."""


@runtime_checkable
class InlineBurstContext(BurstContext, Protocol):
    """The context of a device in this process, which may run a request on the client's thread."""

    def run_now(
        self, request: Request, *, measure: bool, deadline_ns: int
    ) -> ExecutionResult | None:
        """Run at once, past the channel, or return None where that is not the thing to do.

        It is where nothing of the burst is under way and a hop to a worker would cost more. Raises
        what an execution raises.
        """


@runtime_checkable
class HeatedBurstContext(BurstContext, Protocol):
    """The context of a device that tells of its fast state."""

    @property
    def is_hot(self) -> bool:
        """Whether the device is in its fast state for this burst."""


class Begin(Protocol):
    """Begin an execution: the server's way to the device.

    `reply` is called exactly once with the outcome, `release` once after it, when the device has
    let go of the memory; both perhaps before `begin` returns. The execution waits for `behind`.
    Returns a way to cancel the execution, or None if it is over.
    """

    def __call__(
        self,
        request: Request,
        *,
        measure: bool,
        deadline_ns: int,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], None] | None:
        """Begin."""


class BurstServer:
    """The half at the device: decodes, resolves slots, begins executions, answers."""

    def __init__(self, begin: Begin, callback: BurstCallback, result_channel: Channel) -> None:
        self._begin = begin
        self._callback = callback
        self._results = result_channel
        self._memories: dict[int, Memory] = {}
        self._known: OrderedDict[bytes, tuple[Request, tuple[int, ...]]] = OrderedDict()
        self._held: set[Fence] = set()
        self._cancels: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def receive(self, message: bytes) -> None:
        """Serve one request; every message gets one answer, also one that makes no sense."""
        serial = -1
        try:
            if len(message) > MAX_MESSAGE_BYTES:
                raise InvalidArgument(f"a burst request of {len(message)} bytes is too large")
            packet = _requests.decode(message)
            serial = packet.serial
            if isinstance(packet, BurstCancel):
                self._cancel(serial)
                return
            request = self._request(packet.arguments)
            execution = _Execution(self, serial)
            cancel = self._begin(
                request,
                measure=packet.measure,
                deadline_ns=packet.deadline_ns,
                behind=self._behind(),
                reply=execution.reply,
                release=execution.release,
            )
            if cancel is not None:
                self._cancels[serial] = cancel
                execution.begun()
        except NNError as error:
            self.answer(serial, error)
        except _UNDECODABLE as error:
            self.answer(serial, GeneralFailure(f"a burst request cannot be decoded: {error}"))
        except Exception as error:
            text = f"a burst request failed: {type(error).__name__}: {error}"
            self.answer(serial, GeneralFailure(text))

    @property
    def is_idle(self) -> bool:
        """Whether the device has let go of all requests, and the burst is open."""
        return not (self._held or self._cancels or self._closed)

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot, and every request that was bound to it."""
        with self._lock:
            self._memories.pop(slot, None)
            for key in [key for key, (_, slots) in self._known.items() if slot in slots]:
                del self._known[key]

    def close(self) -> None:
        """Drop every mapping; later requests are answered with DeviceUnavailable."""
        self._closed = True
        for serial in list(self._cancels):
            self._cancel(serial)
        self._known.clear()
        self._memories.clear()

    def answer(self, serial: int, outcome: Outcome) -> None:
        """Send the answer to a request; a client that takes none ends its burst, nothing else."""
        if isinstance(outcome, NNError):
            shapes = getattr(outcome, "output_shapes", ())
            result = BurstResult(serial, outcome.status, str(outcome), shapes)
        else:
            timing = outcome.timing
            result = BurstResult(
                serial,
                0,
                "",
                outcome.output_shapes,
                timing.time_on_device_ns,
                timing.time_in_driver_ns,
            )
        try:
            self._results.send(_encoder.encode(result))
        except NNError:
            self.close()

    def hold(self, released: Fence) -> None:
        """Begin nothing before this fence."""
        with self._lock:
            self._held.add(released)

    def released(self, serial: int, held: Fence | None) -> None:
        """Note that a request can no longer be cancelled, and holds up no other."""
        self._cancels.pop(serial, None)
        if held is not None:
            with self._lock:
                self._held.discard(held)

    def _behind(self) -> Fence | None:
        """What the next execution waits for: all before it, also behind one that failed."""
        if not self._held:
            return None
        with self._lock:
            held = tuple(self._held)
        return merge(held) if len(held) > 1 else next(iter(held), None)

    def _cancel(self, serial: int) -> None:
        cancel = self._cancels.pop(serial, None)
        if cancel is not None:
            cancel()

    def _request(self, encoded: bytes) -> Request:
        known = self._known.get(encoded)
        if known is not None:
            return known[0]
        if self._closed:
            raise DeviceUnavailable("the burst is closed")
        arguments = _arguments.decode(encoded)
        unknown = sorted({slot for slot in arguments.slots if slot not in self._memories})
        memories = self._callback.get_memories(unknown) if unknown else ()
        with self._lock:
            self._memories.update(zip(unknown, memories, strict=True))
            pools = tuple(self._memories[slot] for slot in arguments.slots)
            request = Request(arguments.inputs, arguments.outputs, pools)
            self._known[encoded] = (request, arguments.slots)
            if len(self._known) > MAX_REMEMBERED_REQUESTS:
                self._known.popitem(last=False)
        return request


class _Execution:
    """One request inside the server, until it is answered and released."""

    __slots__ = ("_released", "_serial", "_server", "_waits")

    def __init__(self, server: BurstServer, serial: int) -> None:
        self._server = server
        self._serial = serial
        self._released = False
        self._waits: Fence | None = None

    def reply(self, outcome: Outcome) -> None:
        self._server.answer(self._serial, outcome)

    def begun(self) -> None:
        """Called when `begin` has returned: what is not released by now holds the next one up."""
        fence = self._waits = Fence()
        self._server.hold(fence)
        # Another thread may have released it before the fence was there.
        if self._released:
            self.release()

    def release(self) -> None:
        self._released = True
        fence = self._waits
        self._server.released(self._serial, fence)
        if fence is not None:
            fence.signal()


class BurstController:
    """The half at the client: slots for memory, serial numbers, and callbacks for answers."""

    def __init__(self, request_channel: Channel, result_channel: Channel) -> None:
        self._channel = request_channel
        self._slots: dict[int, int] = {}
        self._memories: dict[int, Memory] = {}
        self._free: list[int] = []
        self._waiting: dict[int, Callable[[Outcome], None]] = {}
        self._serial = 0
        self._lock = threading.Lock()
        self._context: BurstContext | None = None
        result_channel.listen(self._receive)

    def attach(self, context: BurstContext) -> None:
        """Take the context that the device returned."""
        self._context = context

    def encode(self, request: Request) -> bytes:
        """The arguments of a request on this burst; its pools get slots."""
        slots = tuple(self._slot(pool) for pool in request.pools)
        return _encoder.encode(Arguments(request.inputs, request.outputs, slots))

    def send(
        self,
        arguments: bytes,
        done: Callable[[Outcome], None],
        *,
        measure: bool = False,
        deadline_ns: int = NEVER_NS,
    ) -> int:
        """Send a request and return its serial number.

        `done` is called once with its outcome, perhaps before this returns.
        """
        self._serial = serial = self._serial + 1
        self._waiting[serial] = done
        try:
            self._channel.send(
                _encoder.encode(BurstRequest(serial, arguments, measure, deadline_ns))
            )
        except BaseException:
            self._waiting.pop(serial, None)
            raise
        return serial

    def cancel(self, serial: int) -> None:
        """Tell the device that nobody waits for a request; its answer comes all the same.

        Harmless once the burst is closed: that has cancelled everything.
        """
        with contextlib.suppress(BadState):
            self._channel.send(_encoder.encode(BurstCancel(serial)))

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """The memory behind each slot (the server's question)."""
        try:
            return tuple(self._memories[slot] for slot in slots)
        except KeyError as error:
            raise InvalidArgument(f"burst memory slot {error} is not in use") from None

    def free(self, memory: Memory) -> None:
        """Give a memory's slot back."""
        with self._lock:
            slot = self._slots.pop(id(memory), None)
            if slot is None:
                return
            del self._memories[slot]
            context = self._context
            if context is not None:
                context.free_memory(slot)
            self._free.append(slot)

    def close(self, error: NNError) -> None:
        """End the burst; what is still waiting gets the error."""
        # One by one, because another thread may be taking answers out at the same time.
        waiting = self._waiting
        while waiting:
            try:
                _, done = waiting.popitem()
            except KeyError:
                break
            done(error)
        context, self._context = self._context, None
        if context is not None:
            context.close()
        self._channel.close()
        with self._lock:
            self._slots.clear()
            self._memories.clear()

    def _slot(self, memory: Memory | int) -> int:
        if isinstance(memory, int):
            raise InvalidArgument("a burst cannot carry memory tokens")
        with self._lock:
            slot = self._slots.get(id(memory))
            if slot is None:
                slot = self._free.pop() if self._free else len(self._memories)
                self._slots[id(memory)] = slot
                self._memories[slot] = memory
            return slot

    def _receive(self, message: bytes) -> None:
        try:
            result = _results.decode(message)
        except _UNDECODABLE as error:
            self.close(GeneralFailure(f"the device sent a burst result that is none: {error}"))
            return
        done = self._waiting.pop(result.serial, None)
        if done is None:
            return
        if result.status:
            done(_error(result))
        elif result.time_in_driver_ns == NOT_AVAILABLE and not result.output_shapes:
            done(_PLAIN)
        else:
            timing = Timing(result.time_on_device_ns, result.time_in_driver_ns)
            done(ExecutionResult(result.output_shapes, timing))


def _error(result: BurstResult) -> NNError:
    if result.has_died:
        return DeviceDied(result.message)
    if result.status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return OutputInsufficientSize(result.message, result.output_shapes)
    try:
        return BY_STATUS[ErrorStatus(result.status)](result.message)
    except (ValueError, KeyError):
        return GeneralFailure(f"unknown status {result.status}: {result.message}")


_PLAIN = ExecutionResult()
