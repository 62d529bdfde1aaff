"""A burst on a device outside, each execution of which may fall back.

It stands between the client and the device and passes their messages on. Where the device answers
an execution with a failure of its own, or with none because it raises, the request goes to a burst
of the reference, which reads the same memory and answers under the same serial number. Requests
that come meanwhile are held back, so that executions keep their order. A device that cannot even
open a burst has the reference serve all of it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from nnasync import hal
from nnasync.burst import (
    Arguments,
    BurstCallback,
    BurstCancel,
    BurstContext,
    BurstRequest,
    BurstResult,
    Channel,
    LocalChannel,
)
from nnasync.device import PreparedModel
from nnasync.engine_device import EnginePreparedModel
from nnasync.errors import BY_STATUS, GeneralFailure, NNError
from nnasync.hal import ErrorStatus, Memory, Request
from nnasync.hal.decoders import msgpack_decoder
from nnasync.plans.guarded import Health, decided

__all__ = ["FallbackBurst", "shares_memory"]

_encoder = msgspec.msgpack.Encoder()
_arguments = msgpack_decoder(Arguments)
_requests = msgpack_decoder(BurstRequest | BurstCancel)
_results = msgpack_decoder(BurstResult)

_UNDECODABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_NOWHERE = Arguments((), (), ())


class _Model(Protocol):
    """What a burst needs of its prepared model (`outside.FallbackPreparedModel`)."""

    health: Health

    @property
    def prepared(self) -> PreparedModel: ...

    def reference(self) -> EnginePreparedModel: ...

    def failed(self, error: BaseException, request: Arguments | Request) -> NNError | None: ...

    def made_up(self, failure: NNError, error: Exception | None = None) -> None: ...


class FallbackBurst:
    """A burst (IBurstContext) of the device, and one of the reference once it is needed."""

    def __init__(self, model: _Model, callback: BurstCallback, result_channel: Channel) -> None:
        self._model = model
        self._callback = callback
        self._results = result_channel
        self._requests = LocalChannel()
        self._spare = LocalChannel()
        self._context: BurstContext | None = None
        self._reference: BurstContext | None = None
        self._sent: dict[int, BurstRequest] = {}
        self._handed_over: dict[int, NNError] = {}
        self._held: deque[BurstRequest] = deque()
        self._broken: NNError | None = None
        self._lock = threading.RLock()
        self._closed = False

    async def open(self, request_channel: Channel) -> None:
        """Open the burst of the device, and listen; raises what does not fall back."""
        try:
            self._context = await self._model.prepared.configure_execution_burst(
                self._callback, self._requests, _Answers(self._device_answered)
            )
        except Exception as error:
            self._broken = self._model.failed(error, _NOWHERE)
            if self._broken is None:
                raise
        request_channel.listen(self._receive)

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot on both."""
        for context in (self._context, self._reference):
            if context is not None:
                context.free_memory(slot)

    def close(self) -> None:
        """End the bursts of both."""
        self._closed = True
        self._sent.clear()
        self._held.clear()
        for context in (self._context, self._reference):
            if context is not None:
                context.close()
        self._requests.close()
        self._spare.close()

    # -- requests

    def _receive(self, message: bytes) -> None:
        try:
            packet = _requests.decode(message)
        except _UNDECODABLE:
            self._pass_on(message)
            return
        if isinstance(packet, BurstCancel):
            self._sent.pop(packet.serial, None)
            self._pass_on(message)
            if self._reference is not None:
                self._spare.send(message)
            return
        with self._lock:
            if self._handed_over:
                self._held.append(packet)
                return
        self._begin(packet)

    def _pass_on(self, message: bytes) -> None:
        if self._context is not None:
            self._requests.send(message)
        elif self._broken is not None:
            self._answer(-1, GeneralFailure("a burst request cannot be decoded"))

    def _begin(self, packet: BurstRequest) -> None:
        health = self._model.health
        if self._broken is not None or health.skips():
            self._hand_over(packet, self._broken or health.failure)
            return
        self._sent[packet.serial] = packet
        try:
            self._requests.send(_encoder.encode(packet))
        except Exception as error:
            if self._sent.pop(packet.serial, None) is None:
                return
            failure = self._failed(error, packet)
            if failure is None:
                raise
            self._hand_over(packet, failure)

    def _failed(self, error: Exception, packet: BurstRequest) -> NNError | None:
        """The failure for which to fall back, or None."""
        if self._closed:
            return None
        try:
            arguments = _arguments.decode(packet.arguments)
        except _UNDECODABLE:
            return None
        return self._model.failed(error, arguments)

    def _hand_over(self, packet: BurstRequest, failure: NNError) -> None:
        with self._lock:
            self._handed_over[packet.serial] = failure
        try:
            if self._reference is None:
                self._reference = self._model.reference().serve_burst(
                    self._callback, self._spare, _Answers(self._reference_answered)
                )
            self._spare.send(_encoder.encode(packet))
        except NNError as error:
            with self._lock:
                self._handed_over.pop(packet.serial, None)
            self._model.made_up(failure, error)
            self._answer(packet.serial, decided(failure, error))
            self._go_on()

    def _go_on(self) -> None:
        """Begin what was held back, until something is handed over again."""
        while True:
            with self._lock:
                if self._handed_over or not self._held:
                    return
                packet = self._held.popleft()
            try:
                self._begin(packet)
            except NNError as error:
                self._answer(packet.serial, error)

    # -- answers

    def _device_answered(self, message: bytes) -> None:
        try:
            result = _results.decode(message)
        except _UNDECODABLE:
            self._results.send(message)
            return
        if result.serial in self._handed_over:
            return
        packet = self._sent.pop(result.serial, None)
        health = self._model.health
        failure = None
        if packet is not None and result.status:
            failure = self._failed(_error(result), packet)
        elif packet is not None and health.suspects:
            health.succeeded()
        if packet is None or failure is None:
            self._results.send(message)
        else:
            self._hand_over(packet, failure)

    def _reference_answered(self, message: bytes) -> None:
        result = _results.decode(message)
        with self._lock:
            failure = self._handed_over.pop(result.serial, None)
        if failure is None:
            self._results.send(message)
        elif result.status:
            error = _error(result)
            self._model.made_up(failure, error)
            outcome = decided(failure, error)
            self._answer(result.serial, outcome, message if type(outcome) is type(error) else b"")
        else:
            self._model.made_up(failure)
            self._results.send(message)
        self._go_on()

    def _answer(self, serial: int, error: Exception, message: bytes = b"") -> None:
        status = error.status if isinstance(error, NNError) else ErrorStatus.GENERAL_FAILURE
        self._results.send(message or _encoder.encode(BurstResult(serial, status, str(error))))


class _Answers:
    """The result channel of one of the two bursts."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def send(self, message: bytes) -> None:
        """Have the answer judged."""
        self._take(message)

    def listen(self, receive: Callable[[bytes], None]) -> None:
        """Raises GeneralFailure: there is one listener, and it listens."""
        raise GeneralFailure("the answers of this burst are listened to already")

    def close(self) -> None:
        """Do nothing: the other burst may answer still."""


def _error(result: BurstResult) -> NNError:
    try:
        return BY_STATUS[ErrorStatus(result.status)](result.message)
    except (ValueError, KeyError):
        return GeneralFailure(f"unknown status {result.status}: {result.message}")


def shares_memory(request: Arguments | Request) -> bool:
    """Whether an input and an output of a request share memory."""
    pools: Sequence[Memory | int] = request.pools if isinstance(request, Request) else request.slots
    return hal.shares_memory(pools, request.inputs, request.outputs)
