"""One call of a burst on its way, its memory, and the requests on that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from nnasync._core.clock import Alarm
from nnasync._core.execution.ports import Ports
from nnasync._core.execution.slots import IdleSlots, MemorySource, Piece, Slot, moved, own_memory
from nnasync._core.execution.stream_state import StreamState
from nnasync._core.wakeup import Waiter
from nnasync.burst import Outcome
from nnasync.hal import ExecutionConfig, Model, Priority, Request

__all__ = ["BurstSlot", "BurstSlots", "BurstStatistics", "BurstCall"]


class BurstStatistics(msgspec.Struct, frozen=True):
    """Counts of one burst; `in_flight` and `hot` are now."""

    submitted: int
    succeeded: int
    failed: int
    in_flight: int
    hot: bool


class BurstCall:
    """One call on its way."""

    __slots__ = (
        "alarm",
        "cancels",
        "config",
        "following",
        "given_up",
        "outcome",
        "requests",
        "sender",
        "slot",
        "waiter",
    )

    def __init__(
        self, slot: BurstSlot, requests: Sequence[Request], config: ExecutionConfig
    ) -> None:
        """`requests` has one for each side of the state."""
        self.slot = slot
        self.requests = requests
        self.config = config
        self.outcome: Outcome | None = None
        self.given_up = False
        self.sender = 0
        self.following: BurstCall | None = None
        self.waiter: Waiter | None = None
        self.alarm: Alarm | None = None
        self.cancels: list[Callable[[], object]] = []
        """How to end it on the device, and where it is repeated."""

    def answer(self, outcome: Outcome) -> None:
        """The first answer counts: a device may later finish a call that missed its deadline."""
        if self.outcome is None:
            self.outcome = outcome

    def cancel(self) -> None:
        """End it wherever it was sent."""
        for cancel in tuple(self.cancels):
            cancel()

    def settle(self, outcome: Outcome) -> None:
        """Answer it and wake its waiter."""
        self.answer(outcome)
        if self.alarm is not None:
            self.alarm.disarm()
        waiter = self.waiter
        if waiter is not None:
            waiter.wake()


class BurstSlot(Slot):
    """A slot whose requests read and write the state of a stream."""

    __slots__ = ("_state", "requests")

    def __init__(
        self,
        model: Model,
        ports: Ports,
        state: StreamState | None,
        memory: MemorySource = own_memory,
    ) -> None:
        super().__init__(model, ports, memory)
        self._state = state
        self.requests = self._made(())

    def requests_with(self, pieces: Sequence[tuple[int, Piece]]) -> Sequence[Request]:
        """A request for each side of the state, with these inputs and outputs elsewhere."""
        requests: Sequence[Request] = self._remembered(pieces) if pieces else self.requests
        return requests

    def _made(self, pieces: Sequence[tuple[int, Piece]]) -> Sequence[Request]:
        state = self._state
        if state is None:
            return [moved(self.request, pieces) if pieces else self.request]
        count = len(self.request.inputs)
        return [
            moved(self.request, [*pieces, *state.pieces(side, count)])
            for side in range(len(state.places))
        ]


class BurstSlots(IdleSlots[BurstSlot]):
    """The idle slots of a stream; `state` is set before the first is taken."""

    def __init__(
        self, model: Model, ports: Ports, state: StreamState | None, memory: MemorySource
    ) -> None:
        super().__init__(ports)
        self.state = state
        self._model = model
        self._memory = memory

    def _another(self, priority: Priority | None) -> BurstSlot:
        return BurstSlot(self._model, self._ports, self.state, self._memory)
