"""A burst as a user sees it: a stream of calls that carries the state of its model.

Calls run in order, one at a time; up to `depth` may be in flight. The state of the stream is two
sets of buffers: an execution reads one and writes the other, and only its success swaps them. So a
call that missed its deadline, failed or was cancelled leaves the state as it was, even if the
device goes on writing for a while; the next execution begins only when the device has let go.

A call that finds the stream idle is sent at once and may have run when `send` returns; then
nothing is awaited. The others wait in a queue of the client, because what they are to read is
known only when the one before has ended; whichever thread ends it sends the next.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from nnasync.burst import (
    BurstController,
    HeatedBurstContext,
    InlineBurstContext,
    LocalChannel,
    Outcome,
)
from nnasync.clock import Alarm, Deadline
from nnasync.device import PreparedModel
from nnasync.errors import (
    BadState,
    CallerError,
    Cancelled,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadlinePersistent,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.execution.ports import Ports, check_out, copy_in, in_order
from nnasync.execution.slots import Slot
from nnasync.fences import fresh
from nnasync.hal import (
    Array,
    DataLocation,
    ExecutionResult,
    Model,
    Request,
    RequestArgument,
)
from nnasync.memory import Pool, layout
from nnasync.scheduler import NEVER_NS
from nnasync.wakeup import Waiter, Wakeup, cancellation_pending, checkpoint_if_cancelled
from nnasync.workers import Workers

__all__ = ["DEFAULT_DEPTH", "Burst", "BurstStatistics"]

DEFAULT_DEPTH = 8


class BurstStatistics(msgspec.Struct, frozen=True):
    """Counts of one burst; `in_flight` and `hot` are now."""

    submitted: int
    succeeded: int
    failed: int
    in_flight: int
    hot: bool


class _State:
    """Two sets of state buffers in one pool; `current` is the one that holds the state."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports.state_inputs
        sizes = [port.dtype.itemsize * int(np.prod(port.shape)) for port in self.ports]
        offsets, total = layout(sizes * 2)
        self.pool = Pool.allocate(max(total, 1))
        count = len(sizes)
        self.locations = [
            [DataLocation(1, offsets[side * count + n], sizes[n]) for n in range(count)]
            for side in (0, 1)
        ]
        self.arrays: list[list[Array]] = [
            [
                self.pool.array(port.dtype, port.shape, offsets[side * count + n])
                for n, port in enumerate(self.ports)
            ]
            for side in (0, 1)
        ]
        self.current = 0
        self.begin()

    def begin(self) -> None:
        """Make the state zero, which is the zero point where it is quantised."""
        for array, port in zip(self.arrays[self.current], self.ports, strict=True):
            array.fill(port.zero_point)


class _Call:
    """One call on its way."""

    __slots__ = (
        "alarm",
        "deadline_ns",
        "following",
        "given_up",
        "measure",
        "outcome",
        "sender",
        "serial",
        "slot",
        "waiter",
    )

    def __init__(self, slot: _BurstSlot, deadline_ns: int, *, measure: bool) -> None:
        self.slot = slot
        self.deadline_ns = deadline_ns
        self.measure = measure
        self.outcome: Outcome | None = None
        self.given_up = False
        self.serial = 0
        self.sender = 0
        self.following: _Call | None = None
        self.waiter: Waiter | None = None
        self.alarm: Alarm | None = None

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.alarm is not None:
            self.alarm.disarm()
        waiter = self.waiter
        if waiter is not None:
            waiter.wake()


class _BurstSlot(Slot):
    """A slot whose requests read and write the state of a stream, one request for each side."""

    __slots__ = ("encoded", "requests")

    def __init__(self, model: Model, ports: Ports, state: _State | None) -> None:
        super().__init__(model, ports)
        self.encoded: list[bytes | None] = [None, None]
        if state is None:
            self.requests = [self.request, self.request]
        else:
            self.requests = [self._on_side(model, state, side) for side in (0, 1)]

    def _on_side(self, model: Model, state: _State, side: int) -> Request:
        inputs, outputs = list(self.request.inputs), list(self.request.outputs)
        for n, pair in enumerate(model.state):
            inputs[pair.input] = RequestArgument(location=state.locations[side][n])
            outputs[pair.output] = RequestArgument(location=state.locations[1 - side][n])
        return Request(tuple(inputs), tuple(outputs), (self.pool, state.pool))


class Burst:
    """A stream of executions of one network, made by `net.burst()`; an async context manager."""

    def __init__(
        self,
        model: Model,
        ports: Ports,
        prepared: PreparedModel,
        workers: Workers,
        *,
        depth: int,
        owner: object = None,
    ) -> None:
        """`owner` is kept for as long as the burst is."""
        if depth < 1:
            raise InvalidArgument(f"depth must be 1 or more, got {depth}")
        self._model = model
        self._ports = ports
        self._prepared = prepared
        self._depth = depth
        self._owner = owner
        self._workers = workers
        self._wakeup = Wakeup.current()
        self._state = _State(ports) if model.state else None
        self._controller: BurstController | None = None
        self._inline: InlineBurstContext | None = None
        self._heated: HeatedBurstContext | None = None
        self._open = False
        self._lock = threading.Lock()
        self._idle: list[_BurstSlot] = []
        self._pending: deque[_Call] = deque()
        self._running: _Call | None = None
        self._last: _Call | None = None
        self._in_flight = 0
        self._submitted = self._succeeded = self._failed = 0

    async def __aenter__(self) -> Self:
        if self._controller is not None:
            raise BadState("a burst can be entered once; open another with net.burst()")
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        context = await self._prepared.configure_execution_burst(controller, requests, results)
        controller.attach(context)
        self._inline = context if isinstance(context, InlineBurstContext) else None
        self._heated = context if isinstance(context, HeatedBurstContext) else None
        self._controller = controller
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __call__(
        self,
        *arrays: Any,
        deadline: Deadline | None = None,
        out: Any = None,
        measure: bool = False,
    ) -> Any:
        """Run once on the stream's state; arguments and results as of a network's call.

        Raises ResourceExhaustedTransient when `depth` calls are in flight already.
        """
        self._check(deadline)
        if cancellation_pending():
            await checkpoint_if_cancelled()
            self._check(deadline)
        outs = check_out(self._ports.outputs, out)
        deadline_ns = NEVER_NS if deadline is None else deadline.at_ns
        slot = self._filled(arrays)
        if self._inline is not None and self._running is None:
            result = self._run_now(self._inline, slot, deadline_ns, measure=measure)
            if result is not None:
                return self._value(slot, result, outs, measure=measure)
        call = _Call(slot, deadline_ns, measure=measure)
        self._in_flight += 1
        self._submitted += 1
        try:
            if self._takes_lead(call):
                if self._workers.turns.is_half_spent():
                    await self._turn_of(call)
                self._send(call)
            if call.outcome is None:
                await self._wait(call)
        finally:
            self._in_flight -= 1
        return self._finish(call, outs)

    def state(self) -> dict[str, Array]:
        """Copies of the stream's state, by the names of the model's state inputs."""
        state = self._settled_state()
        arrays = state.arrays[state.current]
        return {port.name: array.copy() for port, array in zip(state.ports, arrays, strict=True)}

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Set the stream's state; every state must be given. Raises InvalidArgument, BadState."""
        state = self._settled_state()
        ordered = in_order(state.ports, [values], "state")
        fresh_arrays = [np.empty(port.shape, port.dtype) for port in state.ports]
        for array, value, port in zip(fresh_arrays, ordered, state.ports, strict=True):
            copy_in(array, value, port)
        for target, array in zip(state.arrays[state.current], fresh_arrays, strict=True):
            np.copyto(target, array)

    def reset(self) -> None:
        """Set the state to zeroes, as at the beginning of the stream."""
        if self._state is None:
            return
        self._settled_state().begin()

    def statistics(self) -> BurstStatistics:
        """Counts so far; `hot` while the device is in its fast state for this burst."""
        return BurstStatistics(
            submitted=self._submitted,
            succeeded=self._succeeded,
            failed=self._failed,
            in_flight=self._in_flight,
            hot=self._open and (self._heated is None or self._heated.is_hot),
        )

    def close(self) -> None:
        """End the burst; calls in flight end with DeviceUnavailable. Idempotent."""
        if not self._open:
            return
        self._open = False
        error = DeviceUnavailable("the burst was closed while this call was in flight")
        with self._lock:
            pending, self._pending = list(self._pending), deque()
        for call in pending:
            self._withdraw(call, error)
        if self._controller is not None:
            self._controller.close(error)
        self._idle.clear()
        self._inline = self._heated = None

    def __del__(self) -> None:
        # On whatever thread collects, amidst anything: closing is left to the loop.
        if not getattr(self, "_open", False):
            return
        self._wakeup.post(self.close)
        warnings.warn(
            f"a burst of network {self._model.name!r} was dropped without being closed: use it "
            "with `async with`, or call close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def _check(self, deadline: Deadline | None) -> None:
        if not self._open:
            raise BadState("the burst is not open; use it inside `async with net.burst() as burst`")
        if Wakeup.current() is not self._wakeup:
            raise BadState("the burst belongs to the event loop it was made on, not to this one")
        if deadline is not None and deadline.__class__ is not Deadline:
            raise InvalidArgument(
                f"deadline must be a Deadline such as nn.within(ms=10), got {deadline!r}"
            )
        if self._in_flight >= self._depth:
            raise ResourceExhaustedTransient(
                f"{self._depth} calls are in flight on this burst already (its depth)"
            )

    def _run_now(
        self, inline: InlineBurstContext, slot: _BurstSlot, deadline_ns: int, *, measure: bool
    ) -> ExecutionResult | None:
        """Run on this thread where nothing is under way: no other thread looks at the stream."""
        if self._workers.turns.is_half_spent():
            return None
        state = self._state
        request = slot.requests[0 if state is None else state.current]
        try:
            result = inline.run_now(request, measure=measure, deadline_ns=deadline_ns)
        except NNError:
            self._submitted += 1
            self._failed += 1
            self._idle.append(slot)
            raise
        if result is not None:
            self._submitted += 1
            if state is not None:
                state.current ^= 1
        return result

    def _filled(self, arrays: Sequence[Any]) -> _BurstSlot:
        values = in_order(self._ports.inputs, arrays, "input")
        try:
            slot = self._idle.pop()
        except IndexError:
            slot = _BurstSlot(self._model, self._ports, self._state)
        try:
            slot.write(self._ports.inputs, values)
        except CallerError:
            self._idle.append(slot)
            raise
        return slot

    def _takes_lead(self, call: _Call) -> bool:
        """Whether the stream is idle and the call is to be sent; else it is queued and watched."""
        with self._lock:
            if self._running is None:
                self._running = call
                self._last = None
                return True
            self._pending.append(call)
        if call.deadline_ns != NEVER_NS:
            text = "the deadline passed while earlier calls of the burst were running"
            call.alarm = self._workers.watchdog.arm(
                call.deadline_ns, lambda: self._withdraw(call, MissedDeadlinePersistent(text))
            )
            if call.outcome is not None or call is self._running:
                call.alarm.disarm()
        return False

    async def _turn_of(self, call: _Call) -> None:
        """Let the loop turn while the call, not sent yet, holds its place in the stream."""
        try:
            await self._workers.turns.next()
        except BaseException:
            call.given_up = True
            self._failed += 1
            self._ended(call, Cancelled("the call was cancelled before it began"))
            self._idle.append(call.slot)
            raise

    def _send(self, call: _Call) -> None:
        """Send a call, and those that follow it for as long as the answers come within `send`."""
        sending: _Call | None = call
        while sending is not None:
            sending.sender = threading.get_ident()
            self._send_one(sending)
            sending.sender = 0
            following, sending.following = sending.following, None
            sending = following

    def _send_one(self, call: _Call) -> None:
        controller = self._controller
        side = 0 if self._state is None else self._state.current
        try:
            if controller is None or not self._open:
                raise DeviceUnavailable("the burst is closed")
            slot = call.slot
            arguments = slot.encoded[side]
            if arguments is None:
                arguments = slot.encoded[side] = controller.encode(slot.requests[side])
            call.serial = controller.send(
                arguments,
                lambda outcome: self._ended(call, outcome),
                measure=call.measure,
                deadline_ns=call.deadline_ns,
            )
        except NNError as error:
            self._ended(call, error.with_traceback(None))
            return
        if call.given_up and call.outcome is None:
            # It was given up on the loop before its serial number was there to cancel it by.
            controller.cancel(call.serial)

    def _ended(self, call: _Call, outcome: Outcome) -> None:
        """The device answered: commit the state, send the next call, wake the waiter."""
        with self._lock:
            if self._state is not None and not isinstance(outcome, NNError) and not call.given_up:
                self._state.current ^= 1
                self._last = call
            following = self._next()
            self._running = following
            if following is not None:
                self._last = None
            call.outcome = outcome
        if call.sender == threading.get_ident():
            # Sent from here, each call would nest in the answer of the one before.
            call.following = following
        elif following is not None:
            self._send(following)
        call.settle(outcome)

    def _next(self) -> _Call | None:
        while self._pending:
            call = self._pending.popleft()
            if call.outcome is None and not call.given_up:
                if call.alarm is not None:
                    call.alarm.disarm()
                return call
        return None

    def _withdraw(self, call: _Call, error: NNError) -> None:
        """Answer a call that waits in the queue; one that was sent is left to the device."""
        with self._lock:
            if call is self._running or call.outcome is not None:
                return
            call.given_up = True
        call.settle(error)

    async def _wait(self, call: _Call) -> None:
        call.waiter = Waiter()
        if call.outcome is not None:
            return
        try:
            await call.waiter
        except BaseException:
            self._give_up(call)
            raise

    def _give_up(self, call: _Call) -> None:
        with self._lock:
            call.given_up = True
            sent = call is self._running
            if call is self._last and self._state is not None:
                # It succeeded, but its waiter was cancelled before it heard of that.
                self._state.current ^= 1
                self._last = None
        if call.alarm is not None:
            call.alarm.disarm()
        if sent and self._controller is not None:
            self._controller.cancel(call.serial)
        self._discard(call.slot)
        self._failed += 1

    def _finish(self, call: _Call, outs: Sequence[Array] | None) -> Any:
        outcome = call.outcome
        if outcome is None:
            raise BadState("the burst ended without answering this call")
        if isinstance(outcome, NNError):
            self._failed += 1
            self._discard(call.slot)
            raise fresh(outcome) from outcome
        return self._value(call.slot, outcome, outs, measure=call.measure)

    def _value(
        self,
        slot: _BurstSlot,
        result: ExecutionResult,
        outs: Sequence[Array] | None,
        *,
        measure: bool,
    ) -> Any:
        value = slot.read(outs)
        self._idle.append(slot)
        self._succeeded += 1
        return (value, result.timing) if measure else value

    def _discard(self, slot: _BurstSlot) -> None:
        """Forget a slot that the device may still use; its memory goes when the device lets go."""
        if self._controller is not None:
            self._controller.free(slot.pool)

    def _settled_state(self) -> _State:
        if self._state is None:
            raise BadState("this network carries no state")
        if self._in_flight:
            raise BadState("the state changes while calls are in flight; await them first")
        return self._state
