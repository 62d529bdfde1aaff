"""Networks whose shapes the model leaves open: inputs bring them, outputs get memory as needed."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import GeneralFailure, InvalidArgument, MissedDeadline
from nnasync.hal import OperationType
from tests.rigs import INLINE, POOL, both, runtime, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def adder(shape: nn.hal.Shape = (0, 3)) -> nn.Model:
    """Sum of two inputs, of any number of rows."""
    m = nn.ModelBuilder("adder")
    x, y = m.input("x", shape), m.input("y", shape)
    m.output("sum", m.operation(OperationType.ADD, x, y, 0, output=x))
    return m.build()


def counting(limit: float) -> nn.Model:
    """Doubles x until it is at least the limit."""
    m = nn.ModelBuilder("counting")
    x = m.input("x", (1,))

    def small(g: nn.ModelBuilder, value: Any) -> Any:
        return g.operation(OperationType.LESS, value, np.array([limit], np.float32))

    m.output("y", m.while_loop(small, lambda g, value: g.add(value, value), x))
    return m.build()


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@both
async def test_each_call_brings_its_shape(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(adder())
        for rows in (1, 5, 2000, 3):
            found = await net(ones(rows, 3), ones(rows, 3))
            assert found.shape == (rows, 3)
            assert (found == 2).all()


async def test_an_unknown_rank_and_an_empty_tensor() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder(()))
        assert (await net(ones(2, 2), ones(2, 2))).shape == (2, 2)
        assert (await net(ones(7), ones(7))).shape == (7,)
    async with runtime() as rt:
        net = await rt.compile(adder())
        assert (await net(ones(0, 3), ones(0, 3))).shape == (0, 3)


async def test_one_number_needs_no_dimensions() -> None:
    m = nn.ModelBuilder("scaled")
    x, factor = m.input("x", (0, 3)), m.input("factor", (1,))
    m.output("y", m.operation(OperationType.MUL, x, factor, 0, output=x))
    async with runtime() as rt:
        net = await rt.compile(m.build())
        for value in (2.0, np.float32(2), np.array(2, np.float32)):
            assert (await net(ones(2, 3), value)).tolist() == [[2, 2, 2]] * 2


async def test_out_and_measure() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        out = np.zeros((2, 3), np.float32)
        result, timing = await net.measured(ones(2, 3), ones(2, 3), out=out)
        assert result is out
        assert (out == 2).all()
        assert 0 < timing.time_on_device_ns <= timing.time_in_driver_ns
        with pytest.raises(InvalidArgument, match="out for 'sum' must be"):
            await net(ones(1, 3), ones(1, 3), out=out)


async def test_shapes_that_do_not_fit() -> None:
    async with runtime() as rt:
        net = await rt.compile(adder())
        with pytest.raises(
            InvalidArgument, match=r"input 'x' has shape \[2, 4\].*\[0, 3\].*any size"
        ):
            await net(ones(2, 4), ones(2, 3))
        with pytest.raises(GeneralFailure, match=r"operation 0 \(ADD\)"):
            await net(ones(2, 3), ones(5, 3))


@pytest.mark.parametrize("options", [POOL, INLINE], ids=["worker", "inline"])
async def test_a_loop_never_runs_on_the_loop_of_the_caller(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await rt.compile(counting(1000))
        before = rt.statistics().workers.inline_runs
        for _ in range(20):
            assert (await net(np.ones(1, np.float32))).tolist() == [1024]
        assert rt.statistics().workers.inline_runs == before


async def test_a_loop_without_end_misses_its_timeout_or_deadline() -> None:
    async with runtime() as rt:
        net = await rt.compile(counting(1000))
        launched = await net.launch(np.zeros(1, np.float32), loop_timeout_s=0.001)
        with pytest.raises(MissedDeadline, match="the loop took more than"):
            await launched.fence
        with pytest.raises(MissedDeadline):
            await net(np.zeros(1, np.float32), deadline=nn.within(ms=5))


async def test_an_optional_input_can_be_omitted_where_shapes_are_known() -> None:
    m = nn.ModelBuilder("svdf")
    x, feature, time = m.input("x", (1, 2)), m.input("feature", (1, 2)), m.input("time", (1, 3))
    bias, state = m.input("bias", (1,)), m.input("state", (1, 3))
    inputs = (x, feature, time, bias, state, 1, 0)
    after, y = m.operation_outputs(OperationType.SVDF, *inputs)
    m.output("after", after)
    m.output("y", y)
    async with runtime() as rt:
        net = await rt.compile(m.build())
        values = [ones(1, 2), ones(1, 2), ones(1, 3), None, ones(1, 3)]
        _, without = await net(*values)
        values[3] = ones(1)
        _, with_bias = await net(*values)
        assert (with_bias - without).tolist() == [[1]]
        async with await rt.allocate(net.input_role("x")) as x_buffer:
            await x_buffer.write(values[0])
            _, found = await net(x_buffer, *values[1:3], None, values[4])
            assert found.tolist() == without.tolist()
        with pytest.raises(GeneralFailure, match="must not be omitted"):
            await net(None, *values[1:])
        with pytest.raises(InvalidArgument, match="'bias' is None; only a plain call"):
            await net.launch(*values[:3], None, values[4])


async def given_back(net: nn.Net) -> None:
    """Wait for the bound calls: a worker answers before it gives back the one that it ran."""
    prepared: Any = net._prepared
    await until(lambda: all(binding.idle for binding in prepared._bindings.values()))


@pytest.mark.usefixtures("collected")
async def test_a_request_is_bound_once_for_calls_of_the_same_shapes() -> None:
    """Also where an optional input is omitted, or shapes change to and fro."""
    engine = NullEngine(compute=lambda inputs: [inputs[0]])
    async with runtime(engine) as rt:
        net = await rt.compile(adder())
        for rows in (1, 5, 1, 5):
            assert (await net(ones(rows, 3), ones(rows, 3))).shape == (rows, 3)
            await given_back(net)
        bound, pools = engine.counters.bind, rt.statistics().memory.pools
        for rows in (1, 5, 1, 5, 1):
            found = await net(rows * ones(rows, 3), ones(rows, 3))
            assert found.tolist() == (rows * ones(rows, 3)).tolist()
            await given_back(net)
        assert engine.counters.bind == bound
        assert rt.statistics().memory.pools == pools
        many = [anyio.Event() for _ in range(9)]

        async def call(number: int, done: anyio.Event) -> None:
            found = await net(number * ones(2, 3), ones(2, 3))
            assert (found == number).all()
            done.set()

        async with anyio.create_task_group() as group:
            for number, done in enumerate(many):
                group.start_soon(call, number, done)
        assert all(done.is_set() for done in many)
        gc.collect()
        assert rt.statistics().memory.pools <= pools + 4


async def test_a_refused_deadline_leaves_the_request_bound() -> None:
    engine = NullEngine(compute=lambda inputs: [inputs[0]])
    async with runtime(engine) as rt:
        net = await rt.compile(adder())
        for _ in range(3):
            await net.measured(ones(2, 3), ones(2, 3))
            await given_back(net)
        bound = engine.counters.bind
        for _ in range(3):
            with pytest.raises(MissedDeadline):
                await net.measured(ones(2, 3), ones(2, 3), deadline=nn.within(ms=-1))
            await net.measured(ones(2, 3), ones(2, 3))
            await given_back(net)
        assert engine.counters.bind == bound
