"""A device served over a pair of sockets, both halves in the loop of the test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from nnasync._core.drivers.service import ServiceDevice
from nnasync._core.drivers.service.child import Peer
from nnasync._core.service import Limits, serve_connected
from nnasync._core.service.client_session import Session
from nnasync.device import Device
from nnasync.hal import DataLocation, Request, RequestArgument
from nnasync.memory import Pool
from tests import rigs


class Pairs:
    """Connections to sessions that a test runs; a second one is there for who comes again."""

    def __init__(self, count: int) -> None:
        self.pairs = [socket.socketpair() for _ in range(count)]
        self._next = 0

    restarts = False

    def open(self) -> Peer:
        ours, _ = self.pairs[self._next]
        self._next += 1
        return Peer(ours)

    def close(self) -> None:
        for pair in self.pairs:
            for end in pair:
                end.close()


class Served:
    """A service and what the test holds of it."""

    def __init__(self, runtime: nn.Runtime, device: Any, source: Pairs) -> None:
        self.runtime = runtime
        self.device = device
        self.source = source

    def disconnect(self, number: int = 0) -> None:
        """End a connection from the side of the service, as its death does."""
        self.source.pairs[number][1].shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def served(
    engine: Any = "nnasync-reference",
    *,
    limits: Limits = Limits(),  # noqa: B008
    trusts: bool = False,
    connections: int = 1,
    options: nn.Options = rigs.POOL,
    wrapped: Callable[[Device], Device] = lambda device: device,
) -> AsyncIterator[Served]:
    """A client's device; the service is a runtime of its own, and serves its device `wrapped`."""
    source = Pairs(connections)
    try:
        async with (
            rigs.runtime(engine, options=options) as runtime,
            anyio.create_task_group() as tasks,
        ):
            inner = wrapped(runtime.devices[0])
            for _, theirs in source.pairs:
                if trusts:
                    tasks.start_soon(serve_connected, inner, theirs, limits)
                else:
                    tasks.start_soon(Session(inner, theirs, limits, trusts=False).run)
            device = await ServiceDevice.open(source, "served")
            try:
                yield Served(runtime, device, source)
            finally:
                with anyio.CancelScope(shield=True):
                    await device.close()
                tasks.cancel_scope.cancel()
    finally:
        source.close()


class Slot:
    """Memory and a request for `rigs.doubler`."""

    def __init__(self, row: Any = rigs.ROW) -> None:
        self.pool = Pool.allocate(64)
        self.x = self.pool.array(np.float32, rigs.SHAPE, 0)
        self.y = self.pool.array(np.float32, rigs.SHAPE, 32)
        self.x[...] = row
        self.request = request_on(self.pool)


def request_on(*pools: Any) -> Request:
    """Input at 0 of the first pool, output at 32 of the last."""
    return Request(
        (RequestArgument(location=DataLocation(0, 0, 16)),),
        (RequestArgument(location=DataLocation(len(pools) - 1, 32, 16)),),
        pools,
    )
