"""One client's account: its share of the workers, the pace of its messages, its compilations."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from nnasync._core.clock import now_ns
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.prepared import EnginePreparedModel
from nnasync._core.service.limits import Limits
from nnasync._core.service.rate_limit import COMPILING_CREDIT_NS, ClientBuckets, TokenBucket
from nnasync.device import Device, PreparedModel

SERVED_CALL_NS = 100_000
"""What serving a call takes besides reading its message: a task of its own, and its answer."""

FINE_NS = 1_000_000
"""What a message that makes no sense costs more: who sends many is to be read more slowly."""

_CHARGED_NS = 500_000.0
"""What messages took is charged to the share of executions in such amounts."""


class ClientAccount:
    """Counts what one client has used; a trusted client is alone in its process, and has none."""

    def __init__(
        self, device: Device, limits: Limits, buckets: ClientBuckets | None, name: str = ""
    ) -> None:
        """`buckets` is all clients of the service, None for one that is alone.

        `name` is for statistics: who the system says it is, never what the client says.
        """
        self._client_buckets = buckets
        workers = device.workers if isinstance(device, EngineDevice) else None
        self._workers = workers if buckets is not None else None
        self._lock = threading.Lock()
        self._compilations = TokenBucket(now_ns(), COMPILING_CREDIT_NS)
        self._preparing = anyio.CapacityLimiter(limits.preparing)
        self._most_urgent = limits.priority
        self.client = 0
        self._compiles_from_ns = 0
        self._owed_ns = 0.0
        if buckets is not None:
            self._messages = buckets.join(now_ns())
        if self._workers is not None:
            self.client = self._workers.open_client(queue_limit=limits.queued, name=name)

    def own(self, prepared: PreparedModel) -> None:
        """Charges the executions of a prepared model to this client's share, and limits them."""
        if isinstance(prepared, EnginePreparedModel):
            prepared.client = self.client
            prepared.limit(self._most_urgent)

    def active(self) -> None:
        """Notes that the client does something that is paid for elsewhere."""
        if self._client_buckets is not None:
            self._messages.seen_ns = now_ns()

    def paid(self, cost_ns: float) -> float:
        """Pays for messages, from any thread; returns for how many seconds the client has to rest.

        What they take counts to its share of the workers as well, a little later.
        """
        if self._client_buckets is None:
            return 0.0
        at_ns, due_ns = now_ns(), 0.0
        with self._lock:
            others = self._client_buckets.others(self._messages, at_ns)
            rest_ns = self._messages.spend(cost_ns, at_ns, others)
            self._owed_ns += cost_ns
            if self._owed_ns >= _CHARGED_NS:
                due_ns, self._owed_ns = self._owed_ns, 0.0
        if due_ns and self._workers is not None:
            self._workers.spent(self.client, int(due_ns))
        return rest_ns * 1e-9

    def fine(self) -> None:
        """Charges a client for a message that makes no sense, from any thread."""
        self.paid(FINE_NS)

    @asynccontextmanager
    async def compiling(self) -> AsyncIterator[None]:
        """Admits a few compilations at a time, and charges them to the share of executions."""
        async with self._preparing:
            rest_ns = self._compiles_from_ns - now_ns()
            if rest_ns > 0:
                await anyio.sleep(rest_ns * 1e-9)
            begun_ns = now_ns()
            try:
                yield
            finally:
                self._compiled(now_ns() - begun_ns)

    def _compiled(self, duration_ns: int) -> None:
        if self._client_buckets is None:
            return
        at_ns = now_ns()
        others = self._client_buckets.others(self._messages, at_ns)
        self._compiles_from_ns = at_ns + self._compilations.spend(duration_ns, at_ns, others)
        if self._workers is not None:
            self._workers.spent(self.client, duration_ns)

    def close(self) -> None:
        """Notes that the client has gone."""
        if self._client_buckets is not None:
            self._client_buckets.leave(self._messages)
        if self._workers is not None:
            self._workers.close_client(self.client)


class Stopwatch:
    """Measures the processor time of one thread."""

    __slots__ = ("_at_ns",)

    def __init__(self) -> None:
        self._at_ns = time.thread_time_ns()

    def lap(self) -> int:
        """Returns the nanoseconds since the last lap."""
        before, self._at_ns = self._at_ns, time.thread_time_ns()
        return self._at_ns - before
