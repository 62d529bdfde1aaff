"""What one client of a service may have at a time."""

from __future__ import annotations

import msgspec

from nnasync.errors import ResourceExhaustedPersistent, ResourceExhaustedTransient
from nnasync.hal import MAXIMUM_LOOP_TIMEOUT_NS, ExecutionConfig, Priority, Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Numbers of things per client; `clients` is for all of them together.

    Constants are copied, memory of requests is mapped: `bytes` counts both, and what descriptions
    take once they are read. `queued` is of executions, whichever way they came; `queues` of what
    carries plain ones, which is opened once a prepared model; `preparing` of compilations that run
    at once, others wait; `descriptors` of open file descriptors that came. `priority` is the
    highest that executions of a client have, whatever it asks for.
    """

    clients: int = 64
    models: int = 128
    prepared: int = 128
    memories: int = 1024
    bytes: int = 8 << 30
    calls: int = 256
    launches: int = 256
    bursts: int = 64
    queues: int = 160
    buffers: int = 256
    queued: int = 256
    preparing: int = 2
    descriptors: int = 1024
    priority: Priority = Priority.HIGH

    def check(self, what: str, now: int, more: int = 1) -> None:
        """Raises ResourceExhaustedTransient where a client has as many as it may."""
        most: int = getattr(self, what)
        if now + more > most:
            raise ResourceExhaustedTransient(f"this client has {now} {what}, the most it may have")

    def bounded(self, wanted: ExecutionConfig) -> ExecutionConfig:
        """Returns a client's configuration with bounded loops and no priority above the highest."""
        loop_timeout_ns = min(max(wanted.loop_timeout_ns, 0), MAXIMUM_LOOP_TIMEOUT_NS)
        priority = None if wanted.priority is None else min(wanted.priority, self.priority)
        return msgspec.structs.replace(wanted, loop_timeout_ns=loop_timeout_ns, priority=priority)

    def check_bytes(self, now: int, more: int) -> None:
        """Raises ResourceExhausted where a client takes more bytes than it may."""
        if more > self.bytes:
            raise ResourceExhaustedPersistent(
                f"{more} bytes are more than the {self.bytes} that a client may have"
            )
        if now + more > self.bytes:
            raise ResourceExhaustedTransient(
                f"this client has {now} bytes; {more} more are above the {self.bytes} it may have"
            )
