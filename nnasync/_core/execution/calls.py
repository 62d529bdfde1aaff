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

__all__ = ["BurstSlot", "BurstSlots", "BurstStatistics", "BurstCall", "Ways"]


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
        "cancel",
        "config",
        "following",
        "given_up",
        "outcome",
        "sender",
        "serial",
        "slot",
        "waiter",
        "ways",
    )

    def __init__(self, slot: BurstSlot, ways: Ways, config: ExecutionConfig) -> None:
        self.slot = slot
        self.ways = ways
        self.config = config
        self.outcome: Outcome | None = None
        self.given_up = False
        self.serial = 0
        self.sender = 0
        self.following: BurstCall | None = None
        self.waiter: Waiter | None = None
        self.alarm: Alarm | None = None
        self.cancel: Callable[[], object] | None = None
        """How to end it where it is repeated."""

    def answer(self, outcome: Outcome) -> None:
        """The first answer counts: a device may later finish a call that missed its deadline."""
        if self.outcome is None:
            self.outcome = outcome

    def settle(self, outcome: Outcome) -> None:
        """Answer it and wake its waiter."""
        self.answer(outcome)
        if self.alarm is not None:
            self.alarm.disarm()
        waiter = self.waiter
        if waiter is not None:
            waiter.wake()


class Ways:
    """Requests that differ in the side of the state that they read, and how they are encoded."""

    __slots__ = ("encoded", "requests")

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self.encoded: list[bytes | None] = [None] * len(requests)


class BurstSlot(Slot):
    """A slot whose requests read and write the state of a stream."""

    __slots__ = ("_state", "ways")

    def __init__(
        self,
        model: Model,
        ports: Ports,
        state: StreamState | None,
        memory: MemorySource = own_memory,
    ) -> None:
        super().__init__(model, ports, memory)
        self._state = state
        self.ways = self._made(())

    def ways_with(self, pieces: Sequence[tuple[int, Piece]]) -> Ways:
        """Requests with these inputs and outputs elsewhere."""
        ways: Ways = self._remembered(pieces) if pieces else self.ways
        return ways

    def _made(self, pieces: Sequence[tuple[int, Piece]]) -> Ways:
        state = self._state
        if state is None:
            return Ways([moved(self.request, pieces) if pieces else self.request])
        count = len(self.request.inputs)
        return Ways(
            [
                moved(self.request, [*pieces, *state.pieces(side, count)])
                for side in range(len(state.places))
            ]
        )


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
