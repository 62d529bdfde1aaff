"""Chains of launches through several processes: what crosses a border, and what is copied there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.execution.placing import carried
from nnasync.errors import Cancelled, GeneralFailure
from nnasync.fences import Fence, FenceStatus, signaled
from tests.rigs import (
    GUARD_S,
    POOL,
    REFERENCE,
    ROW,
    SHAPE,
    double,
    doubler,
    failure,
    floats,
    gated,
    set_free,
)

LITERT = "litert-cpu"

on_one_loop = pytest.mark.one_loop
"""Each starts a process; nothing in them depends on the loop that the first does not have."""


@asynccontextmanager
async def opened(here: Any, *isolated: str) -> AsyncIterator[nn.Runtime]:
    """A runtime with a device of this process, and others in processes of their own."""
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(
            devices=[here, *isolated], isolate=isolated, options=POOL
        ) as runtime:
            try:
                yield runtime
            finally:
                set_free(here)


@asynccontextmanager
async def here_and_there(engine: NullEngine) -> AsyncIterator[tuple[nn.Net, nn.Net]]:
    """A network on an engine of this process, and one on a device in a process of its own."""
    async with opened(engine, REFERENCE) as rt:
        here = await rt.compile(doubler(), devices=[engine.name])
        yield here, await rt.compile(doubler("there"), devices=[REFERENCE])


def handed_over(net: nn.Net) -> list[int]:
    """The pools that the process of a network's device has been given, by their ids."""
    prepared: Any = net._prepared
    return list(getattr(prepared, "prepared", prepared)._memories._numbers)


@pytest.mark.anyio
@pytest.mark.usefixtures("no_leaks")
async def test_a_chain_from_here_to_an_isolated_device_and_back() -> None:
    """The first time round it is copied at the border, afterwards read in place."""
    engine = gated(double)
    async with here_and_there(engine) as (here, there):
        seen = []
        for number in range(4):
            first = await here.launch(ROW + number)
            second = await there.launch(first.outputs, wait_for=[first.fence])
            third = await here.launch(second.outputs, wait_for=[second.fence])
            assert third.fence.status is FenceStatus.PENDING
            engine.gate.open(2)
            assert (await third.result()).tolist() == (8 * (ROW + number)).tolist()
            assert (await second.result()).tolist() == (4 * (ROW + number)).tolist()
            pool = first.outputs[0].pool
            seen.append((pool.is_private, id(pool) in handed_over(there)))
            del first, second, third, pool
        assert seen == [(True, False), *[(False, True)] * 3]


@pytest.mark.anyio
@on_one_loop
@pytest.mark.usefixtures("no_leaks")
async def test_what_has_ended_is_copied_at_once() -> None:
    engine = NullEngine(compute=double)
    async with here_and_there(engine) as (here, there):
        first = await here.launch(ROW)
        await first.fence
        second = await there.launch(first.outputs)
        assert (await second.result()).tolist() == (4 * ROW).tolist()


@pytest.mark.anyio
@on_one_loop
@pytest.mark.usefixtures("no_leaks")
async def test_a_failure_here_is_the_cause_of_the_failure_there() -> None:
    engine = gated(double)
    async with here_and_there(engine) as (here, there):
        engine.fail("run", GeneralFailure("no such luck"))
        first = await here.launch(ROW)
        second = await there.launch(first.outputs, wait_for=[first.fence])
        engine.gate.open_wide()
        error = await failure(second.fence)
        assert isinstance(error, GeneralFailure)
        assert "no such luck" in str(error.__cause__)
        assert (await there(ROW)).tolist() == (2 * ROW).tolist()


@pytest.mark.anyio
@on_one_loop
@pytest.mark.usefixtures("no_leaks")
async def test_a_launch_that_is_cancelled_before_anything_was_copied() -> None:
    engine = gated(double)
    async with here_and_there(engine) as (here, there):
        first = await here.launch(ROW)
        second = await there.launch(first.outputs, wait_for=[first.fence])
        second.cancel()
        assert isinstance(await failure(second.fence), Cancelled)
        second.close()
        engine.gate.open_wide()
        assert (await first.result()).tolist() == (2 * ROW).tolist()
        assert (await there(floats(5, 6, 7, 8))).tolist() == [[10, 12, 14, 16]]


@pytest.mark.anyio
@on_one_loop
@pytest.mark.usefixtures("no_leaks")
async def test_a_process_is_given_no_memory_of_another_s_calls() -> None:
    """Slots of one device share pools; another gets a copy, and then pools of single slots."""
    pytest.importorskip("ai_edge_litert")
    async with opened(NullEngine(), REFERENCE, LITERT) as rt:
        one = await rt.compile(doubler("one"), devices=[REFERENCE])
        same = await rt.compile(doubler("same"), devices=[REFERENCE])
        other = await rt.compile(doubler("other"), devices=[LITERT])
        await one(ROW)
        first = await one.launch(ROW)
        pool = first.outputs[0].pool
        second = await same.launch(first.outputs, wait_for=[first.fence])
        assert (await second.result()).tolist() == (4 * ROW).tolist()
        assert id(pool) in handed_over(same)
        third = await other.launch(first.outputs, wait_for=[first.fence])
        assert (await third.result()).tolist() == (4 * ROW).tolist()
        assert id(pool) not in handed_over(other)
        again = await one.launch(ROW)
        slots = [await one.launch(ROW) for _ in range(3)]
        third = await other.launch(again.outputs, wait_for=[again.fence])
        assert (await third.result()).tolist() == (4 * ROW).tolist()
        own = again.outputs[0].pool
        assert id(own) in handed_over(other)
        assert own not in [each.outputs[0].pool for each in slots]
        assert own.size <= 2 * 64


# -- the copy itself


def test_what_waits_for_nothing_is_copied_at_once() -> None:
    target, fences = np.zeros(SHAPE), [signaled()]
    assert carried([(target, np.ones(SHAPE))], fences) is fences
    assert target.tolist() == [[1] * 4]


def test_it_is_copied_when_the_last_fence_is_signaled() -> None:
    target, source, fences = np.zeros(SHAPE), np.zeros(SHAPE), [Fence(), Fence()]
    (over,) = carried([(target, source)], fences)
    fences[0].signal()
    assert [over.done] == [False]
    source[...] = 7
    fences[1].signal()
    assert [over.done] == [True]
    assert target.tolist() == [[7] * 4]


def test_nothing_is_copied_where_a_fence_fails() -> None:
    target, fences, error = np.zeros(SHAPE), [Fence(), Fence()], GeneralFailure("lost")
    (over,) = carried([(target, np.ones(SHAPE))], fences)
    fences[1].fail(error)
    fences[0].signal()
    assert over.error is error
    assert target.tolist() == [[0] * 4]
