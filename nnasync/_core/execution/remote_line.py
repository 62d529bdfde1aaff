"""The line of a burst to a device that takes messages, such as one in another process."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

from nnasync._core.clock import now_ns
from nnasync._core.workers.turns import Turn
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.device import PreparedModel
from nnasync.errors import NNError
from nnasync.hal import ExecutionConfig, Memory, Request


class RemoteLine:
    """Requests as messages (`burst.BurstLine`); each of them is encoded once while it lives."""

    is_hot = True
    may_hang = False
    """Set where the device is in another process, which answers promptly as a rule."""

    def __init__(self, turn: Turn) -> None:
        """Looking for answers on the loop's thread counts as inline work of its `turn`."""
        self._channels = LocalChannel(), LocalChannel()
        self._controller = BurstController(*self._channels)
        self._encoded: dict[int, tuple[weakref.ref[Request], bytes]] = {}
        self._turn = turn

    async def open(self, prepared: PreparedModel) -> None:
        """Begin the burst on its device; raises what keeps the device from that."""
        controller = self._controller
        controller.attach(await prepared.configure_execution_burst(controller, *self._channels))
        self.may_hang = controller.is_prompt

    def ask(self, request: Request, config: ExecutionConfig) -> Outcome | _Awaited | None:
        """Send it, and look for the answer for a moment, where that may be worth it."""
        if not self.may_hang:
            return None
        controller, began_ns = self._controller, now_ns()
        try:
            answer = controller.ask(self._arguments(request), config)
        except NNError as error:
            return error
        self._turn.spend(now_ns() - began_ns)
        return _Awaited(controller, answer) if isinstance(answer, int) else answer

    def send(
        self, request: Request, config: ExecutionConfig, done: Callable[[Outcome], None]
    ) -> Callable[[], object]:
        """Send it, from any thread; returns how to cancel it on the device."""
        serial = self._controller.send(self._arguments(request), done, config)
        return functools.partial(self._controller.cancel, serial)

    def free(self, memory: Memory) -> None:
        """Give the slot of memory back."""
        self._controller.free(memory)

    def close(self, error: NNError) -> None:
        """End the burst: what is under way is answered with the error."""
        self._controller.close(error)

    def _arguments(self, request: Request) -> bytes:
        key, known = id(request), self._encoded
        found = known.get(key)
        if found is None:
            reference = weakref.ref(request, lambda _: known.pop(key, None))
            found = known[key] = (reference, self._controller.encode(request))
        return found[1]


class _Awaited:
    """A request whose answer did not come while it was looked for."""

    __slots__ = ("_controller", "_serial")

    def __init__(self, controller: BurstController, serial: int) -> None:
        self._controller = controller
        self._serial = serial

    def follow(self, done: Callable[[Outcome], None]) -> None:
        """Pass the outcome to `done` once, possibly at once."""
        self._controller.follow(self._serial, done)

    def cancel(self) -> None:
        """Cancel it on the device; its answer still comes."""
        self._controller.cancel(self._serial)
