"""The memory that a client has handed over, and the requests that name it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from nnasync._core.service.limits import Limits
from nnasync._core.wire.connection import Frame
from nnasync._core.wire.messages import ForgetMemory, OfferMemory, PoolForm, decode
from nnasync._core.wire.model_transfer import pool_of
from nnasync.burst import BurstArguments
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
    because,
)
from nnasync.fences import fresh
from nnasync.hal import Memory, Request
from nnasync.memory import Pool, Unusable

_REMEMBERED_REQUESTS = 256
_REMEMBERED_BYTES = 4 << 10
"""A longer form is decoded again each time."""

_REMEMBERED_REFUSALS = 1024

_DECODED = 40
"""Bytes that one byte of a message may take once it is read: a small number is an object."""
_SHORT_BYTES = 4096


class Usage:
    """Counts the bytes and file descriptors that a client holds."""

    def __init__(self, limits: Limits) -> None:
        self.bytes = self.descriptors = 0
        self._limits = limits
        self._lock = threading.Lock()

    def take(self, more: int, descriptors: int = 0) -> None:
        """Counts bytes and descriptors in; raises ResourceExhausted where they are too many."""
        with self._lock:
            self._limits.check_bytes(self.bytes, more)
            if descriptors:
                self._limits.check("descriptors", self.descriptors, descriptors)
            self.bytes += more
            self.descriptors += descriptors

    def give(self, less: int, descriptors: int = 0) -> None:
        """Counts bytes and descriptors out; from any thread."""
        with self._lock:
            self.bytes -= less
            self.descriptors -= descriptors


def read_bytes(size: int) -> int:
    """Returns how many bytes a message may take once it is read; 0 if it is short."""
    return 0 if size <= _SHORT_BYTES else _DECODED * size


class Memories:
    """The pools of a client, by the numbers that it gave them.

    One that cannot be used is `Unusable`, one that was refused an error for whoever names it. Of
    those that found the table full only the last are remembered.
    """

    def __init__(self, limits: Limits, usage: Usage, *, trusts: bool) -> None:
        self._limits = limits
        self._usage = usage
        self._trusts = trusts
        self._pools: dict[int, Memory | Exception] = {}
        self._refused: dict[int, Exception] = {}
        self._came = threading.Condition()
        self._closed = False
        self._requests: OrderedDict[bytes, tuple[Request, tuple[int, ...]]] = OrderedDict()

    def offer(self, message: OfferMemory, frame: Frame) -> None:
        """Maps memory that a client offers.

        Raises what is wrong, as do later uses of its number.
        """
        if message.memory in self._pools:
            raise InvalidArgument(f"memory {message.memory} is there already")
        try:
            (fd,) = frame.take(1)
            frame.fds.append(fd)
            self._limits.check("memories", len(self._pools))
        except NNError as error:
            self._refuse(message.memory, fresh(because("memory", error)))
            raise
        self._keep(message.memory, self._mapped(message.pool, fd))
        frame.close()

    def forget(self, message: ForgetMemory) -> None:
        """Drops a memory; what still runs on it keeps it."""
        number = message.memory
        self._refused.pop(number, None)
        pool = self._pools.pop(number, None)
        if isinstance(pool, Pool):
            self._usage.give(pool.size, 1)
        if pool is not None:
            # A thread that reads a stale request is not to wait for it as for what is on its way.
            self._refuse(number, InvalidArgument(f"memory {number} was given back"))
        requests = self._requests
        for key in [key for key, (_, used) in requests.items() if message.memory in used]:
            del requests[key]

    def pool(self, number: int) -> Memory:
        """Returns the pool of a number; raises why it was refused."""
        pool = self._pools.get(number, self._refused.get(number))
        if isinstance(pool, Exception):
            raise fresh(pool)
        if pool is not None:
            return pool
        if len(self._pools) >= self._limits.memories:
            text = f"this client has {len(self._pools)} memories, the most it may have"
            raise because("memory", ResourceExhaustedTransient(text))
        raise InvalidArgument(f"memory {number} is not known to the service")

    def awaited(self, number: int, patience_s: float) -> Memory:
        """Waits for the pool of a number, on a thread that may be ahead of the loop's."""
        with self._came:
            self._came.wait_for(lambda: self.is_decided(number), patience_s)
        return self.pool(number)

    def is_decided(self, number: int) -> bool:
        """Returns whether memory came under a number, or it is known that none comes.

        From any thread.
        """
        return number in self._pools or number in self._refused or self._closed

    def request(self, encoded: bytes) -> Request:
        """Returns the request of its encoded form.

        The same bytes give the same request, bound once.
        """
        known = self._requests.get(encoded)
        if known is not None:
            return known[0]
        try:
            form: BurstArguments = decode(encoded, BurstArguments)
        except GeneralFailure as error:
            raise InvalidArgument(f"no legal request: {error}") from error
        pools = tuple(self.pool(each) if each > 0 else -each for each in form.slots)
        request = Request(form.inputs, form.outputs, pools)
        if len(encoded) <= _REMEMBERED_BYTES:
            self._requests[encoded] = (request, form.slots)
            if len(self._requests) > _REMEMBERED_REQUESTS:
                self._requests.popitem(last=False)
        return request

    def close(self) -> None:
        """Drop all of it."""
        with self._came:
            self._closed = True
            self._came.notify_all()
        self._pools.clear()
        self._refused.clear()
        self._requests.clear()

    def _mapped(self, form: PoolForm, fd: int) -> Memory | Exception:
        """Returns the memory behind a descriptor, or the error that says why there is none."""
        try:
            size = max(form.size, 0)
            self._usage.take(size, 1)
            try:
                return pool_of(form, fd, sealed=not self._trusts)
            except NNError:
                self._usage.give(size, 1)
                raise
        except GeneralFailure as error:
            return Unusable(form.kind, form.size, str(error))
        except NNError as error:
            return fresh(because("memory", error))

    def _keep(self, number: int, pool: Memory | Exception) -> None:
        with self._came:
            self._pools[number] = pool
            self._refused.pop(number, None)
            self._came.notify_all()

    def _refuse(self, number: int, error: Exception) -> None:
        """Notes that a number has no memory, and forgets the oldest such number."""
        with self._came:
            self._refused.pop(number, None)
            self._refused[number] = error
            if len(self._refused) > _REMEMBERED_REFUSALS:
                del self._refused[next(iter(self._refused))]
            self._came.notify_all()
