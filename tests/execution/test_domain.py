"""Which memory an application gets: of a device where it has some, shared where that is allowed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync._core.execution.buffer import allocate
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from tests.rigs import REFERENCE, ROW, SHAPE, double, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("One loop: nothing here depends on it.")]


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


def on(device: Any, *roles: Any) -> list[Any]:
    """Roles of another device."""
    return [msgspec.structs.replace(role, device=device) for role in roles]


def open_doubler() -> nn.Model:
    m = nn.ModelBuilder("open")
    x = m.input("x", (0, 4))
    m.output("y", m.add(x, x))
    return m.build()


@pytest.mark.parametrize("refusal", [None, GeneralFailure("none"), ResourceExhaustedTransient("x")])
async def test_calls_take_either(refusal: Exception | None) -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        device: Any = rt.device(REFERENCE)
        if refusal is not None:
            device = Stingy(device, refusal)
        x, y = [await allocate(on(device, role)) for role in (net.input_role(), net.output_role())]
        assert x.is_shared is y.is_shared is (refusal is not None)
        assert x.reason == ("" if refusal is None else str(refusal))
        await x.write(ROW)
        assert await net(x, out=y) is y
        assert (await y.read()).tolist() == (2 * ROW).tolist()
        launched = await net.launch(x, out=y)
        assert await launched.result() is y
        async with net.burst() as burst:
            await x.write(-ROW)
            assert await burst(x, out=y) is y
        assert (await y.read()).tolist() == (-2 * ROW).tolist()
        await x.close()
        with pytest.raises(BadState, match="closed"):
            await net(x)


@pytest.mark.parametrize(
    ("model", "shape", "is_pinned", "falls_back"),
    [
        (doubler(), (), False, True),
        (doubler(), (), True, False),
        (open_doubler(), (), False, False),
        (open_doubler(), (3, 0), False, True),
    ],
)
async def test_when_shared_memory_will_do(
    model: nn.Model, shape: tuple[int, ...], is_pinned: bool, falls_back: bool
) -> None:
    async with runtime() as rt:
        net = await rt.compile(model, devices=[REFERENCE] if is_pinned else None)
        device = Stingy(rt.device(REFERENCE), ResourceExhaustedPersistent("too large"))
        role = on(device, net.input_role())
        if falls_back:
            async with await allocate(role, shape) as memory:
                assert memory.is_shared
                assert memory.shape == (shape[:1] or (1,)) + (4,)
                assert not (await memory.read()).any()
        else:
            with pytest.raises(ResourceExhaustedPersistent, match="too large"):
                await allocate(role, shape)
        assert device.asked == 1


async def test_roles_of_several_devices_share_memory() -> None:
    async with runtime(ReferenceEngine(), NullEngine(compute=double)) as rt:
        first = await rt.compile(doubler(), devices=[REFERENCE])
        names = [device.name for device in rt.devices]
        free = [msgspec.structs.replace(first.output_role(), is_pinned=False)]
        second = await rt.compile(doubler(), devices=names[1:])
        both = [*free, msgspec.structs.replace(second.input_role(), is_pinned=False)]
        async with await allocate(both) as memory:
            assert memory.is_shared
            assert "2 devices" in memory.reason
            await first(ROW, out=memory)
            assert (await second(memory)).tolist() == (4 * ROW).tolist()
        with pytest.raises(GeneralFailure, match="2 devices"):
            await rt.allocate(first.output_role(), second.input_role())


async def test_roles_that_make_no_sense() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        for roles, shape, text in (
            ((), (), "one role"),
            (("x",), (), "net.output"),
            ((net.output_role(), net.output_role()), (), "given twice"),
            ((net.output_role(),), (2, 4), "dimensions"),
            ((net.output_role(),), "ab", "shape"),
        ):
            given: Any = roles
            with pytest.raises(InvalidArgument, match=text):
                await rt.allocate(*given, shape=shape)  # type: ignore[arg-type]  # on purpose
        for which in ("z", 1, -1):
            with pytest.raises(InvalidArgument, match="there are: x"):
                net.input_role(which)
        other = msgspec.structs.replace(doubler(), name="other")
        quantized = nn.ModelBuilder("quantized")
        x = quantized.input("x", SHAPE, type=nn.OperandType.TENSOR_INT32)
        quantized.output("y", quantized.add(x, x))
        integers = await rt.compile(quantized.build())
        floats = await rt.compile(other)
        with pytest.raises(InvalidArgument, match="TENSOR_INT32"):
            await rt.allocate(floats.output_role(), integers.input_role())


async def test_memory_for_an_input_of_another_type() -> None:
    async with runtime() as rt:
        builder = nn.ModelBuilder("integers")
        x = builder.input("x", SHAPE, type=nn.OperandType.TENSOR_INT32)
        builder.output("y", builder.add(x, x))
        net = await rt.compile(builder.build())
        async with await rt.allocate(net.input_role("x")) as x_buffer:
            assert x_buffer.dtype == np.int32
            await x_buffer.write([[1, 2, 3, 4]])
            assert (await net(x_buffer)).tolist() == [[2, 4, 6, 8]]


async def test_roles_by_their_older_names_warn() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        with pytest.warns(DeprecationWarning, match="input is called input_role") as caught:
            assert net.input("x") == net.input_role("x")
        assert caught[0].filename == __file__
        with pytest.warns(DeprecationWarning, match="output_role"):
            assert net.output().port is net.outputs[0]
