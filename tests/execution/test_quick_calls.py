"""What makes a call quick: large inputs read where they are, calls ahead of the first."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import GeneralFailure, InvalidArgument
from tests.rigs import INLINE, ROW, attempt, both, double, doubler, gated, runtime, until_inline

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def summed() -> nn.Model:
    """A model with an input so large that it is read where it is."""
    builder = nn.ModelBuilder("summed")
    x = builder.input("x", (100, 100))
    builder.output("y", builder.add(x, x))
    return builder.build()


@both
async def test_a_large_input_of_any_form(options: nn.Options) -> None:
    """What an engine computes is a copy of what it was given, whatever its strides."""
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(summed())
        whole = np.arange(20_000, dtype=np.float32).reshape(100, 200)
        if options is INLINE:
            await until_inline(rt, net, np.zeros((100, 100), np.float32))
        for mine in (whole[:, :100].copy(), whole[:, ::2], whole[:, 100:], whole[::-1, :100]):
            assert (await net(mine) == 2 * mine).all()
            mine[...] = 0
        same = np.ones((100, 100), np.dtype("f4", copy=True))
        assert same.dtype is not net.inputs[0].dtype
        assert (await net(same) == 2).all()
        with pytest.raises(InvalidArgument, match="shape"):
            await net(whole)


async def test_a_large_input_is_copied_before_the_first_suspension() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(summed())
        mine = np.ones((100, 100), np.float32)
        call = await attempt(group, lambda: net(mine))
        await engine.when(lambda c: c.waiting == 1)
        mine[...] = 0
        engine.gate.open()
        await call.done.wait()
        assert (call.result == 2).all()


# -- calls ahead of the first


async def test_the_reference_has_made_calls_before_the_first() -> None:
    """It is measured, and so runs on the thread of the loop, and nothing of that is counted."""
    options = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=1e6)
    async with runtime(options=options) as rt:
        net = await rt.compile(doubler())
        assert rt.statistics().workers.inline_runs == 0
        assert rt.statistics().workers.worker_runs == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert rt.statistics().workers.inline_runs == 1


async def test_an_engine_that_does_not_ask_for_it_is_not_run_ahead() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=INLINE) as rt:
        net = await rt.compile(doubler())
        assert engine.counters.run == 0
        await net(ROW)
        assert engine.counters.run == 1


async def test_a_rehearsal_fails_in_silence() -> None:
    broken = False

    def compute(inputs: Any) -> Any:
        if broken:
            raise GeneralFailure("out of order")
        return double(inputs)

    async with runtime(NullEngine(compute=compute), options=INLINE) as rt:
        net = await rt.compile(doubler())
        await until_inline(rt, net, ROW)
        before = rt.statistics().workers.inline_runs
        broken = True
        await net._warm_up()
        broken = False
        assert rt.statistics().workers.inline_runs == before
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
