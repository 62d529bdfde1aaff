"""Plain executions in a service over a message queue: a burst that carries one of them at a time.

A call over the socket wakes the loop of the service and a thread here; one over a queue finds both
sides looking for it. The line is opened by the second execution, since a model that is used once
needs none. While it is taken, further executions take the socket, so that they run side by side.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Coroutine
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
from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError, Refused
from nnasync.fences import Fence
from nnasync.hal import ExecutionResult, Memory, Request
from nnasync.tracing import vlog
from nnasync.workers.turns import Turns

__all__ = ["Line"]

_STALL_BUDGET_NS = 1_000_000
"""How long a turn of the event loop may look for answers, over all lines of a connection."""


class Configure(Protocol):
    """How a burst of the prepared model is opened."""

    def __call__(
        self, callback: BurstCallback, request_channel: Channel, result_channel: Channel, /
    ) -> Coroutine[Any, Any, BurstContext]:
        """Open it."""


class _Known(NamedTuple):
    """A request that was sent before, for as long as it lives."""

    reference: weakref.ref[Request]
    arguments: bytes
    pools: tuple[Memory, ...]


class Line:
    """The line of one prepared model."""

    def __init__(self, link: Link, configure: Configure) -> None:
        self._link = link
        self._configure = configure
        self._controller: BurstController | None = None
        self._turns = Turns(_STALL_BUDGET_NS)
        self._calls = 0
        self._taken = False
        self._closed = False
        self._known: dict[int, _Known] = {}
        self._uses: Counter[int] = Counter()
        self._gone: deque[int] = deque()

    async def run(
        self, request: Request, *, measure: bool, deadline_ns: int
    ) -> ExecutionResult | None:
        """Execute, or return None where that has to take the socket; raises what it fails with."""
        self._calls += 1
        if self._taken or self._closed or self._calls < 2:
            return None
        self._taken = True
        outcome: Outcome | int | None = None
        try:
            outcome = await self._asked(request, measure=measure, deadline_ns=deadline_ns)
        except InvalidArgument:
            pass  # It was not executed; the socket says what is wrong with it.
        finally:
            self._taken = isinstance(outcome, int)
        if isinstance(outcome, int):
            outcome = await self._followed(outcome, deadline_ns)
        if isinstance(outcome, InvalidArgument):
            return None
        if isinstance(outcome, NNError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Hang up; what is under way ends with DeviceUnavailable."""
        self._closed = True
        controller, self._controller = self._controller, None
        if controller is not None:
            controller.close(DeviceUnavailable(f"{self._link.who} was closed"))
        self._known.clear()

    async def _asked(
        self, request: Request, *, measure: bool, deadline_ns: int
    ) -> Outcome | int | None:
        """What the service answers at once, else the serial number; None without a line."""
        if self._turns.is_half_spent():
            await self._turns.next()
        controller = self._controller or await self._opened()
        if controller is None:
            return None
        arguments = self._encoded(controller, request)
        began_ns = now_ns()
        outcome = controller.ask(arguments, measure=measure, deadline_ns=deadline_ns)
        self._turns.spend(now_ns() - began_ns)
        return outcome

    async def _followed(self, serial: int, deadline_ns: int) -> Outcome:
        """Wait for an answer; the line is free again when it is there, whoever still waits."""
        over = Fence()
        outcomes: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            self._taken = False
            over.signal()

        controller = self._controller
        if controller is None:
            raise DeviceUnavailable(f"{self._link.who} was closed")
        controller.follow(serial, done)
        await self._link.settled(over, deadline_ns, lambda: controller.cancel(serial))
        return outcomes[0]

    async def _opened(self) -> BurstController | None:
        """A burst for the line; None, now and later, where there is no room for one."""
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        try:
            context = await self._configure(controller, requests, results)
        except (Refused, InvalidArgument) as error:
            vlog.driver("%s: executions take the socket: %s", self._link.who, error)
            self._closed = True
            return None
        controller.attach(context)
        if self._closed:
            controller.close(DeviceUnavailable(f"{self._link.who} was closed"))
            return None
        self._controller = controller
        return controller

    def _encoded(self, controller: BurstController, request: Request) -> bytes:
        """The arguments of a request, encoded once; its memory has slots while it lives."""
        while self._gone:
            self._forget(controller, self._gone.popleft())
        key, gone = id(request), self._gone
        known = self._known.get(key)
        if known is not None:
            return known.arguments
        arguments = controller.encode(request)
        pools = tuple(pool for pool in request.pools if not isinstance(pool, int))
        reference = weakref.ref(request, lambda _: gone.append(key))
        self._known[key] = _Known(reference, arguments, pools)
        self._uses.update(map(id, pools))
        return arguments

    def _forget(self, controller: BurstController, key: int) -> None:
        known = self._known.pop(key, None)
        for pool in () if known is None else known.pools:
            self._uses[id(pool)] -= 1
            if not self._uses[id(pool)]:
                del self._uses[id(pool)]
                controller.free(pool)
