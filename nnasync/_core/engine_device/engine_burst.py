"""Bursts on a device of this process.

Who has the prepared model in this process holds an `EngineBurst`, which takes requests as they are.
What comes over channels, as the HAL has it, is decoded by a `BurstServer`; its client holds an
`EngineBurstContext`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nnasync._core.engine_device.fast_state import FastState
from nnasync.errors import DeviceUnavailable, NNError
from nnasync.fences import Fence, merge
from nnasync.hal import ExecutionConfig, ExecutionResult, Memory, Request

if TYPE_CHECKING:
    from nnasync.burst import Begin, BurstServer, Outcome


class _RunNow(Protocol):
    def __call__(self, request: Request, config: ExecutionConfig) -> ExecutionResult | None: ...


class EngineBurst:
    """The client's way to a prepared model of an engine (`burst.PromptLine`).

    An execution begins only when the device has let go of all before it, also of those that were
    answered early, because their deadlines passed or they were cancelled.
    """

    may_hang = False

    def __init__(self, run_now: _RunNow, begin: Begin, fast_state: FastState) -> None:
        self._run_now = run_now
        self._begin = begin
        self._fast_state = fast_state
        self._held: set[_Execution] = set()
        self._lock = threading.Lock()
        self._closed = False
        fast_state.belongs_to(self)

    @property
    def is_hot(self) -> bool:
        """Returns whether the device is in its fast state for this burst."""
        return self._fast_state.is_hot

    def ask(self, request: Request, config: ExecutionConfig) -> ExecutionResult | None:
        """Run on this thread if nothing is under way and that is cheaper than a hop."""
        return self._run_now(request, config) if self.is_free() else None

    def is_free(self) -> bool:
        """Returns whether nothing is under way; counts as a call of the burst."""
        fast_state = self._fast_state
        fast_state.is_used = True
        if not fast_state.is_hot:
            fast_state.touch()
        return not (self._held or self._closed)

    def send(
        self, request: Request, config: ExecutionConfig, done: Callable[[Outcome], None]
    ) -> Callable[[], object]:
        """Begins an execution, from any thread; returns the function that cancels it.

        `done` hears of the outcome once, perhaps before this returns. Raises what keeps it from
        being begun.
        """
        execution = _Execution(self, done)
        result = self.ask(request, config)
        if result is not None:
            execution.reply(result)
            return execution.cancel
        self._fast_state.touch()
        behind = self._hold(execution)
        try:
            execution.cancel_task = self._begin(
                request, config, behind=behind, reply=execution.reply, release=execution.release
            )
        except BaseException:
            execution.release()
            raise
        if self._closed:
            execution.cancel()
        return execution.cancel

    def _hold(self, execution: _Execution) -> Fence | None:
        """Has later executions wait for this one; returns what it has to wait for itself."""
        with self._lock:
            if self._closed:
                raise DeviceUnavailable("the burst is closed")
            before = [each.released for each in self._held]
            self._held.add(execution)
        return merge(before) if len(before) > 1 else next(iter(before), None)

    def released(self, execution: _Execution) -> None:
        """Notes that the device has let go of the memory of an execution."""
        with self._lock:
            self._held.discard(execution)

    def free(self, memory: Memory) -> None:
        """Does nothing, since bindings live as long as their requests."""

    def close(self, error: NNError) -> None:
        """End the burst: what is under way is answered with the error."""
        self._closed = True
        with self._lock:
            held = tuple(self._held)
        for execution in held:
            execution.reply(error)
            execution.cancel()
        self._fast_state.leave()


class _Execution:
    """One execution, until it is answered and the device has let go of its memory."""

    __slots__ = ("_burst", "_done", "cancel_task", "released")

    def __init__(self, burst: EngineBurst, done: Callable[[Outcome], None]) -> None:
        self._burst = burst
        self._done = [done]
        self.cancel_task: Callable[[], object] | None = None
        self.released = Fence()

    def reply(self, outcome: Outcome) -> None:
        """Answers the execution; the first answer counts, on whichever thread."""
        try:
            done = self._done.pop()
        except IndexError:
            return
        done(outcome)

    def release(self) -> None:
        """Lets the next execution begin."""
        self._burst.released(self)
        self.released.signal()

    def cancel(self) -> None:
        """Cancels the execution, unless it is over."""
        if self.cancel_task is not None and not self.released.done:
            self.cancel_task()


class EngineBurstContext:
    """The client's end of a burst whose requests come over a channel (IBurstContext)."""

    def __init__(self, server: BurstServer, fast_state: FastState) -> None:
        self._server = server
        self._fast_state = fast_state
        fast_state.belongs_to(self)

    def free_memory(self, slot: int) -> None:
        """Let go of the memory of a slot."""
        self._server.free_memory(slot)

    def close(self) -> None:
        """End the burst, and leave the fast state."""
        self._server.close()
        self._fast_state.leave()
