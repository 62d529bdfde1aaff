"""A network is warmed up: so many calls are made, with inputs like those to come, uncounted."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from tests.execution.test_flexible import adder, ones
from tests.rigs import (
    ONES,
    ROW,
    both,
    compiled,
    counter,
    double,
    doubler,
    gated,
    runtime,
    set_free,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@both
async def test_it_runs_so_often_and_counts_no_call(options: nn.Options) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await compiled(rt, doubler(), options)
        calls, runs = net._tally.calls, engine.counters.run
        await net.warm_up()
        assert engine.counters.run == runs + 8
        await net.warm_up(ROW, runs=3, priority=nn.Priority.LOW)
        assert engine.counters.run == runs + 11
        assert net._tally.calls == calls
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert net._tally.calls == calls + 1


async def test_calls_of_the_application_meanwhile_are_counted() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        calls = net._tally.calls
        group.start_soon(net.warm_up)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(net, ROW)
        await until(lambda: net._tally.calls == calls + 1)
        set_free(engine)


async def test_the_loop_turns_between_the_runs() -> None:
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with runtime() as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        group.start_soon(turning)
        await net.warm_up(runs=50)
        assert turns >= 50
        group.cancel_scope.cancel()


async def test_open_shapes_are_as_the_given_inputs() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        with pytest.raises(InvalidArgument, match=r"'x' leaves its shape open, x float32\[\?, 3\]"):
            await net.warm_up()
        await net.warm_up(ones(5, 3), ones(5, 3), runs=2)


async def test_a_state_is_as_before() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ONES)
            await net.warm_up()
            assert (await burst(ONES)).tolist() == [[2, 2, 2, 2]]


async def test_what_is_wrong_is_told() -> None:
    def compute(inputs: object) -> list[object]:
        raise GeneralFailure("out of order")

    async with runtime(NullEngine(compute=compute)) as rt:
        net = await rt.compile(doubler())
        with pytest.raises(GeneralFailure, match="out of order"):
            await net.warm_up()
        with pytest.raises(InvalidArgument, match="runs=0: warming up takes at least one run"):
            await net.warm_up(runs=0)
        with pytest.raises(InvalidArgument):
            await net.warm_up(np.ones((2, 9), np.float32))
        await net.aclose()
        with pytest.raises(BadState, match="the network is closed"):
            await net.warm_up()


def test_a_network_that_blocks_is_warmed_up_too() -> None:
    with nn.sync.open_runtime(devices=["nnasync-reference"]) as rt:
        net = rt.compile(doubler())
        net.warm_up(runs=2)
        with pytest.raises(InvalidArgument, match="runs=0"):
            net.warm_up(runs=0)
