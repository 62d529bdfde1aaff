"""Memory of a device where it has some, and shared memory where that is allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.execution.domain import DomainMemory, MemoryRole, allocate_memory
from nnasync.hal import DataLocation, Request, RequestArgument
from nnasync.memory import Pool
from tests.rigs import POOL, SHAPE, doubler

pytestmark = pytest.mark.anyio
REFERENCE = "nnasync-reference"


@pytest.fixture
def anyio_backend() -> str:
    """One loop: nothing here depends on it."""
    return "asyncio"


class Stingy:
    """A device that allocates nothing."""

    def __init__(self, device: Any, error: Exception) -> None:
        self._device = device
        self._error = error
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    async def allocate(self, *arguments: Any) -> Any:
        self.asked += 1
        raise self._error


@asynccontextmanager
async def device_and_model(model: nn.Model) -> AsyncIterator[tuple[Any, Any]]:
    async with nn.open_runtime(devices=[REFERENCE], options=POOL) as runtime:
        device = runtime.device(REFERENCE)
        yield device, await device.prepare_model(model)


def open_doubler() -> nn.Model:
    m = nn.ModelBuilder("open")
    x = m.input("x", (0, 4))
    m.output("y", m.add(x, x))
    return m.build()


async def filled(memory: DomainMemory, value: Any) -> None:
    with Pool.allocate(value.nbytes) as pool:
        pool.array(value.dtype, value.shape)[...] = value
        await memory.copy_from(pool)


async def held(memory: DomainMemory) -> Any:
    with Pool.allocate(16) as pool:
        await memory.copy_to(pool)
        return pool.array(np.float32, SHAPE).copy()


@pytest.mark.parametrize("refusal", [None, GeneralFailure("none"), ResourceExhaustedTransient("x")])
async def test_requests_take_either(refusal: Exception | None) -> None:
    async with device_and_model(doubler()) as (true, prepared):
        device = true if refusal is None else Stingy(true, refusal)
        x, y = [
            await allocate_memory([MemoryRole(device, prepared, doubler(), kind, 0)])
            for kind in ("input", "output")
        ]
        assert x.is_shared is y.is_shared is (refusal is not None)
        assert x.reason == ("" if refusal is None else str(refusal))
        await filled(x, np.array([[1, 2, 3, 4]], np.float32))
        request = Request((x.argument(0),), (y.argument(1),), (x.pool, y.pool))
        await prepared.execute(request)
        assert (await held(y)).tolist() == [[2, 4, 6, 8]]
        with Pool.allocate(15) as pool:
            for refused in (x.copy_to(pool), x.copy_from(pool)):
                with pytest.raises(InvalidArgument):
                    await refused
        await x.close()
        await y.close()


@pytest.mark.parametrize(
    ("model", "dimensions", "is_pinned", "falls_back"),
    [
        (doubler(), (), False, True),
        (doubler(), (), True, False),
        (open_doubler(), (), False, False),
        (open_doubler(), (3, 0), False, True),
    ],
)
async def test_when_shared_memory_will_do(
    model: nn.Model, dimensions: tuple[int, ...], is_pinned: bool, falls_back: bool
) -> None:
    async with device_and_model(model) as (true, prepared):
        device = Stingy(true, ResourceExhaustedPersistent("too large"))
        role = MemoryRole(device, prepared, model, "input", 0, is_pinned=is_pinned)
        if falls_back:
            memory = await allocate_memory([role], dimensions)
            assert memory.is_shared
            assert memory.argument(0).location.length == 4 * 4 * (dimensions or (1,))[0]
            await memory.close()
            with Pool.allocate(16 * (dimensions or (1,))[0]) as pool:
                for refused in (memory.copy_to(pool), memory.copy_from(pool)):
                    with pytest.raises(GeneralFailure, match="closed"):
                        await refused
        else:
            with pytest.raises(ResourceExhaustedPersistent, match="too large"):
                await allocate_memory([role], dimensions)
        assert device.asked == 1


async def test_roles_of_several_devices_share_memory() -> None:
    async with device_and_model(doubler()) as one, device_and_model(doubler()) as other:
        first = MemoryRole(*one, doubler(), "output", 0)
        memory = await allocate_memory([first, MemoryRole(*other, doubler(), "input", 0)])
        assert memory.is_shared
        assert "2 devices" in memory.reason
        pinned = MemoryRole(*other, doubler(), "input", 0, is_pinned=True)
        with pytest.raises(GeneralFailure, match="2 devices"):
            await allocate_memory([first, pinned])


async def test_roles_of_two_models_of_one_device() -> None:
    async with device_and_model(doubler()) as (device, first):
        second = await device.prepare_model(doubler())
        written = MemoryRole(device, first, doubler(), "output", 0)
        memory = await allocate_memory([written, MemoryRole(device, second, doubler(), "input", 0)])
        assert not memory.is_shared
        with Pool.allocate(16) as pool:
            pool.array(np.float32, SHAPE)[...] = 3
            plain = RequestArgument(location=DataLocation(1, 0, 16))
            pools = (memory.pool, pool)
            await first.execute(Request((plain,), (memory.argument(0),), pools))
            await second.execute(Request((memory.argument(0),), (plain,), pools))
            assert (pool.array(np.float32, SHAPE) == 12).all()
        with pytest.raises(InvalidArgument, match="given twice"):
            await allocate_memory([written, written])
        await memory.close()
