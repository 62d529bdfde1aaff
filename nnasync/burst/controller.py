"""The half of a burst at the client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from nnasync.burst.packets import (
    KINDS,
    UNDECODABLE,
    BurstArguments,
    BurstCancel,
    BurstResult,
    decode_result,
    encode,
    request_of,
)
from nnasync.burst.protocols import BurstContext, Channel, Outcome, PromptBurstContext
from nnasync.errors import (
    BY_STATUS,
    REASONS,
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    NNError,
    OutputInsufficientSize,
    because,
)
from nnasync.hal import (
    DEFAULT_CONFIG,
    NOT_AVAILABLE,
    ErrorStatus,
    ExecutionConfig,
    ExecutionResult,
    Memory,
    Request,
    Timing,
)

LARGEST_TOKEN = 2**63 - 1
_ANSWERED = object()


class BurstController:
    """The half at the client: slots for memory, serial numbers, and callbacks for answers."""

    def __init__(self, request_channel: Channel, result_channel: Channel) -> None:
        self._channel = request_channel
        self._slots: dict[int, int] = {}
        self._memories: dict[int, Memory] = {}
        self._free: list[int] = []
        self._waiting: dict[int, Callable[[Outcome], None] | None] = {}
        self._early: dict[int, Outcome] = {}
        self._serial = 0
        self._lock = threading.Lock()
        self._context: BurstContext | None = None
        self._prompt: PromptBurstContext | None = None
        self._last: tuple[BurstResult | None, Outcome] = (None, _PLAIN)
        self._is_over = False
        result_channel.listen(self._receive)

    def attach(self, context: BurstContext) -> None:
        """Take the context that the device returned."""
        self._context = context
        self._prompt = context if isinstance(context, PromptBurstContext) else None

    @property
    def is_prompt(self) -> bool:
        """Returns whether `ask` may have an answer at once."""
        return self._prompt is not None

    def encode(self, request: Request) -> bytes:
        """The arguments of a request on this burst; its pools get slots."""
        slots = tuple(self._slot(pool) for pool in request.pools)
        return encode(BurstArguments(request.inputs, request.outputs, slots))

    def send(
        self,
        arguments: bytes,
        done: Callable[[Outcome], None],
        config: ExecutionConfig = DEFAULT_CONFIG,
    ) -> int:
        """Send a request and return its serial number.

        `done` is called once with its outcome, perhaps before this returns.
        """
        self._serial = serial = self._serial + 1
        self._waiting[serial] = done
        try:
            self._check_open()
            self._channel.send(encode(request_of(serial, arguments, config)))
        except BaseException:
            # The end of the burst, or of the device, may have answered it already.
            if self._waiting.pop(serial, None) is not None:
                raise
        return serial

    def ask(self, arguments: bytes, config: ExecutionConfig = DEFAULT_CONFIG) -> Outcome | int:
        """Send a request; the outcome of a prompt device, or a serial number for `follow`."""
        prompt, result = self._prompt, None
        self._serial = serial = self._serial + 1
        self._waiting[serial] = None
        try:
            self._check_open()
            if prompt is not None:
                result = prompt.exchange(serial, arguments, config)
            else:
                self._channel.send(encode(request_of(serial, arguments, config)))
        except BaseException:
            with self._lock:
                self._waiting.pop(serial, None)
                self._early.pop(serial, None)
            raise
        if result is None:
            return serial
        if self._waiting.pop(serial, _ANSWERED) is _ANSWERED:
            # The end of the burst, or of the device, answered it as well.
            with self._lock:
                self._early.pop(serial, None)
        last, outcome = self._last
        if result is not last:
            outcome = _outcome(result)
            self._last = (result, outcome)
        return outcome

    def follow(self, serial: int, done: Callable[[Outcome], None]) -> None:
        """Pass the outcome of the request to `done`, possibly at once."""
        with self._lock:
            early = self._early.pop(serial, None)
            if early is None:
                self._waiting[serial] = done
                return
        done(early)

    def cancel(self, serial: int) -> None:
        """Cancel a request on the device; its answer still comes.

        Harmless where the device cannot hear it: its end, or that of the burst, has answered
        everything.
        """
        with contextlib.suppress(NNError):
            self._channel.send(encode(BurstCancel(serial)))

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """The memory behind each slot (the server's question)."""
        try:
            return tuple(self._memories[slot] for slot in slots)
        except KeyError as error:
            if self._is_over:
                raise DeviceUnavailable("the burst is closed") from None
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
        """End the burst; waiting requests fail with the error."""
        self._is_over = True
        # One by one, because another thread may be taking answers out at the same time.
        waiting = self._waiting
        while waiting:
            with self._lock:
                try:
                    serial, done = waiting.popitem()
                except KeyError:
                    break
                if done is None:
                    self._early[serial] = error
            if done is not None:
                done(error)
        context, self._context = self._context, None
        if context is not None:
            context.close()
        self._channel.close()
        with self._lock:
            self._slots.clear()
            self._memories.clear()

    def _check_open(self) -> None:
        """Raise BadState once closed: to be asked when a request waits, as nobody looks for it."""
        if self._is_over:
            raise BadState("the burst is closed")

    def _slot(self, memory: Memory | int) -> int:
        if isinstance(memory, int):
            if not 0 < memory <= LARGEST_TOKEN:
                raise InvalidArgument(f"{memory} is no memory token; tokens are above 0")
            return -memory
        with self._lock:
            slot = self._slots.get(id(memory))
            if slot is None:
                slot = self._free.pop() if self._free else len(self._memories)
                self._slots[id(memory)] = slot
                self._memories[slot] = memory
            return slot

    def _receive(self, message: bytes) -> None:
        try:
            result = decode_result(message)
        except UNDECODABLE as error:
            self.close(GeneralFailure(f"the device sent a burst result that is none: {error}"))
            return
        serial = result.serial
        with self._lock:
            if serial not in self._waiting:
                return
            done = self._waiting.pop(serial)
            if done is None:
                self._early[serial] = _outcome(result)
                return
        done(_outcome(result))


def _outcome(result: BurstResult) -> Outcome:
    if result.status:
        return _error(result)
    if result.time_in_driver_ns == NOT_AVAILABLE and not result.output_shapes:
        return _PLAIN
    timing = Timing(result.time_on_device_ns, result.time_in_driver_ns)
    return ExecutionResult(result.output_shapes, timing)


def _error(result: BurstResult) -> NNError:
    error = _kind_of_error(result)
    return because(result.reason, error) if result.reason in REASONS else error


def _kind_of_error(result: BurstResult) -> NNError:
    if result.kind in KINDS:
        return KINDS[result.kind](result.message)
    if result.status == ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return OutputInsufficientSize(result.message, result.output_shapes)
    try:
        return BY_STATUS[ErrorStatus(result.status)](result.message)
    except (ValueError, KeyError):
        return GeneralFailure(f"unknown status {result.status}: {result.message}")


_PLAIN = ExecutionResult()
