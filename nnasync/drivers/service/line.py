"""Plain executions in a service over a message queue: a burst that carries one of them at a time.

A call over the socket wakes the loop of the service and a thread here; one over a queue finds both
sides looking for it. The line is opened by the second execution, since a model that is used once
needs none. While it is taken, further executions take the socket, so that they run side by side.
Who gives an execution up, at its deadline or cancelled, hangs up: what comes after is not to wait
for a device that may have that one for long. Some calls later the line is opened again.

What the device answers is the answer, and nothing is executed twice for it. Memory that the service
refused shows as a slot with nothing in it: whether that is what is wrong with a request is asked
over the socket. Where the burst ends alone, which no caller knows of, another one is opened, once,
and takes what was sent over the first; but not what may have overwritten its own inputs there.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from nnasync.burst import (
    BurstCallback,
    BurstContext,
    BurstController,
    Channel,
    LocalChannel,
    Outcome,
)
from nnasync.clock import now_ns
from nnasync.drivers.service.link import Link
from nnasync.drivers.service.memories import Memories
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlineTransient,
    NNError,
    Refused,
)
from nnasync.fences import Fence
from nnasync.hal import ExecutionConfig, ExecutionResult, Memory, Request, shares_memory
from nnasync.tracing import vlog
from nnasync.workers.turns import Turns

__all__ = ["MOST_SLOTS", "Line"]

MOST_SLOTS = 1024
"""How many memories a burst takes."""

_STALL_BUDGET_NS = 1_000_000
"""How long a turn of the event loop may look for answers, over all lines of a connection."""
_PAUSE = 8
"""How many executions more take the socket after one that was given up."""


class Configure(Protocol):
    """How a burst of the prepared model is opened."""

    def __call__(
        self,
        callback: BurstCallback,
        request_channel: Channel,
        result_channel: Channel,
        /,
        *,
        deadline_ns: int,
    ) -> Coroutine[Any, Any, BurstContext]:
        """Open it; raises MissedDeadlineTransient where it is not open by the deadline."""


class _Known(NamedTuple):
    """A request that was sent before, for as long as it lives."""

    reference: weakref.ref[Request]
    arguments: bytes
    pools: tuple[Memory, ...]

    def is_of(self, request: Request) -> bool:
        """Whether it is of this request, and not of one that was at its address before."""
        return self.reference() is request


class _NotSent(Exception):
    """The burst was over before the request was sent."""


class Line:
    """The line of one prepared model."""

    def __init__(self, link: Link, memories: Memories, configure: Configure) -> None:
        self._link = link
        self._memories = memories
        self._configure = configure
        self._controller: BurstController | None = None
        self._turns = Turns(_STALL_BUDGET_NS)
        self._calls = 0
        # Who has the line: taken by the loop, let go by whichever thread has the answer.
        self._holder: object = None
        self._holding = threading.Lock()
        self._closed = False
        # Who drops a request may be on any thread: what is known of them has a lock.
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._uses: Counter[int] = Counter()
        self._gone: deque[int] = deque()
        link.spare(self)

    async def run(self, request: Request, config: ExecutionConfig) -> ExecutionResult | None:
        """Execute, or return None where that has to take the socket; raises what it fails with."""
        self._calls += 1
        if self._taken or self._closed or self._calls < 2:
            return None
        was_sent, deadline_ns = True, config.deadline_ns
        try:
            outcome = await self._once(request, config)
        except _NotSent:
            was_sent = False
        else:
            if not isinstance(outcome, NNError):
                return outcome
            if not self._is_end(outcome):
                raise await self._judged(request, outcome, deadline_ns)
        if not await self._reopened(request, deadline_ns, was_sent=was_sent):
            return None
        try:
            outcome = await self._once(request, config)
        except _NotSent:
            self._start_over()
            return None
        if isinstance(outcome, NNError):
            raise await self._judged(request, outcome, deadline_ns)
        return outcome

    def close(self) -> None:
        """Hang up; what is under way ends with DeviceUnavailable."""
        self._closed = True
        self._hang_up()

    def retire(self) -> bool:
        """Hang up for good, unless there is no burst or it is in use; others need the room."""
        if self._taken or self._controller is None:
            return False
        self.close()
        return True

    @property
    def _taken(self) -> bool:
        return self._holder is not None

    def _let_go(self, holder: object) -> None:
        """Free the line, unless somebody else has it by now."""
        with self._holding:
            if self._holder is holder:
                self._holder = None

    def _is_end(self, error: NNError) -> bool:
        """Whether only the burst is over."""
        return isinstance(error, DeviceDied) and self._link.error is None

    async def _reopened(self, request: Request, deadline_ns: int, *, was_sent: bool) -> bool:
        """Open another burst after the end of one; False where the socket is to be taken.

        Raises DeviceDied where it was the service that ended, DeviceUnavailable for what cannot be
        repeated.
        """
        controller = None
        if not self._taken:
            self._hang_up()
            holder = self._holder = object()
            try:
                controller = await self._opened(deadline_ns)
            finally:
                self._let_go(holder)
        if was_sent and shares_memory(request.pools, request.inputs, request.outputs):
            raise DeviceUnavailable(
                f"a burst of {self._link.who} ended while this was in flight, which may have "
                "overwritten its own inputs: it is not repeated"
            )
        return controller is not None

    async def _judged(self, request: Request, error: NNError, deadline_ns: int) -> NNError:
        """The error that an execution is to raise for what it was answered."""
        if isinstance(error, InvalidArgument):
            with self._lock:
                self._drop(id(request))
            await self._memories.check(request, deadline_ns)
        elif isinstance(error, DeviceDied | DeviceUnavailable):
            self._link.check()  # Why it is over says more.
            self._start_over()
            if isinstance(error, DeviceDied):
                text = f"two bursts of {self._link.who} ended while this was in flight"
                return DeviceUnavailable(text)
        elif isinstance(error, MissedDeadlineTransient):
            self._start_over()
        return error

    def _start_over(self) -> None:
        """Hang up, and open another burst some calls later, unless somebody else is on the line.

        A burst begins nothing before the device has let go of all before it; one that was given up
        may have it for long, and the executions of a model do not wait for one another.
        """
        self._calls = -_PAUSE
        if not self._taken:
            self._hang_up()

    def _hang_up(self) -> None:
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.close(DeviceUnavailable(f"{self._link.who} was closed"))
        with self._lock:
            self._known.clear()
            self._uses.clear()
            self._gone.clear()

    async def _once(self, request: Request, config: ExecutionConfig) -> Outcome | None:
        """What comes of sending it once; None without a line that can take it."""
        holder = self._holder = object()
        outcome: Outcome | int | None = None
        deadline_ns = config.deadline_ns
        try:
            if self._turns.here.is_half_spent():
                await self._turns.next()
            if self._closed:
                return None
            controller = self._controller or await self._opened(deadline_ns)
            if controller is None:
                return None
            arguments = self._encoded(controller, request)
            if arguments is None:
                return None
            began_ns = now_ns()
            try:
                outcome = controller.ask(arguments, config)
            except InvalidArgument:
                with self._lock:
                    self._drop(id(request))
                return None  # It is too large for the queue, but perhaps not for the socket.
            except (DeviceDied, DeviceUnavailable) as error:
                self._link.check()
                raise _NotSent from error
            self._turns.here.spend(now_ns() - began_ns)
        finally:
            if not isinstance(outcome, int):
                self._let_go(holder)
        if isinstance(outcome, int):
            return await self._followed(outcome, deadline_ns, holder)
        return outcome

    async def _followed(self, serial: int, deadline_ns: int, holder: object) -> Outcome:
        """Wait for an answer; the line is free again when it is there, whoever still waits."""
        over = Fence()
        outcomes: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            self._let_go(holder)
            over.signal()

        controller = self._controller
        if controller is None:
            self._let_go(holder)
            self._link.check()
            raise DeviceUnavailable(f"{self._link.who} was closed")
        given_up = False

        def give_up() -> None:
            nonlocal given_up
            given_up = True
            controller.cancel(serial)

        controller.follow(serial, done)
        try:
            await self._link.settled(over, deadline_ns, give_up)
        except BaseException:
            if given_up or over.error is not None:
                self._let_go(holder)
                self._start_over()
            raise
        return outcomes[0]

    async def _opened(self, deadline_ns: int) -> BurstController | None:
        """A burst for the line; None where there is none, now or, if there is no room, for good."""
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        try:
            context = await self._configure(controller, requests, results, deadline_ns=deadline_ns)
        except MissedDeadline:
            raise
        except (DeviceDied, DeviceUnavailable):
            self._link.check()
            self._start_over()
            return None
        except (Refused, InvalidArgument, GeneralFailure) as error:
            vlog.driver("%s: executions take the socket: %s", self._link.who, error)
            self._closed = True
            return None
        controller.attach(context)
        self._controller = controller
        if self._closed:
            self._hang_up()
            return None
        return controller

    def _encoded(self, controller: BurstController, request: Request) -> bytes | None:
        """The arguments of a request, encoded once; its memory has slots while it lives.

        None where no slot is free.
        """
        key = id(request)
        known = self._known.get(key)
        if known is not None and known.is_of(request) and not self._gone:
            return known.arguments
        self._link.do_chores()
        with self._lock:
            self._drop_all()
            known = self._known.get(key)
            if known is None:
                if len(self._uses) + len(request.pools) > MOST_SLOTS:
                    return None
                known = self._known[key] = self._new(controller, request)
            return known.arguments

    def _new(self, controller: BurstController, request: Request) -> _Known:
        pools = tuple(pool for pool in request.pools if not isinstance(pool, int))
        try:
            arguments = controller.encode(request)
        except BaseException as error:
            self._free(controller, pools)
            if isinstance(error, TypeError | OverflowError):
                raise InvalidArgument(f"a request cannot be sent to a service: {error}") from error
            raise
        self._uses.update(map(id, pools))
        key = id(request)
        return _Known(weakref.ref(request, lambda _: self._lost(key)), arguments, pools)

    def _lost(self, key: int) -> None:
        """A request is no more; on any thread, amidst anything."""
        self._gone.append(key)
        self._link.run_soon(self._sweep)

    def _sweep(self) -> None:
        with self._lock:
            self._drop_all()

    def _drop_all(self) -> None:
        while self._gone:
            self._drop(self._gone.popleft())

    def _drop(self, key: int) -> None:
        """Forget a request, and free what no other one has in it."""
        known, controller = self._known.pop(key, None), self._controller
        if known is None:
            return
        self._uses.subtract(map(id, known.pools))
        if controller is not None:
            self._free(controller, known.pools)

    def _free(self, controller: BurstController, pools: Sequence[Memory]) -> None:
        for pool in pools:
            if not self._uses[id(pool)]:
                del self._uses[id(pool)]
                controller.free(pool)
