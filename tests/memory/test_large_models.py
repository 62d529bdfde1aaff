"""100 MB of constants on their way to a service: beside the socket, and copied once at most."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service import isolate
from nnasync.memory import Pool, statistics
from tests import rigs
from tests.service.rig import served

pytestmark = [
    pytest.mark.one_loop("The loop has no part in it, and the model is large."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks", "collected"),
]

UNITS, INPUTS = 6400, 4096
NBYTES = 4 * UNITS * INPUTS
MB = 10**6


def large() -> nn.Model:
    """FULLY_CONNECTED whose weights are zeroes in shared memory, which takes none before use."""
    builder = nn.ModelBuilder("large")
    x = builder.input("x", (1, INPUTS))
    small = np.zeros((UNITS, INPUTS), np.float32)
    builder.output("y", builder.fully_connected(x, small, np.zeros(UNITS, np.float32)))
    model = builder.build()
    return msgspec.structs.replace(model, pools=(Pool.allocate(model.pools[0].size),))


@asynccontextmanager
async def all_given_back() -> AsyncIterator[None]:
    """Wait for the threads that read models: they let go of them a little later."""
    before = statistics().pools
    yield
    await rigs.until(lambda: statistics().pools == before)


async def test_to_a_service_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not trust its client, who could change the constants later."""
    read: list[int] = []
    preadv = os.preadv

    def counting(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        read.append(preadv(fd, buffers, offset, flags))
        return read[-1]

    monkeypatch.setattr(os, "preadv", counting)
    async with all_given_back(), served(NullEngine()) as it:
        model = large()
        assert NBYTES > 100 * MB
        before = statistics().allocated_bytes
        prepared = await it.device.prepare_model(model)
        connection = it.device.link.connection
        assert connection.sent_bytes + connection.received_bytes < MB
        assert sum(read) == model.pools[0].size
        assert statistics().allocated_bytes - before < 1.01 * NBYTES
        await prepared.close()
        del model, prepared


async def test_to_a_service_of_our_own_process() -> None:
    """It trusts its client: nothing is copied, and the pages of both are the same."""
    async with all_given_back(), served(NullEngine(), trusts=True) as it:
        model = large()
        before = statistics().allocated_bytes
        prepared = await it.device.prepare_model(model)
        assert it.device.link.connection.sent_bytes < MB
        assert statistics().allocated_bytes == before
        await prepared.close()
        del model, prepared


async def test_to_an_isolated_device() -> None:
    device = await isolate(rigs.REFERENCE)
    try:
        prepared = await device.prepare_model(large())
        connection = device.link.connection
        assert connection.sent_bytes + connection.received_bytes < MB
        await prepared.close()
    finally:
        await device.close()
