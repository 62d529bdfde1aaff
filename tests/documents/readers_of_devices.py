"""The reader of the page about devices in processes: there are two services on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nnasync as nn
from tests.certificates import self_signed
from tests.documents.pages import PICTURE, Page

SOCKET = "/home/me/run/litert.socket"
ADDRESS = "tcp://10.0.0.5:7007"


def with_services(page: Page) -> Iterator[None]:
    page.write_detector()
    page.space.update(x=PICTURE, cache=page.folder / "cache")
    certificate, private_key = self_signed(page.folder)
    (page.folder / "device.key").write_text("0123456789abcdef" * 4)
    (page.folder / "device.key").chmod(0o600)
    services = Services(str(page.folder / "run" / "socket"))
    connect = nn.connect

    async def connected(where: str, **options: Any) -> Any:
        return await connect(services.places[where], **options)

    page.patch.setattr(nn, "connect", connected)
    yield
    page.wait(services.open(key="device.key", certificate=certificate, private_key=private_key))
    yield
    yield
    yield
    page.wait(services.aclose())


class Services:
    """A device at a socket and at an address, until they are closed."""

    def __init__(self, path: str) -> None:
        self.places = {SOCKET: path}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, **secrets: Any) -> None:
        self._runtime = await nn.open_runtime(devices=["litert-cpu"])
        device = self._runtime.device("litert-cpu")
        for place, where, given in (
            (SOCKET, self.places[SOCKET], {}),
            (ADDRESS, "tcp://127.0.0.1:0", secrets),
        ):
            ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            served = nn.serve(device, where, task_status=Started(ready), **given)
            self._tasks.append(asyncio.create_task(served))
            self.places[place] = await ready

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runtime.aclose()


class Started:
    """Where a service says that it listens, as a task group asks it to."""

    def __init__(self, ready: asyncio.Future[str]) -> None:
        self._ready = ready

    def started(self, value: str = "") -> None:
        self._ready.set_result(value)
