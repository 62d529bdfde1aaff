"""Buffers of a device under test, requests with them, and the ways to execute those."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync._core.clock import now_ns
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.engine_device.engine_buffer import EngineBuffer
from nnasync.errors import Cancelled
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    DataLocation,
    ExecutionConfig,
    Request,
    RequestArgument,
    Shape,
)
from nnasync.memory import Pool
from tests.engine_device.rig import (
    BYTES,
    Rig,
    Row,
    look_cheap,
)

PATHS = ["execute", "execute_synchronously", "execute_fenced", "inline", "burst"]
IN, OUT = [BufferRole(0, 0)], [BufferRole(0, 0)]
WHOLE = RequestArgument(location=DataLocation(0, 0, 0))
ROW = np.array([[1, 2, 3, 4]], np.float32)


async def allocated(
    rig: Rig, prepared: EnginePreparedModel, dimensions: Shape = (), **roles: Any
) -> EngineBuffer:
    buffer = await rig.device.allocate(
        BufferDesc(dimensions), [prepared], roles.get("inputs", IN), roles.get("outputs", OUT)
    )
    assert isinstance(buffer, EngineBuffer)
    return buffer


async def filled(buffer: EngineBuffer, value: Any = ROW) -> None:
    with Pool.allocate(value.nbytes) as pool:
        pool.array(value.dtype, value.shape)[...] = value
        await buffer.copy_from(pool, value.shape)


async def held(buffer: EngineBuffer, dtype: Any = np.float32) -> Any:
    shape = buffer.dimensions
    with Pool.allocate(int(np.prod(shape)) * np.dtype(dtype).itemsize) as pool:
        await buffer.copy_to(pool)
        return pool.array(dtype, shape).copy()


def reading(buffer: EngineBuffer, row: Row) -> Request:
    """Input from a buffer, output to a row."""
    return reading_of(buffer.token, row)


def reading_of(token: int, row: Row) -> Request:
    output = RequestArgument(location=DataLocation(1, 64, BYTES))
    return Request((WHOLE,), (output,), (token, row.pool))


def writing(buffer: EngineBuffer, row: Row) -> Request:
    """Input from a row, output to a buffer."""
    place = RequestArgument(location=DataLocation(1, 0, 0))
    return Request((row.request.inputs[0],), (place,), (row.pool, buffer.token))


async def execute(rig: Rig, prepared: Any, path: str, request: Request) -> None:
    if path == "execute_fenced":
        launched = await prepared.execute_fenced(request)
        await launched.fence
    elif path == "inline":
        look_cheap(prepared)
        result = prepared.run_now(
            request, ExecutionConfig(measure=False, deadline_ns=now_ns() + 10**12)
        )
        assert result is not None
    elif path == "burst":
        burst = prepared.open_burst()
        look_cheap(prepared)
        result = burst.ask(request, ExecutionConfig(measure=False, deadline_ns=now_ns() + 10**12))
        assert result is not None
        burst.close(Cancelled("the burst ended"))
    else:
        await getattr(prepared, path)(request)
