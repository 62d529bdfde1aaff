"""A wire between a client and a service, which a test can stop: then nothing arrives any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.lowlevel

from nnasync._core.drivers.service.network_source import host_and_port


class Wire:
    """Forwards bytes both ways until `cut`, and again from `mend` on."""

    def __init__(self, address: str) -> None:
        self._to = host_and_port(address)
        self._whole = anyio.Event()
        self._whole.set()
        self._streams: list[anyio.abc.ByteStream] = []
        self.address = ""

    def cut(self) -> None:
        """Have nothing arrive, and no connection end: a partition of the network."""
        self._whole = anyio.Event()

    def mend(self) -> None:
        """Let it pass again."""
        self._whole.set()

    async def end(self) -> None:
        """Close the connections that there are."""
        streams, self._streams = self._streams, []
        for each in streams:
            await each.aclose()

    async def forward(self, near: anyio.abc.SocketStream) -> None:
        """Serve one connection."""
        async with near, await anyio.connect_tcp(*self._to) as far:
            self._streams += [near, far]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._copy, near, far)
                await self._copy(far, near)
                tasks.cancel_scope.cancel()

    async def _copy(self, source: anyio.abc.ByteStream, to: anyio.abc.ByteStream) -> None:
        try:
            while True:
                data = await source.receive()
                await self._whole.wait()
                await to.send(data)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            with anyio.CancelScope(shield=True):
                await source.aclose()
                await to.aclose()


@asynccontextmanager
async def wired(address: str) -> AsyncIterator[Wire]:
    """A wire to an address; its own is what a client connects to."""
    wire = Wire(address)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        wire.address = f"tcp://127.0.0.1:{port}"
        tasks.start_soon(listener.serve, wire.forward)
        try:
            yield wire
        finally:
            wire.mend()
            tasks.cancel_scope.cancel()
