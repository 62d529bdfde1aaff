"""A device behind TCP, both ends in the loop of the test, with a wire between that can be cut."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

import nnasync as nn
from nnasync._core.drivers.service import ServiceDevice
from tests import rigs

KEY = b"a key that is long enough"


class Distant:
    """A service, where it listens, and its client."""

    def __init__(self, runtime: nn.Runtime, address: str, device: ServiceDevice) -> None:
        self.runtime = runtime
        self.address = address
        self.device = device


@asynccontextmanager
async def distant(
    engine: Any = rigs.REFERENCE,
    *,
    options: nn.Options = rigs.POOL,
    serving: dict[str, Any] | None = None,
    connecting: dict[str, Any] | None = None,
    guarded: bool = True,
) -> AsyncIterator[Distant]:
    """A device that is served at a free port of this machine; `guarded` tests have a time limit."""
    opened = rigs.runtime(engine, options=options) if guarded else None
    async with (
        opened or nn.open_runtime(devices=[engine], options=options) as runtime,
        anyio.create_task_group() as tasks,
    ):
        serve = functools.partial(nn.serve, **(serving or {}))
        address = await tasks.start(serve, runtime.devices[0], "tcp://127.0.0.1:0")
        device = await nn.connect(address, **(connecting or {}))
        try:
            yield Distant(runtime, address, device)
        finally:
            with anyio.CancelScope(shield=True):
                await device.close()
            tasks.cancel_scope.cancel()
