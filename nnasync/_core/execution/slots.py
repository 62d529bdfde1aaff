"""Memory for executions: one slot holds the inputs and outputs of one execution in flight.

A slot is one pool with every input and output of the model, and the request that names them. Slots
are recycled, the last one used first, so a steady stream of calls touches the same memory and the
same request object, which the device has bound already.

A slot whose execution failed or was given up is not recycled at once: the device may still write to
it. A device of this process says when it has let go, and then the slot is used again: where there
is too much work many calls end early, and each of them must not cost more than one that succeeds.
The slot of any other device is dropped, and its memory lives on for as long as the device holds it.

A device of this process needs no descriptor, so the slots of its networks are private memory, of
which there may be thousands. For a device in another process they are pieces of few shared pools,
which that process alone gets. Where outputs in a slot turn out to be inputs of a network in yet
another process, they are copied (`execution.placing`), and the next few slots of the network that
gave them have pools of their own, which anybody may be given.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from nnasync._core.execution.ports import Port, Ports
from nnasync.fences import Fence
from nnasync.hal import (
    Array,
    DataLocation,
    Memory,
    Model,
    Priority,
    Request,
    RequestArgument,
    byte_size,
)
from nnasync.memory import Pool, Region, SharedArena, layout

_REMEMBERED_REQUESTS = 16
_KEPT_SLOTS = 4
_LOOKED_AT = 4
"""Of so many slots that were given up, one that is free is looked for before another is made."""

_OWN_POOLS = 16
"""Slots of a network that have pools of their own: a chain through other processes is no longer."""

_LARGE_BYTES = 32_768
"""An input from this size on is read where it is, if it can be: a copy of it costs microseconds."""

ANY_PROCESS: Final = object()
"""As the peer of a slot: its memory may be handed to any process."""

_NEVER: Final = object()

MemorySource: TypeAlias = Callable[[int], tuple[Pool, int]]
"""Allocates this many zeroed bytes: a pool, and the offset in it."""


def own_memory(nbytes: int) -> tuple[Pool, int]:
    """Shared memory with a pool of its own; raises ResourceExhaustedTransient."""
    return Pool.allocate(nbytes), 0


def private_memory(nbytes: int) -> tuple[Pool, int]:
    """Memory of this process alone; raises ResourceExhaustedTransient."""
    return Pool.private(nbytes), 0


class Piece(Protocol):
    """A whole input or output outside of slots: a part of a pool, or a buffer with length 0."""

    @property
    def pool(self) -> Memory | int:
        """Returns the pool, or the token of the buffer."""

    @property
    def offset(self) -> int:
        """Returns where the piece begins in its pool, in bytes."""

    @property
    def length(self) -> int:
        """Returns the size of the piece in bytes."""


class Slot:
    """Memory of one execution; states are read as zeros, and their new values are discarded."""

    __slots__ = (
        "__weakref__",
        "_requests",
        "era",
        "inputs",
        "locations",
        "outputs",
        "peer",
        "pool",
        "request",
    )

    def __init__(
        self,
        model: Model,
        ports: Ports,
        memory: MemorySource = own_memory,
        *,
        peer: object = ANY_PROCESS,
    ) -> None:
        """`peer` is the device that may receive the memory; None means no other process may."""
        self.peer = peer
        self.era: object = None
        operands = model.main.operands
        indexes = model.main.input_indexes + model.main.output_indexes
        sizes = [byte_size(operands[i].type, operands[i].dimensions) for i in indexes]
        offsets, total = layout(sizes)
        self.pool, begin = memory(max(total, 1))
        offsets = [begin + offset for offset in offsets]
        self.locations = [
            DataLocation(0, offset, size) for offset, size in zip(offsets, sizes, strict=True)
        ]
        arguments = [RequestArgument(location=location) for location in self.locations]
        count = len(model.main.input_indexes)
        self.inputs = [self._array(port, offsets[port.position]) for port in ports.inputs]
        self.outputs = [self._array(port, offsets[count + port.position]) for port in ports.outputs]
        self.request = Request(tuple(arguments[:count]), tuple(arguments[count:]), (self.pool,))
        self._requests: dict[tuple[int, ...], Any] = {}
        for port in ports.state_inputs:
            self._array(port, offsets[port.position]).fill(port.zero)

    def _array(self, port: Port, offset: int) -> Array:
        return self.pool.array(port.dtype, port.shape, offset)

    def read(self, out: Sequence[Any] | None) -> Any:
        """Returns the outputs as fresh arrays or in `out`; a tuple if there are several.

        Buffers in `out` were written in place, and are told the shape.
        """
        outputs = self.outputs
        if out is not None:
            if len(outputs) == 1:
                return taken(out[0], outputs[0])
            return tuple(taken(*each) for each in zip(out, outputs, strict=True))
        if len(outputs) == 1:
            return outputs[0].copy()
        return tuple(output.copy() for output in outputs)

    def request_with(self, pieces: Sequence[tuple[int, Piece]]) -> Request:
        """Returns the request that has these inputs and outputs elsewhere, by position.

        Positions count through the inputs, then through the outputs.
        """
        request: Request = self._remembered(pieces) if pieces else self.request
        return request

    def _remembered(self, pieces: Sequence[tuple[int, Piece]]) -> Any:
        """Returns what was made for these pieces before; it keeps their pools and tokens."""
        numbers: list[int] = []
        for at, piece in pieces:
            numbers += (at, id(piece.pool), piece.offset, piece.length)
        key = tuple(numbers)
        found = self._requests.get(key)
        if found is None:
            found = self._made(pieces)
            if len(self._requests) >= _REMEMBERED_REQUESTS:
                self._requests.clear()
            self._requests[key] = found
        return found

    def _made(self, pieces: Sequence[tuple[int, Piece]]) -> Any:
        return moved(self.request, pieces)


def taken(target: Any, source: Array) -> Any:
    """Returns an output as a fresh array or in `target`; a buffer has it, and is told the shape."""
    if target is None:
        return source.copy()
    if isinstance(target, np.ndarray):
        target[...] = source
    else:
        target.written(source.shape)
    return target


def moved(request: Request, pieces: Sequence[tuple[int, Piece]]) -> Request:
    """Returns a request with some of its inputs and outputs elsewhere, by position as in a slot."""
    count = len(request.inputs)
    arguments = [*request.inputs, *request.outputs]
    pools = list(request.pools)
    for at, piece in pieces:
        if piece.pool not in pools:
            pools.append(piece.pool)
        location = DataLocation(pools.index(piece.pool), piece.offset, piece.length)
        arguments[at] = RequestArgument(location=location, dimensions=arguments[at].dimensions)
    return Request(tuple(arguments[:count]), tuple(arguments[count:]), tuple(pools))


_SlotT = TypeVar("_SlotT", bound=Slot)


class IdleSlots(ABC, Generic[_SlotT]):
    """Holds the idle slots of one network or stream."""

    reads_in_place = False
    """Whether a device of this process reads the input where the caller has it."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.port = ports.inputs[0] if len(ports.inputs) == 1 and ports.are_settled else None
        """The only input, where there is one and all shapes are known."""
        self.is_whole = not ports.state_inputs
        """Whether calls bring all inputs: the model has no states."""
        self._idle: list[_SlotT] = []

    @abstractmethod
    def _another(self, priority: Priority | None) -> _SlotT:
        """Make a slot where none is idle, for a call of a priority."""

    def filled(self, arrays: Sequence[Any], priority: Priority | None = None) -> _SlotT | None:
        """Returns a slot with the inputs of a call if they are one array that fits, else None.

        It is not copied where it is read in place.
        """
        port = self.port
        if port is None or len(arrays) != 1:
            return None
        array = arrays[0]
        if (
            array.__class__ is not np.ndarray
            or array.dtype is not port.dtype
            or array.shape != port.shape
        ):
            return None
        slot = self._idle.pop() if self._idle else self._another(priority)
        if not self.reads_in_place:
            slot.inputs[0][...] = array
        return slot

    def take(self, priority: Priority | None = None) -> _SlotT:
        """Returns the idle slot that was used last, or a new one."""
        return self._idle.pop() if self._idle else self._another(priority)

    def give_back(self, slot: _SlotT) -> None:
        """Recycle a slot that no device uses."""
        self._idle.append(slot)

    def give_up(self, slot: _SlotT, request: Request) -> None:
        """Drop a slot, of which this request was executed: its device may still use it."""

    def close(self) -> None:
        """Drop the idle slots."""
        self._idle.clear()


class Slots(IdleSlots[Slot]):
    """The idle slots of one network; `take` and `filled` raise what `admit` of `serve` does."""

    def __init__(self, model: Model, ports: Ports) -> None:
        super().__init__(ports)
        self._model = model
        self._era: object = object()
        self._peer: object = ANY_PROCESS
        self._admit: Callable[[Priority | None], object] | None = None
        self._has_let_go: Callable[[Request], bool] | None = None
        self._given_up: deque[tuple[Slot, Request]] = deque()
        self._shared: MemorySource = own_memory
        self._own: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._most_own = 0
        self.reads_in_place = (
            self.port is not None
            and self.is_whole
            and math.prod(self.port.shape) * self.port.dtype.itemsize >= _LARGE_BYTES
        )

    def serve(
        self,
        peer: object,
        admit: Callable[[Priority | None], object] | None = None,
        has_let_go: Callable[[Request], bool] | None = None,
    ) -> None:
        """Make slots for the device `peer` from now on; None: for a device of this process.

        `admit` is called before a slot is made, and raises where an execution would be refused.
        `has_let_go` tells whether the device uses the memory of a request no more. It does not know
        what runs on the one before, so slots that are in use are not used again.
        """
        self._admit, self._has_let_go = admit, has_let_go
        self._given_up.clear()
        if peer is None and self._peer is None:
            self._era = object()
            for slot in self._idle:
                slot.era = self._era
            return
        self._peer = peer
        self._shared = SharedArena().take
        self._begin_anew()

    def take_ahead(self) -> Slot:
        """Returns a slot for an execution that is not queued yet, so that `admit` is not asked."""
        return self._idle.pop() if self._idle else self._freed() or self._new()

    def give_back(self, slot: Slot) -> None:
        """Recycle a slot that no device uses, or drop it once closed."""
        if slot.era is self._era:
            self._idle.append(slot)

    def adopt(self, slot: Slot) -> None:
        """Take a slot that was made before, with memory of this process alone."""
        slot.era = self._era or _NEVER
        self.give_back(slot)

    def give_up(self, slot: Slot, request: Request) -> None:
        """Recycle a slot, of which this request was executed, when its device has let go of it."""
        if slot.era is self._era and self._has_let_go is not None:
            self._given_up.append((slot, request))

    def lend(self) -> None:
        """Have the next slots be memory that may be handed to any process."""
        if not self._most_own:
            self._most_own = _OWN_POOLS
            if self._era is not None:
                self._begin_anew()

    def trim(self) -> None:
        """Drop the idle slots that a burst of calls left behind, but for a few."""
        del self._idle[:-_KEPT_SLOTS]
        while len(self._given_up) > _KEPT_SLOTS:
            self._given_up.popleft()

    def close(self) -> None:
        """Drop the idle slots, now and when they are given back."""
        self._era = None
        self._idle.clear()
        self._given_up.clear()

    def _begin_anew(self) -> None:
        """Drop the idle slots, and those in use when they are given back."""
        self._era = object()
        self._idle.clear()
        self._given_up.clear()

    def _another(self, priority: Priority | None) -> Slot:
        if self._admit is not None:
            self._admit(priority)
        return self._freed() or self._new()

    def _freed(self) -> Slot | None:
        """Returns a slot that was given up and that its device has let go of, if there is one."""
        given_up, has_let_go = self._given_up, self._has_let_go
        for _ in range(min(len(given_up), _LOOKED_AT)):
            slot, request = given_up.popleft()
            if has_let_go is not None and has_let_go(request):
                return slot
            given_up.append((slot, request))
        return None

    def _new(self) -> Slot:
        if self._peer is ANY_PROCESS or len(self._own) < self._most_own:
            slot = Slot(self._model, self._ports)
            self._own.add(slot)
        elif self._peer is None:
            slot = Slot(self._model, self._ports, private_memory, peer=None)
        else:
            slot = Slot(self._model, self._ports, self._shared, peer=self._peer)
        slot.era = self._era or _NEVER
        return slot


class Lease:
    """The right to a slot's outputs after a launch; the slot is recycled when the lease ends.

    It ends by `close` or with the last reference to it. The execution and its output regions hold
    one, and so does every execution that reads those regions, until it is done. A lease that is
    closed while one of them is not done leaves it the slot: that is dropped, not recycled.
    """

    __slots__ = ("_fence", "_readers", "_recycling", "_slot", "_slots")

    def __init__(self, slots: Slots, slot: Slot, fence: Fence) -> None:
        self._slots = slots
        self._slot: Slot | None = slot
        self._fence = fence
        self._readers: tuple[Fence, ...] = ()
        self._recycling: _Recycling | None = None
        if not fence.done:
            # Now, since the end of the lease may come in a finalizer, which must not take locks.
            self._recycling = _Recycling(slots, slot)
            fence.add_callback(self._recycling)

    def lends_to(self, peer: object) -> bool:
        """Returns whether a device in another process may be given the slot's memory.

        If not, the next slots of its network will be memory that may.
        """
        slot = self._slot
        if slot is None or slot.peer is ANY_PROCESS or slot.peer is peer:
            return True
        self._slots.lend()
        return False

    def read_until(self, fence: Fence) -> None:
        """Note that an execution reads the slot, until its fence is final."""
        self._readers = (*(each for each in self._readers if not each.done), fence)

    @property
    def slot(self) -> Slot | None:
        """Returns the slot, None once the lease has ended."""
        return self._slot

    def close(self) -> None:
        """End the lease; the slot is recycled once it was written, and dropped if it was not."""
        slot, self._slot = self._slot, None
        if slot is None:
            return
        is_read = bool(self._readers) and not all(each.done for each in self._readers)
        recycling = self._recycling
        if recycling is not None:
            recycling.lease_ended(self._fence, is_read=is_read)
        elif self._fence.error is None and not is_read:
            self._slots.give_back(slot)

    def __del__(self) -> None:
        self.close()


class _Recycling:
    """Gives a slot back when its lease has ended and its fence is final, whichever comes last.

    Each of the two may come on any thread. Taking the slot out of its box is atomic, so that only
    one of them gives it back, and no lock is needed.
    """

    __slots__ = ("_box", "_has_ended", "_slots")

    def __init__(self, slots: Slots, slot: Slot) -> None:
        self._slots = slots
        self._box = [slot]
        self._has_ended = False

    def __call__(self, fence: Fence) -> None:
        """Gives the slot back if the lease has ended; called when the fence is settled."""
        if self._has_ended:
            self._give_back(fence)

    def lease_ended(self, fence: Fence, *, is_read: bool) -> None:
        """Recycle the slot; if it is still being read, it is dropped instead."""
        if is_read:
            self._box.clear()
            return
        self._has_ended = True
        if fence.done:
            self._give_back(fence)

    def _give_back(self, fence: Fence) -> None:
        try:
            slot = self._box.pop()
        except IndexError:
            return
        if fence.error is None:
            self._slots.give_back(slot)


class Holding:
    """Keeps objects until a fence is final, as one of its callbacks."""

    __slots__ = ("held",)

    def __init__(self, held: Sequence[object]) -> None:
        self.held = held

    def __call__(self, fence: Fence) -> None:
        """Let go."""
        self.held = ()


class OutputRegion(Region):
    """An output of a launched execution, in place; it keeps the memory from being recycled."""

    __slots__ = ("lease",)

    lease: Lease


def output_regions(slot: Slot, lease: Lease, ports: Sequence[Port]) -> tuple[OutputRegion, ...]:
    """Returns the outputs of a slot as regions that hold its lease."""
    count = len(slot.request.inputs)
    regions = []
    for port, array in zip(ports, slot.outputs, strict=True):
        # Region.__init__ would make the view again, on the path of every chained launch.
        region = OutputRegion.__new__(OutputRegion)
        location = slot.locations[count + port.position]
        region.pool = slot.pool
        region.offset = location.offset
        region.length = location.length
        region.dtype = array.dtype
        region.shape = array.shape
        region.array = array
        region.lease = lease
        regions.append(region)
    return tuple(regions)
