"""The priority of a call: which of several runs first, where it counts, and what is no priority."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import Gate, NullEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.service import Limits
from nnasync.errors import InvalidArgument, ResourceExhaustedTransient
from nnasync.hal import Priority
from nnasync.scheduler import Estimate
from nnasync.streaming import Item, Policy, Stage
from nnasync.tracing import Instrument
from nnasync.tracing.instruments import Traced
from nnasync.tracing.tally import Tally
from tests.rigs import (
    INLINE,
    POOL,
    ROW,
    attempt,
    both,
    compiled,
    double,
    doubler,
    runtime,
    until,
)
from tests.service.rig import served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

ONE = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0)
Call = Callable[[float, Priority | None], Awaitable[Any]]


class Recording(NullEngine):
    """Notes the first value of each input, in the order of the runs; each waits for a gate."""

    def __init__(self) -> None:
        super().__init__(compute=self._noted, gate=Gate())
        self.seen: list[float] = []

    def open_wide(self) -> None:
        """Let all runs go on."""
        assert self.gate is not None
        self.gate.open_wide()

    def _noted(self, inputs: Any) -> Any:
        self.seen.append(float(inputs[0].flat[0]))
        return double(inputs)


class Rig:
    """A network of a recording engine, and the queue that its executions wait in."""

    def __init__(self, engine: Recording, net: nn.Net, queue: nn.Runtime) -> None:
        self.engine = engine
        self.net = net
        self._queue = queue

    @property
    def waiting(self) -> int:
        return sum(self._queue.statistics().workers.scheduler.queued)

    def row(self, value: float) -> Any:
        return np.full((1, 4), value, np.float32)


@asynccontextmanager
async def in_process(priority: Priority = Priority.MEDIUM) -> AsyncIterator[Rig]:
    engine = Recording()
    async with runtime(engine, options=ONE) as rt:
        net = await rt.compile(doubler(), priority=priority)
        yield Rig(engine, net, rt)


@asynccontextmanager
async def in_a_service(priority: Priority = Priority.MEDIUM) -> AsyncIterator[Rig]:
    engine = Recording()
    async with served(engine, options=ONE) as it, runtime(it.device, options=ONE) as rt:
        yield Rig(engine, await rt.compile(doubler(), priority=priority), it.runtime)


def completed(tally: Tally) -> int:
    return tally.outcomes()["completed", ""]


places = pytest.mark.parametrize("place", [in_process, in_a_service])


def calls(rig: Rig) -> Call:
    return lambda value, priority: rig.net(rig.row(value), priority=priority)


def measured_calls(rig: Rig) -> Call:
    return lambda value, priority: rig.net.measured(rig.row(value), priority=priority)


def launches(rig: Rig) -> Call:
    async def call(value: float, priority: Priority | None) -> None:
        execution = await rig.net.launch(rig.row(value), priority=priority)
        await execution.fence

    return call


def bursts(rig: Rig) -> Call:
    async def call(value: float, priority: Priority | None) -> None:
        async with rig.net.burst(priority=priority) as burst:
            await burst(rig.row(value))

    return call


def calls_of_bursts(rig: Rig) -> Call:
    async def call(value: float, priority: Priority | None) -> None:
        async with rig.net.burst() as burst:
            await burst(rig.row(value), priority=priority)

    return call


ways = pytest.mark.parametrize(
    "way", [calls, measured_calls, launches, bursts, calls_of_bursts], ids=lambda way: way.__name__
)


async def order(rig: Rig, call: Call, priorities: Sequence[Priority | None]) -> list[float]:
    """The order of calls from 1 on that queue behind number 0, which has the only core."""
    async with anyio.create_task_group() as group:
        await attempt(group, partial(call, 0, Priority.HIGH))
        await rig.engine.when(lambda c: c.waiting == 1)
        for number, priority in enumerate(priorities, 1):
            await attempt(group, partial(call, number, priority))
            while rig.waiting < number:
                await anyio.lowlevel.checkpoint()
        rig.engine.open_wide()
    return rig.engine.seen


@places
@ways
async def test_the_more_urgent_call_of_one_network_runs_first(place: Any, way: Any) -> None:
    low, medium, high = Priority
    async with place() as rig:
        assert await order(rig, way(rig), (low, medium, low, high)) == [0, 4, 2, 1, 3]


@places
@pytest.mark.parametrize("usual", list(Priority))
async def test_without_one_it_is_that_of_the_network(place: Any, usual: Priority) -> None:
    async with place(usual) as rig:
        assert rig.net.priority is usual
        seen = await order(rig, calls(rig), (None, *Priority))
    given = [(1, usual), (2, Priority.LOW), (3, Priority.MEDIUM), (4, Priority.HIGH)]
    assert seen == [0, *(number for number, _ in sorted(given, key=lambda each: -each[1]))]


async def test_low_gives_its_place_to_high_calls_of_the_same_network() -> None:
    options = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, queue_limit=3)
    engine = Recording()
    async with runtime(engine, options=options) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        lows = [await attempt(group, lambda: net(ROW, priority=Priority.LOW))]
        await engine.when(lambda c: c.waiting == 1)
        lows += [await attempt(group, lambda: net(ROW, priority=Priority.LOW)) for _ in range(3)]
        with pytest.raises(ResourceExhaustedTransient):
            await net(ROW, priority=Priority.LOW)
        high = await attempt(group, lambda: net(ROW, priority=Priority.HIGH))
        await until(lambda: sum(each.done.is_set() for each in lows) == 1)
        engine.open_wide()
        await high.done.wait()
        assert high.error is None
        lost = [each.error for each in lows if each.done.is_set() and each.error is not None]
        assert len(lost) == 1
        assert isinstance(lost[0], ResourceExhaustedTransient)


@both
async def test_calls_are_counted_under_the_priority_that_they_had(options: nn.Options) -> None:
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await compiled(rt, doubler(), options)
        device = net.report().partitions[0].device
        high, low = (rt.calls.of("doubler", each, device) for each in (Priority.HIGH, Priority.LOW))
        await net(ROW, priority=Priority.HIGH)
        await net.measured(ROW, priority=Priority.HIGH)
        await (await net.launch(ROW, priority=Priority.HIGH)).fence
        async with net.burst(priority=Priority.LOW) as burst:
            await burst(ROW)
            await burst(ROW, priority=Priority.HIGH)
        with pytest.raises(nn.MissedDeadline):
            await net(ROW, priority=Priority.LOW, deadline=nn.within(ms=-1))
        await until(lambda: completed(high) == 4)
        assert (high.calls, low.calls, completed(low)) == (4, 2, 1)
        assert low.outcomes()["missed", "admission"] == 1


@pytest.mark.parametrize("wrong", [1, "high", True, 7, -1])
@both
async def test_what_is_no_priority_is_refused(options: nn.Options, wrong: Any) -> None:
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await compiled(rt, doubler(), options)
        async with net.burst() as burst:
            for call in (
                lambda: net(ROW, priority=wrong),
                lambda: net.measured(ROW, priority=wrong),
                lambda: net.launch(ROW, priority=wrong),
                lambda: net.launch(ROW, priority=wrong, duration_s=1),
                lambda: burst(ROW, priority=wrong),
            ):
                with pytest.raises(InvalidArgument, match="priority must be nn.Priority"):
                    await call()
            assert np.array_equal(await burst(ROW), 2 * ROW)
        with pytest.raises(InvalidArgument, match="priority must be nn.Priority"):
            net.burst(priority=wrong)


async def test_calls_of_another_priority_may_run_inline_too() -> None:
    async with runtime(NullEngine(compute=double), options=INLINE) as rt:
        net = await compiled(rt, doubler(), INLINE)
        before = rt.statistics().workers.inline_runs
        for priority in Priority:
            assert np.array_equal(await net(ROW, priority=priority), 2 * ROW)
        assert rt.statistics().workers.inline_runs == before + 3


async def test_slow_runs_of_low_are_not_held_against_the_others() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=POOL) as rt:
        net = await compiled(rt, doubler(), POOL)
        prepared = net._prepared
        assert isinstance(prepared, EnginePreparedModel)
        await net(ROW)
        samples = prepared.estimate.samples
        assert samples > 0
        for _ in range(5):
            await net(ROW, priority=Priority.LOW)
        assert prepared.estimate.samples == samples


async def test_where_shapes_are_open_it_counts_as_well() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    async with runtime("nnasync-reference", options=POOL) as rt:
        net = await rt.compile(builder.build())
        high = rt.calls.of("open", Priority.HIGH, net.report().partitions[0].device)
        assert np.array_equal(await net(ROW, priority=Priority.HIGH), 2 * ROW)
        execution = await net.launch(ROW, priority=Priority.HIGH)
        await execution.fence
        async with net.burst(priority=Priority.HIGH) as burst:
            assert np.array_equal(await burst(ROW), 2 * ROW)
        await until(lambda: completed(high) == 3)


async def test_a_stage_says_it_for_all_its_calls() -> None:
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        net = await compiled(rt, doubler(), POOL)
        low = rt.calls.of("doubler", Priority.LOW, net.report().partitions[0].device)
        async with Stage(net, policy=Policy.BLOCK, backlog=0, priority=Priority.LOW) as stage:
            for number in range(3):
                await stage.put(Item(number, 0, ROW))
            stage.end()
            await stage.drain()
        assert completed(low) == 3


class Submissions(Instrument):
    """Notes the priorities of executions in the order in which they were queued."""

    def __init__(self, found: list[Priority]) -> None:
        self._found = found

    def task_submitted(self, task: Traced) -> None:
        self._found.append(task.priority)


async def test_a_client_gets_no_higher_priority_than_its_service_allows() -> None:
    engine = Recording()
    limits = Limits(priority=Priority.LOW)
    async with (
        served(engine, options=ONE, limits=limits) as it,
        runtime(it.device, options=ONE) as rt,
        anyio.create_task_group() as group,
    ):
        rig = Rig(engine, await rt.compile(doubler(), priority=Priority.HIGH), it.runtime)
        submitted: list[Priority] = []
        it.runtime.tracer.add(Submissions(submitted))
        for number, way in enumerate((calls, launches, bursts)):
            await attempt(group, partial(way(rig), number, Priority.HIGH))
            await attempt(group, partial(way(rig), number, None))
        await until(lambda: len(submitted) == 6)
        engine.open_wide()
    assert submitted == [Priority.LOW] * 6


async def test_a_part_of_a_network_on_a_device_elsewhere_has_it_too() -> None:
    builder = nn.ModelBuilder("two parts")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.mul(builder.add(x, x), 1.0))
    engine = NullEngine("adder", compute=double, operation_types={nn.OperationType.ADD})
    other = NullEngine("other", compute=list, operation_types={nn.OperationType.MUL})
    submitted: list[Priority] = []
    async with served(engine) as it, runtime(it.device, other, options=POOL) as rt:
        net = await rt.compile(builder.build())
        assert [part.device for part in net.report().partitions] == ["adder", "other"]
        await net(ROW)
        it.runtime.tracer.add(Submissions(submitted))
        for priority in (Priority.HIGH, Priority.LOW, None):
            assert np.array_equal(await net(ROW, priority=priority), 2 * ROW)
    assert submitted == [Priority.HIGH, Priority.LOW, Priority.MEDIUM]


async def test_a_prepared_model_closes_what_runs_at_any_priority() -> None:
    engine = Recording()
    async with runtime(engine, options=ONE) as rt, anyio.create_task_group() as group:
        net = await rt.compile(doubler())
        attempts = [await attempt(group, partial(net, ROW, priority=each)) for each in Priority]
        await until(lambda: rt.statistics().workers.live == 3)
        await net.aclose()
        for each in attempts:
            await each.done.wait()
            assert isinstance(each.error, nn.NNError)
        engine.open_wide()


def test_an_estimate_is_copied_with_all_that_it_has_learnt() -> None:
    first = Estimate()
    first.observe(100)
    first.observe_on_worker(900)
    copy = first.copy()
    assert all(getattr(copy, name) == getattr(first, name) for name in Estimate.__slots__)
    copy.observe(5)
    assert (first.samples, copy.samples) == (2, 3)
