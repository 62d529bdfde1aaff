"""The memory of executions that come over a network, in which values land and outputs lie.

Such memory and the request on it are kept for the next execution of the same form, for which the
device has the request bound already. Those whose execution failed are dropped, since the device may
still write there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from nnasync._core.service.served_memories import Usage
from nnasync._core.wire.framing import Landing
from nnasync._core.wire.messages import decode
from nnasync._core.wire.network_messages import Run, RunForm, places
from nnasync.device import PreparedModel
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import Request, RequestArgument
from nnasync.memory import Pool

_IDLE = 64
"""Idle requests of one client that are kept."""


class ServedRequest(Landing):
    """The memory in which one execution at a time has its inputs and its outputs."""

    __slots__ = ("key", "outputs", "owner", "pool", "prepared", "request")

    def __init__(
        self, owner: ServedRequests, key: tuple[int, bytes], prepared: PreparedModel, form: RunForm
    ) -> None:
        """Raises InvalidArgument for places outside of its memory."""
        self.owner = owner
        self.key = key
        self.prepared = prepared
        self.pool = Pool.allocate(max(form.size, 1))
        super().__init__(_views(self.pool, form.inputs, form.size))
        self.outputs = _views(self.pool, form.outputs, form.size)
        self.request = Request(form.inputs, form.outputs, (self.pool, *form.tokens))

    def drop(self) -> None:
        """Gives the request back; values that landed there are not wanted."""
        self.owner.give(self)


class ServedRequests:
    """The requests of one client with their memory."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._lock = threading.Lock()
        self._idle: OrderedDict[tuple[int, bytes], list[ServedRequest]] = OrderedDict()
        self._count = 0
        self._closed = False

    def take(self, message: Run, prepared: PreparedModel) -> ServedRequest:
        """Returns a request for an execution; raises InvalidArgument, ResourceExhausted."""
        key = message.prepared, message.form
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                self._count -= 1
                served = idle.pop()
                if not idle:
                    del self._idle[key]
                return served
        return self._made(key, prepared)

    def give(self, served: ServedRequest) -> None:
        """Takes back a request that nobody uses any more; from any thread."""
        served.message = None
        with self._lock:
            if self._closed:
                return
            self._idle.setdefault(served.key, []).append(served)
            self._idle.move_to_end(served.key)
            self._count += 1
            old = self._oldest() if self._count > _IDLE else None
        if old is not None:
            self.drop(old)

    def drop(self, served: ServedRequest) -> None:
        """Forgets a request, which its users keep."""
        self._usage.give(served.pool.size, 1)
        served.pool.close()

    def forget(self, prepared: int) -> None:
        """Drops the requests of a prepared model that is closed."""
        with self._lock:
            keys = [key for key in self._idle if key[0] == prepared]
            old = [served for key in keys for served in self._idle.pop(key)]
            self._count -= len(old)
        for served in old:
            self.drop(served)

    def close(self) -> None:
        """Drops all requests."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            self._count = 0

    def _oldest(self) -> ServedRequest:
        key = next(iter(self._idle))
        served = self._idle[key].pop()
        if not self._idle[key]:
            del self._idle[key]
        self._count -= 1
        return served

    def _made(self, key: tuple[int, bytes], prepared: PreparedModel) -> ServedRequest:
        try:
            form: RunForm = decode(key[1], RunForm)
        except GeneralFailure as error:
            raise InvalidArgument(f"no legal request: {error}") from error
        size = max(form.size, 1)
        self._usage.take(size, 1)
        try:
            return ServedRequest(self, key, prepared, form)
        except BaseException:
            self._usage.give(size, 1)
            raise


def _views(pool: Pool, arguments: tuple[RequestArgument, ...], size: int) -> list[memoryview]:
    views = []
    for offset, length in places(arguments):
        if offset < 0 or length < 0 or offset + length > size:
            raise InvalidArgument(f"{length} bytes at {offset} are outside of {size} bytes")
        views.append(pool.view[offset : offset + length])
    return views
