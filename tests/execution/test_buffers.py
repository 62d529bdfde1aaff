"""Buffers in place of arrays, on a device of this process and on one behind a socket."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from tests.rigs import (
    INLINE,
    ONES,
    POOL,
    REFERENCE,
    ROW,
    SHAPE,
    calculator,
    counter,
    doubler,
    runtime,
    until,
)
from tests.service.rig import served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@asynccontextmanager
async def opened(place: str, engine: Any = REFERENCE) -> AsyncIterator[nn.Runtime]:
    """A runtime whose only device is in this process, on a worker or inline, or in a service."""
    if place == "service":
        async with served(engine) as it, runtime(it.device) as rt:
            yield rt
    else:
        async with runtime(engine, options=INLINE if place == "inline" else POOL) as rt:
            yield rt


everywhere = pytest.mark.parametrize("place", ["worker", "inline", "service"])


def open_doubler() -> nn.Model:
    m = nn.ModelBuilder("open")
    x = m.input("x", (0, 4))
    m.output("y", m.add(x, x))
    return m.build()


@everywhere
async def test_one_network_writes_what_another_reads(place: str) -> None:
    async with opened(place) as rt:
        first, second = await rt.compile(doubler()), await rt.compile(doubler())
        async with await rt.allocate(first.output_role("y"), second.input_role("x")) as between:
            assert not between.is_shared
            assert between.shape == SHAPE
            assert between.dtype == np.float32
            for times in range(1, 6):
                assert await first(times * ROW, out=between) is between
                assert (await second(between)).tolist() == (4 * times * ROW).tolist()
                assert (await between.read()).tolist() == (2 * times * ROW).tolist()


@everywhere
async def test_a_chain_of_launches(place: str) -> None:
    async with opened(place) as rt:
        nets = [await rt.compile(doubler()) for _ in range(3)]
        roles = [(a.output_role(), b.input_role()) for a, b in itertools.pairwise(nets)]
        buffers = [await rt.allocate(*each) for each in roles]
        for times in range(1, 4):
            launched = await nets[0].launch(times * ROW, out=buffers[0])
            assert launched.outputs == (buffers[0],)
            launched = await nets[1].launch(
                launched.outputs, out={"y": buffers[1]}, wait_for=[launched]
            )
            last = await nets[2].launch(buffers[1], wait_for=[launched])
            assert (await last.result()).tolist() == (8 * times * ROW).tolist()
            assert await launched.result() is buffers[1]
            assert (await buffers[1].read()).tolist() == (4 * times * ROW).tolist()
            with pytest.raises(InvalidArgument, match="takes buffers"):
                await nets[0].launch(ROW, out=np.empty(SHAPE, np.float32))
        for each in buffers:
            await each.close()


@everywhere
async def test_calls_of_a_burst(place: str) -> None:
    async with opened(place) as rt:
        net = await rt.compile(doubler())
        x, y = await rt.allocate(net.input_role()), await rt.allocate(net.output_role())
        async with net.burst() as burst:
            for times in range(1, 6):
                await x.write(times * ROW)
                assert await burst(x, out=y) is y
                assert (await burst(x)).tolist() == (2 * times * ROW).tolist()
                assert (await y.read()).tolist() == (2 * times * ROW).tolist()
                assert (await burst(ROW)).tolist() == (2 * ROW).tolist()
                assert await burst({"x": ROW}, out={"y": y}) is y
            await x.close()
            with pytest.raises(BadState, match="closed"):
                await burst(x)
        await y.close()


@everywhere
async def test_state_that_the_application_hands_over(place: str) -> None:
    """Two buffers take turns: no state is seen by the client."""
    async with opened(place) as rt:
        net = await rt.compile(counter_without_state())
        roles = net.input_role("total"), net.output_role("new")
        buffers = [await rt.allocate(*roles) for _ in range(2)]
        await buffers[0].write(np.zeros(SHAPE, np.float32))
        for n in range(1, 9):
            y, new = await net(ROW, buffers[0], out={"new": buffers[1]})
            assert y.tolist() == (n * ROW).tolist()
            assert new is buffers[1]
            buffers.reverse()
        with pytest.raises(InvalidArgument, match="input of the same request"):
            await net(ROW, buffers[0], out={"new": buffers[0]})
        for each in buffers:
            await each.close()


def counter_without_state() -> nn.Model:
    builder = nn.ModelBuilder("counter")
    x, total = builder.input("x", SHAPE), builder.input("total", SHAPE)
    new = builder.add(total, x)
    builder.output("y", builder.mul(new, 1.0))
    builder.output("new", new)
    return builder.build()


@everywhere
async def test_arrays_and_buffers_side_by_side(place: str) -> None:
    async with opened(place) as rt:
        net = await rt.compile(calculator())
        a, total = await rt.allocate(net.input_role("a")), await rt.allocate(net.output_role("sum"))
        await a.write(ROW)
        given = np.empty(SHAPE, np.float32)
        for out, kinds in (
            ((total, None), (total, None)),
            ((total, given), (total, given)),
            ({"sum": total}, (total, None)),
            ({"product": given}, (None, given)),
            ({}, (None, None)),
            ((None, given), (None, given)),
        ):
            given[...] = 0
            found = await net(a, 3 * ONES, out=out)
            for each, kind in zip(found, kinds, strict=True):
                assert kind is None or each is kind
            sums = await total.read() if found[0] is total else found[0]
            assert sums.tolist() == (ROW + 3).tolist()
            assert found[1].tolist() == (3 * ROW).tolist()
        for wrong in ((total,), {"difference": given}, (total, given[:, :3]), (given, total)):
            with pytest.raises(InvalidArgument, match=r"out"):
                await net(a, ONES, out=wrong)
        (sums, products), timing = await net.measured(a, ONES, out=(total, None))
        assert sums is total
        assert timing.time_in_driver_ns >= timing.time_on_device_ns >= 0
        assert products.tolist() == ROW.tolist()
        await a.close()
        await total.close()


@everywhere
async def test_a_shape_that_is_known_with_the_contents(place: str) -> None:
    async with opened(place) as rt:
        net = await rt.compile(open_doubler())
        x, y = (
            await rt.allocate(net.input_role(), shape=(0, 4)),
            await rt.allocate(net.output_role()),
        )
        assert x.shape == (0, 4)
        with pytest.raises(GeneralFailure, match="nothing was written"):
            await x.read()
        for rows in (2, 5, 1):
            value = np.full((rows, 4), rows, np.float32)
            await x.write(value)
            assert x.shape == value.shape
            assert (await net(x)).tolist() == (2 * value).tolist()
            assert await net(x, out=y) is y
            assert y.shape == value.shape
            assert (await y.read()).tolist() == (2 * value).tolist()
            assert await net(value + 1, out={"y": y}) is y
            assert (await y.read()).tolist() == (2 * value + 2).tolist()
        with pytest.raises(InvalidArgument, match="does not fit"):
            await x.write(np.zeros((2, 3), np.float32))
        with pytest.raises(InvalidArgument):
            await net(x, out=x)
        await x.close()
        with pytest.raises(BadState, match="closed"):
            await net(x)
        await y.close()


@everywhere
async def test_what_reads_and_writes_refuse(place: str) -> None:
    async with opened(place) as rt:
        net = await rt.compile(doubler())
        buffer = await rt.allocate(net.input_role())
        with pytest.raises(GeneralFailure, match="not initialized"):
            await buffer.read()
        with pytest.raises(GeneralFailure, match="not initialized"):
            await net(buffer)
        for wrong in (np.zeros(SHAPE), np.zeros((4,), np.float32), "text", None):
            with pytest.raises(InvalidArgument):
                await buffer.write(wrong)
        await buffer.write(ROW.tolist())
        out = np.empty(SHAPE, np.float32)
        assert await buffer.read(out) is out
        assert out.tolist() == ROW.tolist()
        for wrong_out in (np.empty(SHAPE), np.empty((4,), np.float32)):
            with pytest.raises(InvalidArgument, match="out must be"):
                await buffer.read(wrong_out)
        with pytest.raises(TypeError, match="read"):
            np.asarray(buffer)
        await buffer.close()
        await buffer.close()
        for refused in (buffer.read(), buffer.write(ROW), net(buffer), net.launch(buffer)):
            with pytest.raises(BadState, match="closed"):
                await refused


@everywhere
async def test_a_buffer_is_used_in_its_roles_only(place: str) -> None:
    async with opened(place) as rt:
        net, other = await rt.compile(calculator()), await rt.compile(doubler())
        async with await rt.allocate(net.input_role("a")) as a:
            await a.write(ROW)
            for refused in (
                net(ROW, a),
                net(a, ROW, out=(a, None)),
                other(a),
                other.launch(a),
                other.launch(ROW, out=a),
            ):
                with pytest.raises(InvalidArgument, match="was not allocated for"):
                    await refused
            async with other.burst() as burst:
                with pytest.raises(InvalidArgument, match="was not allocated for"):
                    await burst(ROW, out=a)
                assert (await burst(ROW)).tolist() == (2 * ROW).tolist()
            assert (await net(a, ONES))[0].tolist() == (ROW + 1).tolist()


@everywhere
async def test_a_failed_call_leaves_no_contents(place: str) -> None:
    def compute(inputs: Any) -> Any:
        if inputs[0][0, 0] < 0:
            raise RuntimeError("negative")
        return [inputs[0] * 2]

    async with opened(place, NullEngine(compute=compute)) as rt:
        net = await rt.compile(doubler())
        async with await rt.allocate(net.output_role()) as y, net.burst() as burst:
            for call in (net, burst):
                await call(ROW, out=y)
                assert (await y.read()).tolist() == (2 * ROW).tolist()
                with pytest.raises(GeneralFailure, match="negative"):
                    await call(-ROW, out=y)
                with pytest.raises(GeneralFailure, match="not initialized"):
                    await y.read()


@everywhere
async def test_a_dropped_buffer_is_given_back_when_its_launch_is_done(place: str) -> None:
    async with opened(place) as rt:
        net = await rt.compile(doubler())
        first = nn.Fence()
        buffer = await rt.allocate(net.input_role())
        await buffer.write(ROW)
        launched = await net.launch(buffer, wait_for=[first])
        del buffer
        first.signal()
        assert (await launched.result()).tolist() == (2 * ROW).tolist()


@pytest.mark.parametrize("options", [POOL, INLINE], ids=["worker", "inline"])
async def test_a_buffer_that_is_dropped_after_calls_is_given_back(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(doubler())
        device: Any = rt.devices[0]
        async with net.burst() as burst:
            for _ in range(3):
                x, y = await rt.allocate(net.input_role()), await rt.allocate(net.output_role())
                await x.write(ROW)
                await net(x, out=y)
                await burst(x, out=y)
                await (await net.launch(x, out=y)).result()
                assert device._buffers.statistics().buffers == 2
                del x, y
                await until(lambda: device._buffers.statistics().buffers == 0)


async def test_a_scalar() -> None:
    m = nn.ModelBuilder("scaled")
    x = m.input("x", SHAPE)
    m.output("y", m.mul(x, x))
    m.output("size", m.operation(nn.OperationType.RANK, x))
    async with runtime() as rt:
        net = await rt.compile(m.build())
        async with await rt.allocate(net.output_role("size")) as size:
            assert size.shape == ()
            await net(ROW, out={"size": size})
            assert (await size.read()).tolist() == 2
            with pytest.raises(InvalidArgument, match="does not fit"):
                await size.write([1])


async def test_a_network_with_states_takes_buffers_too() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with await rt.allocate(net.input_role("x")) as x, net.burst() as burst:
            await x.write(ROW)
            for n in range(1, 5):
                assert (await burst(x)).tolist() == (n * ROW).tolist()
            assert (await net(x)).tolist() == ROW.tolist()
