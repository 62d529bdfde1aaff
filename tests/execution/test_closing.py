"""The ends of networks: with a block, by hand, and what a call gives besides its value."""

from __future__ import annotations

import asyncio

import pytest

import nnasync as nn
from nnasync._core.runtime.compile_request import PendingNet
from nnasync.errors import BadState
from tests.rigs import REFERENCE, ROW, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


async def test_a_block_closes_its_network() -> None:
    async with runtime(REFERENCE) as rt:
        async with rt.compile(doubler()) as net:
            assert (await net(ROW)).tolist() == (2 * ROW).tolist()
        with pytest.raises(BadState, match="closed"):
            await net(ROW)
        async with await rt.compile(doubler()) as net:
            assert (await net(ROW)).tolist() == (2 * ROW).tolist()
        with pytest.raises(BadState, match="closed"):
            await net(ROW)


async def test_a_compilation_that_fails_leaves_nothing_to_close() -> None:
    async with runtime(REFERENCE) as rt:
        with pytest.raises(nn.InvalidArgument):
            async with rt.compile(doubler(), devices=["none such"]):
                raise AssertionError("there is no network")


async def test_what_compile_returns_is_a_coroutine_to_tasks() -> None:
    async with runtime(REFERENCE) as rt:
        pending = rt.compile(doubler())
        assert isinstance(pending, PendingNet)
        assert asyncio.iscoroutine(pending)
        net = await pending
        await net.aclose()
        await net.aclose()
        unused = rt.compile(doubler())
        unused.close()


async def test_measured_calls_give_value_and_timing() -> None:
    async with runtime(REFERENCE) as rt, rt.compile(doubler()) as net:
        value, timing = await net.measured(ROW)
        assert value.tolist() == (2 * ROW).tolist()
        assert 0 <= timing.time_on_device_ns <= timing.time_in_driver_ns
        async with net.burst() as burst:
            found = await burst.measured(ROW)
        assert found.value.tolist() == (2 * ROW).tolist()
        assert 0 <= found.timing.time_on_device_ns <= found.timing.time_in_driver_ns


async def test_results_by_the_names_of_the_outputs() -> None:
    m = nn.ModelBuilder("two")
    x = m.input("x", (1, 4))
    m.output("twice", m.add(x, x))
    m.output("square", m.mul(x, x))
    async with runtime(REFERENCE) as rt:
        async with rt.compile(m.build()) as net:
            found = net.as_dict(await net(ROW))
            assert list(found) == ["twice", "square"]
            assert found["square"].tolist() == (ROW * ROW).tolist()
        async with rt.compile(doubler()) as net:
            (value,) = net.as_dict(await net(ROW)).values()
            assert value.tolist() == (2 * ROW).tolist()
