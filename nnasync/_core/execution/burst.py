"""A burst as a user sees it: a stream of calls that carries the state of its model.

Calls run in order, one at a time; up to `depth` may be in flight. An execution reads the state of
the stream (`stream_state`) on one side and writes it on another, and only its success makes that
the one that counts. So a call that missed its deadline, failed or was cancelled leaves the state as
it was, even if the device goes on writing for a while; the next execution begins only when the
device has let go.

A call that finds the stream idle is sent at once and may have run when `send` returns; then
nothing is awaited. The others wait in a queue of the client, because what they are to read is
known only when the one before has ended; whichever thread ends it sends the next.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from nnasync._core.clock import Deadline
from nnasync._core.deferred import deferred
from nnasync._core.execution.calls import (
    BurstCall,
    BurstSlot,
    BurstSlots,
    BurstStatistics,
    OrderedCalls,
)
from nnasync._core.execution.depth_limit import DepthLimit, OnFull
from nnasync._core.execution.launch_arguments import config_of
from nnasync._core.execution.measured import MeasuredCalls
from nnasync._core.execution.placing import placed
from nnasync._core.execution.ports import Ports, R, in_order, out_in_order
from nnasync._core.execution.prepared_kinds import is_inline
from nnasync._core.execution.quick_calls import QuickCalls, quick_calls
from nnasync._core.execution.remote_line import RemoteLine
from nnasync._core.execution.slots import MemorySource, own_memory
from nnasync._core.execution.stream_state import StreamState
from nnasync._core.wakeup import Waiter, Wakeup, cancellation_pending, checkpoint_if_cancelled
from nnasync._core.workers import Workers, contained
from nnasync.burst import Awaited, BurstLine, Outcome, PromptLine
from nnasync.device import Device, PreparedModel, RepeatingPreparedModel
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadlineTransient,
    NNError,
    because,
)
from nnasync.fences import fresh
from nnasync.hal import (
    NEVER_NS,
    Array,
    ExecutionConfig,
    ExecutionResult,
    Model,
    Priority,
    Request,
)
from nnasync.scheduler import at_ns
from nnasync.tracing.tally import Tally

if TYPE_CHECKING:
    from nnasync._core.execution import distant
else:
    distant = deferred("nnasync._core.execution.distant")


_LATE_NS = 500_000
"""A device in another process answers at the deadline itself; this is how long that may take."""


class Burst(OrderedCalls, MeasuredCalls[R]):
    """A stream of executions of one network, made by `net.burst()`; an async context manager."""

    def __init__(
        self,
        model: Model,
        ports: Ports,
        prepared: PreparedModel,
        workers: Workers,
        *,
        depth: int,
        on_full: OnFull = "wait",
        priority: Priority | None = None,
        owner: object = None,
        tally: Callable[[Priority | None], Tally] = lambda priority: Tally(),
        device: Device | None = None,
        memory: MemorySource = own_memory,
    ) -> None:
        """`owner` is kept for as long as the burst is; `device` may have the state in buffers.

        `memory` is for slots, and for the state where no buffers have it; `tally` gives what counts
        the calls of a priority. Raises InvalidArgument for a priority that is none.
        """
        super().__init__(workers, StreamState(ports, memory) if model.state else None)
        self._model = model
        self._ports = ports
        self._prepared = prepared
        self._limit = DepthLimit(depth, on_full, workers.watchdog)
        self._owner = owner
        self._config = config_of(None, priority, measure=False)
        self._tally_of, self._tally = tally, tally(priority)
        self._device = device
        self._wakeup = Wakeup.current()
        self._turn = workers.turns.here  # All calls are made on this loop.
        self._line: BurstLine | None = None
        self._standby = prepared if isinstance(prepared, RepeatingPreparedModel) else None
        self._broken: NNError | None = None
        self._open = False
        self._prompt: PromptLine | None = None
        self._quick: QuickCalls | None = None
        self._slots = BurstSlots(model, ports, self._state, memory)
        self._submitted = self._succeeded = 0

    def __repr__(self) -> str:
        """Say of which network it is, and how much of it was done."""
        state = "open" if self._open else "not open"
        done = f"{self._succeeded} of {self._submitted} calls succeeded"
        return f"<Burst of {self._model.name!r}, {state}: {self._ports}; {done}>"

    def _repr_html_(self) -> str:
        """Return what it takes and gives, and how much of it was done, for notebooks."""
        return self._ports.table(repr(self))

    async def __aenter__(self) -> Self:
        if self._line is not None:
            raise BadState("a burst can be entered once; open another with net.burst()")
        if self._state is not None and self._device is not None:
            self._state = self._slots.state = await distant.moved_away(
                self._state, self._ports, self._device, self._prepared, self._workers.watchdog
            )
        self._line = await self._opened_line()
        self._open = True
        return self

    async def _opened_line(self) -> BurstLine:
        if is_inline(self._prepared):
            self._prompt = self._prepared.open_burst()
            if self._state is None and self._config.priority is None:
                slots = self._slots
                self._quick = quick_calls(self._prepared, slots, slots.take, self._wakeup)
            return self._prompt
        line, standby = RemoteLine(self._turn), self._standby
        try:
            await line.open(self._prepared)
        except Exception as error:
            # What stands by for the device does all of it.
            self._broken = None if standby is None else standby.failed(error)
            if self._broken is None:
                raise
        return line

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def __call__(
        self,
        *arrays: Any,
        deadline: Deadline | None = None,
        out: Any = None,
        priority: Priority | None = None,
    ) -> R:
        """Run once on the stream's state; arguments and results as of a network's call.

        With `depth` calls in flight it waits for one to end, until the deadline at most, or raises
        ResourceExhaustedTransient if the burst is to refuse.
        """
        tally = self._tally if priority is None else self._tally_of(priority)
        tally.calls += 1
        try:
            quick, prompt = self._quick, self._prompt
            if (
                quick is not None
                and prompt is not None
                and out is priority is None
                and self._running is None
                and prompt.is_free()
            ):
                self._submitted += 1
                value = quick.call(arrays, deadline)
                if value is not None:
                    self._succeeded += 1
                    if quick.ends_turn:
                        await quick.next_turn()
                    tally.completed += 1
                    return value  # type: ignore[no-any-return]  # R is the application's word.
                self._submitted -= 1  # It goes the longer way, and is counted there.
            value = await self._call_in_full(arrays, out, deadline, priority)
            tally.completed += 1
            return value  # type: ignore[no-any-return]  # R is the application's word.
        except BaseException as error:
            tally.ended(error, deadline)
            raise

    async def _call_in_full(
        self,
        arrays: Sequence[Any],
        out: Any,
        deadline: Deadline | None,
        priority: Priority | None,
        *,
        measure: bool = False,
    ) -> Any:
        """Runs a call of any form, at once or in its turn.

        Most are one array that fits and is cheap.
        """
        self._check(deadline)
        if self._limit.is_full or cancellation_pending():
            await self._let_in(deadline)
        config = self._config
        if measure or deadline is not None or priority is not None:
            config = self._config_of(deadline, priority, measure=measure)
        outs: Sequence[Any] | None = None
        slot = self._slots.filled(arrays) if out is None else None
        if slot is not None:
            requests = slot.requests
        else:
            values = in_order(self._ports.inputs, arrays, "input")
            if out is not None:
                outs = out_in_order(self._ports.outputs, out)
            slot, pieces = placed(self._slots, values, outs, self._ports, self._prepared)
            requests = slot.requests_with(pieces)
        answer: Outcome | Awaited | None = None
        if self._running is None and not self._turn.is_half_spent():
            answer = self._ask(slot, requests, config)
        if answer.__class__ is ExecutionResult:
            return self._value(slot, answer, outs, measure=measure)
        if answer is None and deadline is not None:
            self._check_heard(slot, config.deadline_ns)
        call = BurstCall(slot, requests, config)
        self._limit.enter()
        self._submitted += 1
        try:
            if answer is not None:
                self._follow(call, answer)
            elif self._takes_lead(call):
                if self._turn.is_half_spent():
                    await self._turn_of(call)
                self._send(call)
            if call.outcome is None:
                await self._wait(call)
        finally:
            self._limit.leave()
        return self._finish(call, outs)

    def _tally_at(self, priority: Priority | None) -> Tally:
        return self._tally if priority is None else self._tally_of(priority)

    def _config_of(
        self, deadline: Deadline | None, priority: Priority | None, *, measure: bool
    ) -> ExecutionConfig:
        """Returns the configuration for what a call states: deadline, priority, measuring."""
        usual = self._config.priority if priority is None else priority
        return config_of(deadline, usual, measure=measure)

    async def state(self) -> dict[str, Array]:
        """Returns copies of the stream's state, by the names of the model's state inputs.

        {} if none. A device in another process that has the state is given a second; calls that
        come meanwhile wait. Raises BadState while calls are in flight, DeviceUnavailable where the
        device does not answer.
        """
        if self._state is None:
            return {}
        with self._limit.held():
            return await self._state.read()

    async def load_state(self, values: Mapping[str, Any]) -> None:
        """Sets the stream's state; every state must be given. Raises InvalidArgument, BadState."""
        if self._state is not None:
            with self._limit.held():
                self._state.load(values)
        elif values:
            raise BadState("this network carries no state")

    async def reset(self) -> None:
        """Sets the state to zeros, as at the beginning of the stream; raises BadState."""
        if self._state is not None:
            with self._limit.held():
                self._state.begin()

    def statistics(self) -> BurstStatistics:
        """Returns the counts so far; `hot` while the device is in its fast state for this burst."""
        return BurstStatistics(
            submitted=self._submitted,
            succeeded=self._succeeded,
            failed=self._submitted - self._succeeded - self._limit.in_flight,
            in_flight=self._limit.in_flight,
            hot=self._open and self._line is not None and self._line.is_hot,
        )

    def close(self) -> None:
        """Ends the burst; calls in flight end with DeviceUnavailable. May be repeated."""
        if not self._open:
            return
        self._open = False
        self._quick = None
        if self._wakeup.is_inherited:
            return  # What is in flight is the parent's.
        text = "the burst was closed while this call was in flight"
        error = because("closing", DeviceUnavailable(text))
        with self._lock:
            pending, self._pending = list(self._pending), deque()
        self._limit.close(error)
        for call in pending:
            self._withdraw(call, error)
        if self._line is not None:
            self._line.close(error)
        self._slots.close()

    def __del__(self) -> None:
        # On whatever thread collects, amidst anything: closing is left to the loop. What is posted
        # does not have this object, which would live on with its network and their memory.
        if not getattr(self, "_open", False):
            return
        self._open = False
        try:
            warnings.warn(
                f"a burst of network {self._model.name!r} was dropped without being closed: use it "
                "with `async with`, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            # Behind the warning: who sees that the burst is closed may look for that.
            if self._line is not None:
                error = DeviceUnavailable("the burst was dropped while this call was in flight")
                self._wakeup.post(functools.partial(self._line.close, error))

    def _check(self, deadline: Deadline | None) -> None:
        if not self._open:
            raise BadState("the burst is not open; use it inside `async with net.burst() as burst`")
        if not self._wakeup.is_current():
            raise BadState("the burst belongs to the event loop it was made on, not to this one")
        if deadline is not None and deadline.__class__ is not Deadline:
            raise InvalidArgument(
                f"deadline must be a Deadline such as nn.within(ms=10), got {deadline!r}"
            )

    async def _let_in(self, deadline: Deadline | None) -> None:
        """Waits until fewer calls than `depth` are in flight; ends here if it is cancelled."""
        await checkpoint_if_cancelled()
        self._check(deadline)
        if self._limit.is_full:
            await self._limit.wait(at_ns(deadline))
            self._check(deadline)

    def _check_heard(self, slot: BurstSlot, deadline_ns: int) -> None:
        try:
            self._wakeup.check_heard(deadline_ns)
        except NNError:
            self._submitted += 1
            self._slots.give_back(slot)
            raise

    def _ask(
        self, slot: BurstSlot, requests: Sequence[Request], config: ExecutionConfig
    ) -> Outcome | Awaited | None:
        """Asks the device to execute a call at once; nothing else is under way.

        No other thread looks at the stream then. An error is returned, not raised, where a standby
        may make up for it.
        """
        line, state, standby = self._line, self._state, self._standby
        if line is None or (standby is not None and standby.suspects):
            return None
        try:
            answer = line.ask(requests[0 if state is None else state.current], config)
        except NNError:
            self._submitted += 1
            self._slots.give_back(slot)
            raise
        if isinstance(answer, ExecutionResult):
            self._submitted += 1
            if state is not None:
                state.advance()
                self._last = None
        elif isinstance(answer, NNError) and standby is None:
            self._submitted += 1
            self._discard(slot)
            raise answer
        return answer

    def _follow(self, call: BurstCall, answer: Outcome | Awaited) -> None:
        """Has a call whose result is still awaited end like one that was sent."""
        with self._lock:
            self._running, self._last = call, None
        if isinstance(answer, ExecutionResult | NNError):
            self._answered(call, answer)
            return
        call.cancels.append(answer.cancel)
        answer.follow(lambda outcome: self._answered(call, outcome))
        self._watch(call)

    async def _turn_of(self, call: BurstCall) -> None:
        """Lets the loop turn while the call, not sent yet, holds its place in the stream."""
        try:
            await self._workers.turns.next()
        except BaseException:
            call.given_up = True
            self._ended(call, Cancelled("the call was cancelled before it began"))
            self._slots.give_back(call.slot)
            raise

    def _send(self, call: BurstCall) -> None:
        """Sends a call, and those behind it for as long as the answers come within `send`."""
        sending: BurstCall | None = call
        while sending is not None:
            sending.sender = threading.get_ident()
            self._send_one(sending)
            sending.sender = 0
            following, sending.following = sending.following, None
            sending = following

    def _send_one(self, call: BurstCall) -> None:
        line = self._line
        try:
            if line is None or not self._open:
                raise _closed()
            failure = self._broken
            if failure is None and self._standby is not None:
                failure = self._standby.skipped()
            if failure is not None:
                self._repeat(call, failure)
                return
            request, answered = self._request(call), lambda outcome: self._answered(call, outcome)
            call.cancels.append(line.send(request, call.config, answered))
        except Exception as error:
            failure = contained(error, "the device").with_traceback(None)
            self._answered(call, failure if self._open else _closed())
            return
        if call.given_up and call.outcome is None:
            # It was given up on the loop before there was a way to cancel it.
            call.cancel()
        self._watch(call)

    def _answered(self, call: BurstCall, outcome: Outcome) -> None:
        """Handles the device's answer; the standby repeats what the device failed to do."""
        standby, failure = self._standby, None
        if standby is not None and self._open and not call.given_up:
            if isinstance(outcome, NNError):
                failure = standby.failed(outcome, self._request(call))
            else:
                standby.succeeded()
        if failure is None:
            self._ended(call, outcome)
        else:
            self._repeat(call, failure)

    def _repeat(self, call: BurstCall, failure: NNError) -> None:
        standby = self._standby
        if standby is not None:
            request = self._request(call)
            cancel = standby.repeat(
                request, call.config, failure, lambda outcome: self._ended(call, outcome)
            )
            if cancel is not None:
                call.cancels.append(cancel)
                if call.given_up:
                    cancel()

    def _request(self, call: BurstCall) -> Request:
        """Returns the call's request that reads the current side of the state."""
        return call.requests[0 if self._state is None else self._state.current]

    def _watch(self, call: BurstCall) -> None:
        """Answers a call at its deadline, since a device in another process may hang."""
        line = self._line
        if line is None or not line.may_hang or call.config.deadline_ns == NEVER_NS:
            return
        try:
            call.alarm = self._alarm(call.config.deadline_ns + _LATE_NS, lambda: self._expire(call))
        except NNError as error:
            self._expire(call, error)
            return
        if call.outcome is not None or call.given_up:
            call.alarm.disarm()

    def _expire(self, call: BurstCall, error: NNError | None = None) -> None:
        """Answers a call that was sent with an error, and cancels it on the device."""
        with self._lock:
            if call.outcome is not None or call.given_up:
                return
            # At once: an answer that comes now does not count, and may not be seen either.
            call.given_up = True
            if error is None:
                error = MissedDeadlineTransient("the device did not answer by the deadline")
            call.answer(error)
        call.cancel()
        call.settle(error)

    async def _wait(self, call: BurstCall) -> None:
        call.waiter = Waiter()
        if call.outcome is not None:
            return
        try:
            await call.waiter
        except BaseException:
            self._give_up(call)
            raise

    def _give_up(self, call: BurstCall) -> None:
        with self._lock:
            call.given_up = True
            sent = call is self._running
            if call is self._last and self._state is not None:
                # It succeeded, but its waiter was cancelled before it heard of that.
                self._state.go_back()
                self._last = None
        if call.alarm is not None:
            call.alarm.disarm()
        if sent:
            call.cancel()
        self._discard(call.slot)

    def _finish(self, call: BurstCall, outs: Sequence[Any] | None) -> Any:
        outcome = call.outcome
        if outcome is None:
            raise BadState("the burst ended without answering this call")
        if isinstance(outcome, NNError):
            self._discard(call.slot)
            raise fresh(outcome) from outcome
        return self._value(call.slot, outcome, outs, measure=call.config.measure)

    def _value(
        self, slot: BurstSlot, done: ExecutionResult, outs: Sequence[Any] | None, *, measure: bool
    ) -> Any:
        value = slot.read(outs)
        self._slots.give_back(slot)
        self._succeeded += 1
        return (value, done.timing) if measure else value

    def _discard(self, slot: BurstSlot) -> None:
        """Forgets a slot that the device may still use.

        Its memory is freed when the device is done.
        """
        if self._line is not None:
            self._line.free(slot.pool)


def _closed() -> NNError:
    return because("closing", DeviceUnavailable("the burst is closed"))
