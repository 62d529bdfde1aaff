"""Buffers whose shape is not known at the allocation: it comes with the contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model import ModelBuilder
from nnasync.errors import (
    GeneralFailure,
    InvalidArgument,
    OutputInsufficientSize,
    ResourceExhaustedPersistent,
)
from nnasync.hal import (
    DataLocation,
    Model,
    OperandType,
    OperationType,
    Request,
    RequestArgument,
)
from nnasync.kernels import Tensor
from nnasync.memory import Pool
from tests.engine_device.domains import OUT, allocated, execute, filled, held
from tests.engine_device.rig import (
    BYTES,
    Rig,
    Row,
    null,
)
from tests.rigs import SHAPE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("One loop: what a buffer does depends on none."),
]

Rigs = Callable[..., Rig]


def reshaper() -> Model:
    """y is x in the shape that is given, whose rank is 2."""
    m = ModelBuilder("reshaper")
    x = m.input("x", (2, 3))
    shape = m.input("shape", (2,), type=OperandType.TENSOR_INT32)
    given = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0, 0))
    m.output("y", m.operation(OperationType.RESHAPE, x, shape, output=given))
    return m.build()


class Reshape:
    """Requests for the reshaper; `y` is a token or memory."""

    def __init__(self, y: Any) -> None:
        self.pool = Pool.allocate(256)
        self.x = self.pool.array(np.dtype(np.float32), (2, 3), 0)
        self.x[...] = np.arange(6).reshape(2, 3)
        self.shape = self.pool.array(np.dtype(np.int32), (2,), 64)
        place = DataLocation(1, 0, 0 if isinstance(y, int) else y.size)
        self.request = Request(
            tuple(RequestArgument(location=DataLocation(0, at, n)) for at, n in ((0, 24), (64, 8))),
            (RequestArgument(location=place),),
            (self.pool, y),
        )


@pytest.mark.parametrize("path", ["execute", "execute_synchronously", "inline"])
async def test_shapes_that_only_the_run_tells(rigs: Rigs, path: str) -> None:
    rig = rigs(ReferenceEngine())
    prepared = await rig.prepare(reshaper())
    buffer = await allocated(rig, prepared, inputs=[])
    assert buffer.managed.memory.size == 0
    reshape = Reshape(buffer.token)
    for shape in ((3, 2), (6, 1), (2, 3), (1, 6)):
        reshape.shape[...] = shape
        result = await prepared.execute(reshape.request)
        assert result.output_shapes == (hal.OutputShape(shape),)
        assert buffer.dimensions == shape
        await execute(rig, prepared, path, reshape.request)
        assert (await held(buffer) == np.arange(6).reshape(shape)).all()
    assert buffer.managed.memory.size == 24


@pytest.mark.parametrize("path", ["execute", "execute_synchronously"])
async def test_shapes_that_the_engine_tells_when_it_is_bound(rigs: Rigs, path: str) -> None:
    rig = rigs(ReferenceEngine())
    m = ModelBuilder("open")
    m.output("y", m.relu(m.input("x", (0, 4))))
    prepared = await rig.prepare(m.build())
    buffer = await allocated(rig, prepared, inputs=[])
    whole = RequestArgument(location=DataLocation(1, 0, 0))
    for rows in (2, 5, 1):
        pool = Pool.allocate(16 * rows)
        pool.array(np.float32, (rows, 4))[...] = rows
        place = DataLocation(0, 0, 16 * rows)
        input = RequestArgument(location=place, dimensions=(rows, 4))
        await execute(rig, prepared, path, Request((input,), (whole,), (pool, buffer.token)))
        assert buffer.dimensions == (rows, 4)
        assert (await held(buffer) == rows).all()


async def test_shapes_that_the_allocation_rules_out(rigs: Rigs) -> None:
    rig = rigs(ReferenceEngine())
    prepared = await rig.prepare(reshaper())
    for dimensions, fits in (((3, 0), (3, 2)), ((0, 1), (6, 1)), ((2, 3), (2, 3))):
        buffer = await allocated(rig, prepared, dimensions, inputs=[])
        reshape = Reshape(buffer.token)
        for _ in range(2):
            reshape.shape[...] = fits
            await prepared.execute(reshape.request)
            assert buffer.dimensions == fits
            reshape.shape[...] = (1, 6)
            with pytest.raises(GeneralFailure):
                await prepared.execute(reshape.request)
            assert not buffer.is_initialized


async def test_shapes_without_room(rigs: Rigs) -> None:
    rig = rigs(ReferenceEngine())
    rig.device._buffer_limit_bytes = 20
    prepared = await rig.prepare(reshaper())
    buffer = await allocated(rig, prepared, inputs=[])
    reshape = Reshape(buffer.token)
    reshape.shape[...] = (3, 2)
    with pytest.raises(ResourceExhaustedPersistent):
        await prepared.execute(reshape.request)
    assert not buffer.is_initialized
    await filled(buffer, np.zeros((1, 5), np.float32))


async def test_an_engine_that_never_has_enough(rigs: Rigs) -> None:
    """It asks for a shape that fits in what it has, and is not asked again."""
    rig = rigs(null())
    m = ModelBuilder("open")
    m.output("y", m.relu(m.input("x", (0, 4))))
    prepared = await rig.prepare(m.build())
    buffer = await allocated(rig, prepared, outputs=OUT, inputs=[])
    engine: Any = rig.engine
    lie = OutputInsufficientSize("too small", (hal.OutputShape((1, 4), is_sufficient=False),))
    engine.fail("run", lie)
    row = Row()
    input = RequestArgument(location=DataLocation(0, 0, BYTES), dimensions=SHAPE)
    request = Request(
        (input,), (RequestArgument(location=DataLocation(1, 0, 0)),), (row.pool, buffer.token)
    )
    with pytest.raises(GeneralFailure, match="does not fit"):
        await prepared.execute(request)
    engine.heal()
    await prepared.execute(request)
    assert (await held(buffer) == 2 * row.x).all()


async def test_an_input_has_the_shape_that_was_written(rigs: Rigs) -> None:
    m = ModelBuilder("open")
    m.output("y", m.relu(m.input("x", (0, 2))))
    rig = rigs(ReferenceEngine())
    prepared = await rig.prepare(m.build())
    buffer = await allocated(rig, prepared)
    out = Pool.allocate(64)

    def request(rows: int) -> Request:
        x = RequestArgument(location=DataLocation(0, 0, 0), dimensions=(rows, 2))
        y = RequestArgument(location=DataLocation(1, 0, 64))
        return Request((x,), (y,), (buffer.token, out))

    for rows in (3, 5):
        value = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        await filled(buffer, value)
        result = await prepared.execute(request(rows))
        assert result.output_shapes == (hal.OutputShape((rows, 2)),)
        assert (out.array(value.dtype, value.shape) == value).all()
        with pytest.raises(InvalidArgument, match="holds dimensions"):
            await prepared.execute(request(4))
    closed = await allocated(rig, prepared, (3, 0))
    token, buffer = buffer.token, closed
    assert token != buffer.token
    with pytest.raises(InvalidArgument, match="its buffer of TENSOR_FLOAT32 .* has others"):
        await prepared.execute(request(4))
