"""What a launch raises itself, and what comes through its fence."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.memory import Pool
from tests.rigs import (
    INLINE,
    ROW,
    SHAPE,
    attempt,
    both,
    double,
    doubler,
    failure,
    gated,
    launched_inline,
    runtime,
)

pytestmark = [
    pytest.mark.one_loop("What is wrong is so on any loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
]


async def test_limits_by_their_old_names_warn() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        launch: Any = net.launch
        with pytest.warns(DeprecationWarning, match="duration is called duration_s") as caught:
            execution = await launch(ROW, duration=60)
        assert caught[0].filename == __file__
        await execution.fence
        with (
            pytest.warns(DeprecationWarning, match="loop_timeout_s"),
            pytest.raises(InvalidArgument, match="loop_timeout_s"),
        ):
            await launch(ROW, loop_timeout="1")
        with pytest.raises(TypeError, match="'dead'"):
            await launch(ROW, dead=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"arrays": ()},
        {"arrays": (ROW, ROW)},
        {"arrays": (np.zeros((2, 2), np.float32),)},
        {"arrays": ({"z": ROW},)},
        {"wait_for": [None]},
        {"wait_for": ["fence"]},
        {"wait_for": Fence()},
        {"wait_for": 1},
        {"deadline": 0.02},
        {"duration_s": -1},
        {"duration_s": float("nan")},
        {"duration_s": float("inf")},
        {"duration_s": "1"},
        {"loop_timeout_s": float("nan")},
        {"loop_timeout_s": []},
    ],
)
async def test_a_wrong_call_is_the_caller_s_error(arguments: dict[str, Any]) -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        arrays = arguments.pop("arrays", (ROW,))
        with pytest.raises(InvalidArgument):
            await net.launch(*arrays, **arguments)
        arguments["arrays"] = arrays
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize(
    ("dtype", "shape"), [(np.float64, (1, 2)), (np.int32, SHAPE), (np.float32, (4,))]
)
async def test_a_region_that_does_not_fit_is_refused(dtype: Any, shape: tuple[int, ...]) -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        region = Pool.allocate(64).region(0, 16, dtype=dtype, shape=shape)
        with pytest.raises(InvalidArgument, match="'x'"):
            await net.launch(region)


async def test_a_full_queue_refuses_a_launch() -> None:
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0, queue_limit=1)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        first = await net.launch(ROW)
        await engine.when(lambda c: c.waiting == 1)
        second = await net.launch(ROW)
        with pytest.raises(ResourceExhaustedTransient):
            await net.launch(ROW)
        engine.gate.open_wide()
        await first.fence
        await second.fence


@pytest.mark.parametrize("where", ["run", "bind"])
@both
async def test_trouble_of_the_device_comes_through_the_fence(
    where: Any, options: nn.Options
) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        held = await net.launch(ROW)
        await held.fence
        if options is INLINE:
            held = await launched_inline(rt, net, ROW)
        engine.fail(where, RuntimeError("boom"))
        executions = [await net.launch(ROW) for _ in range(3)]
        error = await failure(executions[-1].fence)
        assert isinstance(error, GeneralFailure)
        assert isinstance(error.__cause__, RuntimeError)
        info = await executions[-1].info()
        assert info.status is nn.ErrorStatus.GENERAL_FAILURE
        executions[-1].cancel()
        executions[-1].close()
        engine.heal()
        assert (await (await net.launch(ROW)).result()).tolist() == [[2, 4, 6, 8]]
        assert held.outputs[0].array.tolist() == [[2, 4, 6, 8]]


async def test_closing_the_runtime_ends_executions_in_flight() -> None:
    engine = gated()
    options = nn.Options(cores=1, inline_budget_us=0)
    async with anyio.create_task_group() as group, runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        running = await net.launch(ROW)
        await engine.when(lambda c: c.waiting == 1)
        queued = await net.launch(ROW)
        waits = await net.launch(ROW, wait_for=[Fence()])
        dependant = await net.launch(queued.outputs, wait_for=[queued.fence])
        waiting = [
            await attempt(group, execution.result)
            for execution in (running, queued, waits, dependant)
        ]
        rt._workers.close()
        errors = [await each.failure() for each in waiting]
    assert [type(error) for error in errors] == [DeviceUnavailable] * 4
    with pytest.raises(BadState):
        await net.launch(ROW)


async def test_launches_that_wait_for_fences_are_bounded_too() -> None:
    options = nn.Options(cores=1, inline_budget_us=0, queue_limit=3, competition_budget_ms=0)
    async with runtime(NullEngine(compute=double), options=options) as rt:
        low = await rt.compile(doubler(), priority=nn.Priority.LOW)
        high = await rt.compile(doubler(), priority=nn.Priority.HIGH)
        gate = Fence()
        held = [await low.launch(ROW, wait_for=[gate]) for _ in range(3)]
        with pytest.raises(ResourceExhaustedTransient, match="3 executions are queued"):
            await low.launch(ROW, wait_for=[gate])
        first = await high.launch(ROW, wait_for=[gate])
        error = await failure(held[-1].fence)
        assert isinstance(error, ResourceExhaustedTransient)
        gate.signal()
        for each in (first, *held[:-1]):
            assert (await each.result()).tolist() == [[2, 4, 6, 8]]
