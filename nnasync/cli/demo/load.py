"""The LOW load: clients that ask a network again as soon as it has answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from nnasync import now_ns
from nnasync.errors import Refused
from nnasync.hal import Array

_IN_FLIGHT = 2


class LowLoad:
    """`clients` that call `network` in turn with the arrays of `inputs`, for ever.

    Each keeps two calls in flight, so that a core never waits for the loop to send the next one.
    Another number of `clients` holds from the next `run` on.
    """

    def __init__(
        self, network: Callable[[Array], Awaitable[Any]], inputs: Sequence[Array], clients: int
    ) -> None:
        self._network = network
        self._inputs = inputs
        self.clients = clients
        self.answered = 0
        self.refused = 0

    async def run(self) -> None:
        """Load until cancelled."""
        async with anyio.create_task_group() as tasks:
            for lane in range(_IN_FLIGHT * self.clients):
                tasks.start_soon(self._keep_calling, lane)

    async def rate_hz(self, seconds: float) -> float:
        """Answers a second of a load that runs for that long; the first answers do not count."""
        if not self.clients:
            return 0.0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.run)
            await anyio.sleep(min(seconds / 4, 0.5))
            before, start_ns = self.answered, now_ns()
            await anyio.sleep(seconds)
            rate_hz = (self.answered - before) * 1e9 / (now_ns() - start_ns)
            tasks.cancel_scope.cancel()
        return rate_hz

    async def _keep_calling(self, turn: int) -> None:
        while True:
            try:
                await self._network(self._inputs[turn % len(self._inputs)])
                self.answered += 1
            except Refused:
                self.refused += 1
                await anyio.sleep(0.01)
            turn += 1
