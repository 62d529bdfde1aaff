"""A bare client of a burst: it sends bytes, hands out memory, and takes what it is answered."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import msgspec

from nnasync._core.validation import validate_request
from nnasync.burst import (
    BurstArguments,
    BurstCancel,
    BurstContext,
    BurstRequest,
    BurstResult,
    LocalChannel,
)
from nnasync.conformance.hal_suite.fixture import Ready
from nnasync.conformance.trial import Fault
from nnasync.errors import InvalidArgument
from nnasync.fences import Fence
from nnasync.hal import NOT_AVAILABLE, ErrorStatus, Memory, Model, Request

_FIRST_SLOT = 3
_SERIAL = 1_000
_encode = msgspec.msgpack.Encoder().encode
_messages = msgspec.msgpack.Decoder(BurstRequest | BurstCancel)
_arguments = msgspec.msgpack.Decoder(BurstArguments)
_results = msgspec.msgpack.Decoder(BurstResult)
_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Sense(enum.Enum):
    """What a message deserves: an error, any answer, no answer."""

    WRONG = "wrong"
    LEGAL = "legal"
    CANCEL = "cancel"


def message_of(request: Request, *, serial: int = _SERIAL, measure: bool = False) -> bytes:
    """A request as a message; its pools are in slots that follow one another."""
    slots = tuple(range(_FIRST_SLOT, _FIRST_SLOT + len(request.pools)))
    arguments = _encode(BurstArguments(request.inputs, request.outputs, slots))
    return _encode(BurstRequest(serial, arguments, measure))


def sense_of(message: bytes, model: Model, memories: dict[int, Memory]) -> Sense:
    """Returns what answer a message deserves, by the protocol and by what a legal request is."""
    try:
        packet = _messages.decode(message)
        if isinstance(packet, BurstCancel):
            return Sense.CANCEL
        arguments = _arguments.decode(packet.arguments)
        pools = tuple(memories[slot] for slot in arguments.slots)
        request = Request(arguments.inputs, arguments.outputs, pools)
        validate_request(model, request)
    except (*_UNDECODABLE, KeyError, InvalidArgument):
        return Sense.WRONG
    omitted = any(argument.has_no_value for argument in request.outputs)
    return Sense.WRONG if omitted else Sense.LEGAL


class Client:
    """One burst on a subject, from the side of its client; an async context manager."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.memories = {
            _FIRST_SLOT + number: pool
            for number, pool in enumerate(ready.request.pools)
            if not isinstance(pool, int)
        }
        self.asked: list[int] = []
        self.give: Callable[[Sequence[int]], tuple[Memory, ...]] = self._known
        self.requests = LocalChannel()
        self.results = LocalChannel()
        self.context: BurstContext | None = None
        self._answers: list[bytes] = []
        self._arrived = Fence()

    async def __aenter__(self) -> Client:
        self.results.listen(self._receive)
        self.context = await self.ready.prepared.configure_execution_burst(
            self, self.requests, self.results
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self.context is not None:
            self.context.close()

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """Returns the memories that the device asks for (IBurstCallback)."""
        self.asked.extend(slots)
        return self.give(slots)

    def free(self, slot: int) -> None:
        """Tell the device that a slot is used no more."""
        if self.context is not None:
            self.context.free_memory(slot)

    def sense_of(self, message: bytes) -> Sense:
        """Returns how a message deserves to be answered on this burst."""
        return sense_of(message, self.ready.case.model, self.memories)

    def send(self, message: bytes) -> None:
        """Send bytes; raises Fault if the message before was answered more than once."""
        if self._answers:
            raise Fault(f"{len(self._answers)} answers more than messages")
        self._arrived = Fence()
        self.requests.send(message)

    async def answer(self) -> BurstResult:
        """The answer to the message that was sent last."""
        if not self._answers:
            await self._arrived
        result: BurstResult = _results.decode(self._answers.pop(0))
        return result

    async def refused(self, message: bytes) -> BurstResult:
        """The answer to a message that is wrong; raises Fault unless that is a proper error."""
        self.send(message)
        answer = await self.answer()
        if answer.status == ErrorStatus.NONE:
            raise Fault("must be answered with an error, but is carried out")
        check_error(answer)
        return answer

    async def check_serves(self) -> BurstResult:
        """Send what is right, and raise Fault unless it is answered with the known outputs."""
        # A changed message may have been legal with its output where the inputs are.
        self.ready.buffers.restore()
        self.ready.buffers.clear()
        self.send(message_of(self.ready.request, serial=_SERIAL + 1))
        answer = await self.answer()
        if answer.status != ErrorStatus.NONE or answer.serial != _SERIAL + 1:
            raise Fault(f"the burst serves no more: {answer}")
        self.ready.check_outputs()
        return answer

    def _known(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        try:
            return tuple(self.memories[slot] for slot in slots)
        except KeyError as error:
            raise InvalidArgument(f"there is no memory in slot {error}") from None

    def _receive(self, answer: bytes) -> None:
        self._answers.append(answer)
        self._arrived.signal()


def check_error(answer: BurstResult) -> None:
    """Raise Fault for an error that tells more than it may."""
    try:
        status = ErrorStatus(answer.status)
    except ValueError:
        raise Fault(f"{answer.status} is no ErrorStatus") from None
    if answer.output_shapes and status != ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        raise Fault(f"output shapes are told with {status.name}")
    if (answer.time_on_device_ns, answer.time_in_driver_ns) != (NOT_AVAILABLE, NOT_AVAILABLE):
        raise Fault(f"a timing is told with {status.name}")
