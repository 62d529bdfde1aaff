"""What one client on another machine made in a service: as any client's, but values travel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nnasync._core.clock import now_ns
from nnasync._core.service.holdings import ANSWERED, Holdings, Work, handed_pools
from nnasync._core.service.served_memories import read_bytes
from nnasync._core.service.served_requests import ServedRequest, ServedRequests
from nnasync._core.wire.connection import Frame
from nnasync._core.wire.framing import Landing, ValueFrame
from nnasync._core.wire.messages import Answer, ClosePrepared, OfferModel, Prepare, decode, encode
from nnasync._core.wire.network_messages import (
    FromNetworkClient,
    ReadBuffer,
    Run,
    WriteBuffer,
    arrived,
    due_at,
)
from nnasync._core.wire.network_models import received_model
from nnasync.device import Buffer
from nnasync.errors import GeneralFailure, InvalidArgument, NNError
from nnasync.memory import Pool

SendValues = Callable[..., None]
"""Sends an answer with values: of the message, the values, the call, and what to do when gone."""


class Piles(Landing):
    """A landing that allocates memory for each of the values of a frame."""

    __slots__ = ("pools",)

    def __init__(self, message: Any, sizes: Sequence[int]) -> None:
        self.pools = [Pool.allocate(max(size, 1)) for size in sizes]
        views = [pool.view[:size] for pool, size in zip(self.pools, sizes, strict=True)]
        super().__init__(views, message=message)


class NetworkHoldings(Holdings):
    """Everything that one client over a network has at the service."""

    def __init__(self, *arguments: Any, send_values: SendValues) -> None:
        """`arguments` are those of `Holdings`."""
        super().__init__(*arguments, trusts=False)
        self._send_values = send_values
        self._requests = ServedRequests(self._usage)
        for local in tuple(self._answers):
            if local.__name__ in _LOCAL:
                del self._answers[local]
        self._answers.update(
            {
                Run: self._run,
                WriteBuffer: self._write_buffer,
                ReadBuffer: self._read_buffer,
            }
        )

    def place(self, message: bytes, sizes: Sequence[int]) -> Landing:
        """Returns where the values of a message go; an error where they are not wanted."""
        try:
            said = decode(message, FromNetworkClient)
            if isinstance(said, Run):
                served = self._requests.take(said, self._prepared_model(said.prepared))
                served.message = said
                return self._sized(served, sizes)
            if isinstance(said, OfferModel):
                wanted = [form.size for form in handed_pools(said)]
                self._limits.check("models", len(self._models))
            elif isinstance(said, WriteBuffer):
                wanted = list(sizes) if len(sizes) == 1 else [-1]
            else:
                raise InvalidArgument(f"{type(said).__name__} is no message with values")
            if list(sizes) != wanted:
                raise InvalidArgument(f"values of {list(sizes)} bytes came, not of {wanted}")
            self._limits.check_bytes(self._usage.bytes, sum(sizes))
            return Piles(said, sizes)
        except NNError as error:
            return Landing(error=error)

    async def close(self) -> None:
        """Closes and frees all of it."""
        await super().close()
        self._requests.close()

    def _sized(self, served: ServedRequest, sizes: Sequence[int]) -> Landing:
        wanted = [view.nbytes for view in served.views]
        if list(sizes) == wanted:
            return served
        served.drop()
        raise InvalidArgument(f"values of {list(sizes)} bytes came, not of {wanted}")

    # -- what travels in another way

    def _offer_model(self, message: OfferModel, frame: Frame) -> Work:
        landing = _landing(frame)
        pools = landing.pools if isinstance(landing, Piles) else []
        if len(pools) != len(handed_pools(message)):
            raise InvalidArgument(f"{len(pools)} values came with a model")
        size = sum(pool.size for pool in pools) + read_bytes(len(message.form))
        return self._model_read(message, size, functools.partial(received_model, message, pools))

    def _prepare(self, message: Prepare, frame: Frame) -> Work:
        if message.model_files or message.data_files:
            raise InvalidArgument("cache files do not travel over a network")
        due_ns = due_at(message.deadline_ns, now_ns())
        return super()._prepare(msgspec.structs.replace(message, deadline_ns=due_ns), frame)

    def _close_prepared(self, message: ClosePrepared, frame: Frame) -> Work:
        self._requests.forget(message.prepared)
        return super()._close_prepared(message, frame)

    # -- executions

    def _run(self, message: Run, frame: Frame) -> Work:
        served = _landing(frame)
        if not isinstance(served, ServedRequest):
            # Without inputs in its memory, a request has no values.
            served = self._requests.take(message, self._prepared_model(message.prepared))
            self._sized(served, ())
        try:
            self._check_tokens(served.request.pools[1:])  # type: ignore[arg-type]  # All tokens.
            config = self._limits.bounded(arrived(message.config, now_ns()))
        except BaseException:
            served.drop()
            raise
        return functools.partial(self._executed, message.call, served, config)

    async def _executed(self, call: int, served: ServedRequest, config: Any) -> object:
        try:
            result = await served.prepared.execute_synchronously(served.request, config)
        except BaseException:
            self._requests.drop(served)
            raise
        answer = Answer(call, encode(result))
        self._send_values(answer, served.outputs, call, lambda: self._rest(served))
        return ANSWERED

    def _rest(self, served: ServedRequest) -> None:
        """Keeps a request for the next execution, if there can be one; from any thread."""
        if served.key[0] in self._prepared:
            self._requests.give(served)
        else:
            self._requests.drop(served)

    # -- buffers

    def _write_buffer(self, message: WriteBuffer, frame: Frame) -> Work:
        buffer, landing = self._buffer(message.buffer), _landing(frame)
        if not isinstance(landing, Piles):
            raise InvalidArgument("a buffer is written with a value, and none came")
        (pool,) = landing.pools

        self._usage.take(pool.size, 1)

        async def work() -> None:
            try:
                await buffer.copy_from(pool, message.dimensions)
            finally:
                self._usage.give(pool.size, 1)

        return work

    def _read_buffer(self, message: ReadBuffer, _frame: Frame) -> Work:
        buffer = self._buffer(message.buffer)
        if message.size < 1:
            raise InvalidArgument(f"{message.size} bytes of a buffer cannot be read")
        self._usage.take(message.size, 1)

        async def work() -> object:
            try:
                pool = Pool.allocate(message.size)
                await buffer.copy_to(pool)
                answer = Answer(message.call, b"")
                self._send_values(answer, [pool.view[: message.size]], message.call, pool.close)
            finally:
                self._usage.give(message.size, 1)
            return ANSWERED

        return work

    def _buffer(self, number: int) -> Buffer:
        buffer = self._buffers.get(number)
        if buffer is None:
            raise InvalidArgument(f"buffer {number} is not known to the service")
        return buffer


_LOCAL = frozenset(("PrepareFromCache", "Launch", "LaunchInfo", "OpenBurst", "CopyBuffer", "Trace"))
"""Messages that need descriptors, or one clock."""


def _landing(frame: Frame) -> Landing:
    """Returns where the values of a frame are; raises why they were not taken."""
    if not isinstance(frame, ValueFrame):
        raise GeneralFailure("a frame without values came over a network")
    return frame.take_landing()
