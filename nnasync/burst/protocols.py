"""The protocols between the two halves of a burst and the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from nnasync.burst.packets import BurstResult
from nnasync.errors import BadState, NNError
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig, ExecutionResult, Memory, Request

Outcome = ExecutionResult | NNError
"""How one execution of a burst ended."""


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
    """The callback of a server to its client (IBurstCallback)."""

    def get_memories(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """The memory behind each slot; raises InvalidArgument if one is unknown."""


@runtime_checkable
class GuardingCallback(BurstCallback, Protocol):
    """A client that is not trusted, as whose tokens only those of its own buffers count."""

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise InvalidArgument unless each stands for a buffer of this client."""


class BurstContext(Protocol):
    """The client's handle of a burst (IBurstContext)."""

    def free_memory(self, slot: int) -> None:
        """Drop the mapping of a slot; harmless if it is unknown."""

    def close(self) -> None:
        """End the burst."""


@runtime_checkable
class PromptBurstContext(BurstContext, Protocol):
    """The context of a device in another process, whose answer may come while the client polls."""

    def exchange(
        self, serial: int, arguments: bytes, config: ExecutionConfig
    ) -> BurstResult | None:
        """Send a request past the channel and look for its answer for a short while.

        None: the answer comes through the channel, perhaps before this returns. Raises what keeps
        the request from being sent.
        """


class Awaited(Protocol):
    """A request that was sent, and whose answer comes later."""

    def follow(self, done: Callable[[Outcome], None]) -> None:
        """Pass the outcome to `done` once, possibly at once."""

    def cancel(self) -> object:
        """Cancel it on the device; its answer still comes."""


class BurstLine(Protocol):
    """How a client's requests reach the device of its burst, wherever that is."""

    @property
    def is_hot(self) -> bool:
        """Returns whether the device is in its fast state for this burst."""

    @property
    def may_hang(self) -> bool:
        """Returns whether the device may give no answer, so that deadlines must be watched here."""

    def ask(self, request: Request, config: ExecutionConfig) -> Outcome | Awaited | None:
        """Have it executed at once where nothing is under way; None: it is to be sent.

        An error that is raised left the memory to the caller; one that is returned may not have.
        """

    def send(
        self, request: Request, config: ExecutionConfig, done: Callable[[Outcome], None]
    ) -> Callable[[], object]:
        """Send it, from any thread; returns how to cancel it on the device.

        `done` hears of the outcome once, perhaps before this returns. Raises what keeps it from
        being sent.
        """

    def free(self, memory: Memory) -> None:
        """Forget memory of requests; it lives on until the device lets go of it."""

    def close(self, error: NNError) -> None:
        """End the burst: what is under way is answered with the error."""


class PromptLine(BurstLine, Protocol):
    """One to a device of this process, which may run requests on the thread of their caller."""

    def is_free(self) -> bool:
        """Returns whether nothing is under way; counts as a call of the burst."""


class Begin(Protocol):
    """Begin an execution: the server's way to the device.

    `reply` is called exactly once with the outcome, `release` once after it, when the device has
    let go of the memory; both perhaps before `begin` returns. The execution waits for `behind`.
    Returns a way to cancel the execution, or None if it is over.
    """

    def __call__(
        self,
        request: Request,
        config: ExecutionConfig,
        *,
        behind: Fence | None,
        reply: Callable[[Outcome], None],
        release: Callable[[], None],
    ) -> Callable[[], object] | None:
        """Begin."""


class RunNow(Protocol):
    """Run a request on this thread, or return None where that is not the thing to do."""

    def __call__(self, request: Request, config: ExecutionConfig) -> ExecutionResult | None:
        """Run; raises what an execution raises."""
