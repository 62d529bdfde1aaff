"""Bursts on devices of older HAL versions.

A device of HAL 1.2 may serve bursts of its own, over which requests come without deadlines. For any
other device the executions are served one by one. Either way the client speaks to our server, which
answers at deadlines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nnasync._core.clock import Watchdog
from nnasync._core.versions.errands import PendingResult
from nnasync.burst import (
    Begin,
    BurstCallback,
    BurstContext,
    BurstController,
    BurstServer,
    Channel,
    LocalChannel,
    Outcome,
)
from nnasync.errors import DeviceUnavailable, NNError
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig, ExecutionResult, Memory, Request

__all__ = ["OwnBurst", "VersionedBurst", "follow"]


class _Checked(Protocol):
    """Checks a request and what the device says to it; raises and returns typed errors."""

    def check(self, request: Request) -> None:
        """Raise the error for a request that the device must not get."""

    def outcome(self, request: Request, outcome: Outcome, *, measure: bool) -> Outcome:
        """What the device says, as HAL 1.3 has it."""


def follow(
    answer: PendingResult[ExecutionResult],
    behind: Fence | None,
    begin: Callable[[], None],
    reply: Callable[[Outcome], None],
    release: Callable[[], None],
) -> Callable[[], None]:
    """Begin behind a fence, even one that failed, and tell a burst; returns how to cancel it."""

    def settled(fence: Fence) -> None:
        error = fence.error
        reply(error if isinstance(error, NNError) else answer.result)

    answer.fence.add_callback(settled)
    answer.released.add_callback(lambda _: release())
    if behind is None:
        begin()
    else:
        behind.add_callback(lambda _: begin())
    return answer.cancel


class VersionedBurst:
    """A burst whose requests are executed one by one (IBurstContext)."""

    def __init__(
        self, begin: Begin, callback: BurstCallback, request_channel: Channel, results: Channel
    ) -> None:
        self._server = BurstServer(begin, callback, results)
        request_channel.listen(self._server.receive)

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot."""
        self._server.free_memory(slot)

    def close(self) -> None:
        """End the burst."""
        self._server.close()


class OwnBurst:
    """A burst that hands its requests on to the device's own (IBurstContext)."""

    def __init__(
        self,
        who: str,
        checked: _Checked,
        watchdog: Watchdog,
        callback: BurstCallback,
        request_channel: Channel,
        results: Channel,
    ) -> None:
        self._who = who
        self._checked = checked
        self._watchdog = watchdog
        self._callback = callback
        self._request_channel = request_channel
        self._server = BurstServer(self._begin, self, results)
        self._memories: dict[int, Memory] = {}
        self._lock = threading.Lock()
        self._requests, self._results = LocalChannel(), LocalChannel()
        self._device = BurstController(self._requests, self._results)

    async def open(self, prepared: Any) -> None:
        """Have the device serve; raises what it raises."""
        context: BurstContext = await prepared.configure_execution_burst(
            self._device, self._requests, self._results
        )
        self._device.attach(context)
        self._request_channel.listen(self._server.receive)

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """The memory behind each slot of the client, remembered for when a slot is freed."""
        memories = self._callback.get_memories(slots)
        with self._lock:
            self._memories.update(zip(slots, memories, strict=True))
        return memories

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot, here and at the device."""
        self._server.free_memory(slot)
        with self._lock:
            memory = self._memories.pop(slot, None)
        if memory is not None:
            self._device.free(memory)

    def close(self) -> None:
        """End the burst."""
        self._server.close()
        self._device.close(DeviceUnavailable(f"{self._who}: the burst was closed"))

    def _begin(
        self,
        request: Request,
        config: ExecutionConfig,
        *,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], None]:
        self._checked.check(request)
        answer: PendingResult[ExecutionResult] = _Sent(
            self._who, config.deadline_ns, self._watchdog
        )

        def done(outcome: Outcome) -> None:
            told = self._checked.outcome(request, outcome, measure=config.measure)
            if isinstance(told, NNError):
                answer.fail(told)
            else:
                answer.succeed(told)
            answer.release()

        def begin() -> None:
            if answer.fence.done:
                answer.release()
                return
            answer.has_begun = True
            try:
                arguments = self._device.encode(request)
                serial = self._device.send(arguments, done, ExecutionConfig(measure=config.measure))
            except NNError as error:
                done(error)
                return
            if isinstance(answer, _Sent):
                answer.sent(lambda: self._device.cancel(serial))

        return follow(answer, behind, begin, reply, release)


class _Sent(PendingResult[ExecutionResult]):
    """The answer to a request that goes over the device's burst."""

    _take_back: Callable[[], None] | None = None
    _is_stopped = False

    def sent(self, take_back: Callable[[], None]) -> None:
        """Note how the request is taken back."""
        self._take_back = take_back
        if self._is_stopped:
            take_back()

    def stop(self) -> None:
        """Take the request back, if it was sent."""
        self._is_stopped = True
        if self._take_back is not None:
            self._take_back()
