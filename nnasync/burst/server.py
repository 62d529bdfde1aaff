"""The half of a burst at the device."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from nnasync.burst.packets import (
    MAX_MESSAGE_BYTES,
    UNDECODABLE,
    BurstCancel,
    BurstRequest,
    BurstResult,
    ResultEncoder,
    decode_arguments,
    decode_request,
    result_of,
)
from nnasync.burst.protocols import (
    Begin,
    BurstCallback,
    Channel,
    GuardingCallback,
    Outcome,
    RunNow,
)
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence, merge
from nnasync.hal import MAXIMUM_LOOP_TIMEOUT_NS, ExecutionConfig, Memory, Request

MAX_REMEMBERED_REQUESTS = 256
MAX_REMEMBERED_BYTES = 4 << 10
MAX_IN_FLIGHT = 1024


class BurstServer:
    """The half at the device: decodes, resolves slots, begins executions, answers."""

    def __init__(
        self,
        begin: Begin,
        callback: BurstCallback,
        result_channel: Channel,
        *,
        run_now: RunNow | None = None,
        used: Callable[[], object] = lambda: None,
        ordered: bool = True,
    ) -> None:
        """`run_now` is asked first where nothing stands before a request.

        `used` is called for each request that is carried out. Unless they are `ordered`, requests
        do not wait for one another.
        """
        self._ordered = ordered
        self._begin = begin
        self._run_now = run_now
        self._used = used
        self._callback = callback
        self._results = result_channel
        self._memories: dict[int, Memory] = {}
        self._known: OrderedDict[bytes, tuple[Request, tuple[int, ...]]] = OrderedDict()
        self._held: set[Fence] = set()
        self._cancels: dict[int, Callable[[], object]] = {}
        self._encoder = ResultEncoder()
        self._lock = threading.Lock()
        self._closed = False

    def receive(self, message: bytes) -> None:
        """Serve one request; every message gets one answer, also one that makes no sense."""
        serial = -1
        try:
            if len(message) > MAX_MESSAGE_BYTES:
                raise InvalidArgument(f"a burst request of {len(message)} bytes is too large")
            packet = decode_request(message)
            serial = packet.serial
            if packet.__class__ is BurstCancel:
                self._cancel(serial)
                return
            if len(self._held) >= MAX_IN_FLIGHT:
                raise ResourceExhaustedTransient(
                    f"{MAX_IN_FLIGHT} requests of this burst are in flight already"
                )
            known = self._known.get(packet.arguments)
            request = self._request(packet.arguments) if known is None else known[0]
            config = _config_of(packet)
            if self._run_now is not None and not (self._ordered and (self._held or self._cancels)):
                result = self._run_now(request, config)
                if result is not None:
                    self.answer(serial, result)
                    self._used()
                    return
            self._used()
            execution = _Execution(self, serial)
            cancel = self._begin(
                request,
                config,
                behind=self._behind(),
                reply=execution.reply,
                release=execution.release,
            )
            if cancel is not None:
                self._cancels[serial] = cancel
                execution.begun()
                if self._closed:
                    self._cancel(serial)  # It was closed meanwhile, before it knew of this one.
        except NNError as error:
            self.answer(serial, error)
        except UNDECODABLE as error:
            self.answer(serial, GeneralFailure(f"a burst request cannot be decoded: {error}"))
        except Exception as error:
            text = f"a burst request failed: {type(error).__name__}: {error}"
            self.answer(serial, GeneralFailure(text))

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot, and every request that was bound to it."""
        with self._lock:
            self._memories.pop(slot, None)
            known = self._known
            for key in [key for key, (_, slots) in known.items() if slot in slots]:
                del known[key]

    def close(self) -> None:
        """Drop every mapping; later requests are answered with DeviceUnavailable."""
        self._closed = True
        for serial in list(self._cancels):
            self._cancel(serial)
        # Another thread may be looking through them, or this one, where a finalizer closes.
        self._known, self._memories = OrderedDict(), {}

    def answer(self, serial: int, outcome: Outcome) -> None:
        """Send the answer to a request; a client that takes none ends its burst, nothing else."""
        packet = self._encoder.again(serial, outcome)
        if packet is None:
            packet = self._encoded(serial, outcome)
        try:
            self._results.send(packet)
        except NNError:
            self.close()

    def _encoded(self, serial: int, outcome: Outcome) -> bytes:
        if isinstance(outcome, NNError):
            result = result_of(serial, outcome)
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
        return self._encoder.first(result, outcome)

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
        """Returns a fence for all executions so far, even after one that failed."""
        if not (self._ordered and self._held):
            return None
        with self._lock:
            held = tuple(self._held)
        return merge(held) if len(held) > 1 else next(iter(held), None)

    def _cancel(self, serial: int) -> None:
        cancel = self._cancels.pop(serial, None)
        if cancel is not None:
            cancel()

    def _request(self, encoded: bytes) -> Request:
        if self._closed:
            raise DeviceUnavailable("the burst is closed")
        arguments = decode_arguments(encoded)
        known = self._memories  # Another thread may close the burst, which lets go of them.
        unknown = sorted({slot for slot in arguments.slots if slot >= 0 and slot not in known})
        if isinstance(self._callback, GuardingCallback):
            self._callback.check_tokens([-slot for slot in arguments.slots if slot < 0])
        memories = self._callback.get_memories(unknown) if unknown else ()
        with self._lock:
            known.update(zip(unknown, memories, strict=True))
            if any(slot >= 0 and slot not in known for slot in arguments.slots):
                raise InvalidArgument("the memory of a request was freed while it was sent")
            pools = tuple(known[slot] if slot >= 0 else -slot for slot in arguments.slots)
            if self._closed:
                raise DeviceUnavailable("the burst is closed")
            request = Request(arguments.inputs, arguments.outputs, pools)
            if len(encoded) <= MAX_REMEMBERED_BYTES:
                self._known[encoded] = (request, arguments.slots)
            if len(self._known) > MAX_REMEMBERED_REQUESTS:
                self._known.popitem(last=False)
        return request


def _config_of(packet: BurstRequest) -> ExecutionConfig:
    """Returns the configuration of a request; its loops end."""
    loop_timeout_ns = packet.loop_timeout_ns
    if not 0 <= loop_timeout_ns <= MAXIMUM_LOOP_TIMEOUT_NS:
        loop_timeout_ns = min(max(loop_timeout_ns, 0), MAXIMUM_LOOP_TIMEOUT_NS)
    return ExecutionConfig(
        packet.measure, packet.deadline_ns, loop_timeout_ns, None, packet.priority
    )


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
        """Called after `begin` has returned; memory not yet released delays the next request."""
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
