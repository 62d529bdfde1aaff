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
    """Sends requests as messages, as a `burst.BurstLine`; each is encoded once while it lives."""

    is_hot = True
    may_hang = False
    """Set where the device is in another process, which answers promptly as a rule."""

    def __init__(self, turn: Turn) -> None:
        """Takes the `turn` of the loop: looking for answers on its thread counts as inline work."""
        self._channels = LocalChannel(), LocalChannel()
        self._controller = BurstController(*self._channels)
        self._encoded: dict[int, tuple[weakref.ref[Request], bytes]] = {}
        self._turn = turn

    async def open(self, prepared: PreparedModel) -> None:
        """Begins the burst on its device; raises what keeps the device from that."""
        controller = self._controller
        controller.attach(await prepared.configure_execution_burst(controller, *self._channels))
        self.may_hang = controller.is_prompt

    def ask(self, request: Request, config: ExecutionConfig) -> Outcome | _Awaited | None:
        """Sends a request, and looks for its answer for a moment where that may be worth it."""
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
        """Sends a request from any thread; returns the function that cancels it on the device."""
        serial = self._controller.send(self._arguments(request), done, config)
        return functools.partial(self._controller.cancel, serial)

    def free(self, memory: Memory) -> None:
        """Tells the device that the memory of a slot is no longer used."""
        self._controller.free(memory)

    def close(self, error: NNError) -> None:
        """Ends the burst: what is under way is answered with the error."""
        self._controller.close(error)

    def _arguments(self, request: Request) -> bytes:
        key, known = id(request), self._encoded
        found = known.get(key)
        if found is None:
            reference = weakref.ref(request, lambda _: known.pop(key, None))
            found = known[key] = (reference, self._controller.encode(request))
        return found[1]


class _Awaited:
    """Stands for a request whose answer did not come while it was looked for."""

    __slots__ = ("_controller", "_serial")

    def __init__(self, controller: BurstController, serial: int) -> None:
        self._controller = controller
        self._serial = serial

    def follow(self, done: Callable[[Outcome], None]) -> None:
        """Passes the outcome to `done` once, possibly at once."""
        self._controller.follow(self._serial, done)

    def cancel(self) -> None:
        """Cancels the request on the device, which still answers it."""
        self._controller.cancel(self._serial)
