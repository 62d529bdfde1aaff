"""Executions on older devices: every path, fences, deadlines, cancelling, bursts, sane results."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest
from msgspec.structs import replace

import nnasync as nn
from nnasync._core.clock import now_ns, within
from nnasync._core.versions import Versioned, admit
from nnasync._core.versions.prepared import VersionedPreparedModel
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    OutputInsufficientSize,
)
from nnasync.fences import Fence
from nnasync.hal import (
    DEFAULT_CONFIG,
    NOT_AVAILABLE,
    ErrorStatus,
    ExecutionConfig,
    ExecutionResult,
    Model,
    OutputShape,
    Request,
    Timing,
)
from tests.rigs import HOUR, attempt, failure, until
from tests.versions.rig import TIMING, Fake10, Fake11, Fake12, Memory, Recorded, errands, ring

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Conversions know no loop.")]
ROW = [[1.0, 2.0, 3.0, 4.0]]
SQUARES = [[1.0, 4.0, 9.0, 16.0]]
SHAPES = (OutputShape((1, 4)),)
ALL = [Fake10, Fake11, Fake12]


def multiplier(shape: tuple[int, ...] = (1, 4)) -> Model:
    builder = nn.ModelBuilder("multiplier")
    x = builder.input("x", shape)
    builder.output("y", builder.mul(x, x))
    return builder.build()


class Bench:
    """A prepared model of a fake device, and memory for requests."""

    def __init__(self, fake: Any, device: Versioned, prepared: VersionedPreparedModel) -> None:
        self.fake = fake
        self.ring = functools.partial(ring, device.errands)
        self.device = device
        self.prepared = prepared
        self.memory = Memory(multiplier(), ROW)
        self.request = self.memory.request

    async def late(self) -> ExecutionResult:
        return await self.prepared.execute(
            self.request, ExecutionConfig(deadline_ns=within(**HOUR).at_ns)
        )

    @property
    def is_right(self) -> bool:
        return bool(np.array_equal(self.memory.outputs[0], SQUARES))


@asynccontextmanager
async def bench(fake: Recorded) -> AsyncIterator[Bench]:
    async with errands() as made:
        device = await admit(fake, made)
        assert isinstance(device, Versioned)
        prepared = await device.prepare_model(multiplier())
        assert isinstance(prepared, VersionedPreparedModel)
        yield Bench(fake, device, prepared)


@pytest.mark.parametrize("kind", ALL)
async def test_plain_executions(kind: Any) -> None:
    async with bench(kind("old")) as rig:
        for run in (rig.prepared.execute, rig.prepared.execute_synchronously):
            rig.memory.outputs[0].fill(0)
            assert await run(rig.request) == ExecutionResult(SHAPES)
            assert rig.is_right
        ways = [call[0] for call in rig.fake.runs()]
        assert ways == ["execute", "synchronously" if kind is Fake12 else "execute"]


@pytest.mark.parametrize("kind", ALL)
async def test_timing_is_for_1_2(kind: Any) -> None:
    async with bench(kind("old")) as rig:
        result = await rig.prepared.execute(rig.request, ExecutionConfig(measure=True))
        assert result.timing == (TIMING if kind is Fake12 else Timing())
        launched = await rig.prepared.execute_fenced(rig.request)
        await launched.fence
        info = await launched.get_execution_info()
        assert info.status == ErrorStatus.NONE
        assert info.timing_fenced == info.timing_launched == Timing()
        assert Timing().time_in_driver_ns == NOT_AVAILABLE


@pytest.mark.parametrize("kind", ALL)
async def test_time_since_the_launch_has_the_wait_for_fences_in_it(kind: Any) -> None:
    async with bench(kind("old")) as rig:
        first = Fence()
        launched = await rig.prepared.execute_fenced(
            rig.request, [first], ExecutionConfig(measure=True)
        )
        began_ns = now_ns()
        await anyio.wait_all_tasks_blocked()
        waited_ns = now_ns() - began_ns
        first.signal()
        await launched.fence
        info = await launched.get_execution_info()
        fenced, since_launch = info.timing_fenced, info.timing_launched
        assert since_launch.time_in_driver_ns - fenced.time_in_driver_ns >= waited_ns > 0
        on_device_ns = TIMING.time_on_device_ns if kind is Fake12 else NOT_AVAILABLE
        assert fenced.time_on_device_ns == since_launch.time_on_device_ns == on_device_ns


@pytest.mark.parametrize("kind", ALL)
async def test_fences_are_waited_for_and_signaled(kind: Any) -> None:
    async with bench(kind("old")) as rig:
        first, second = Fence(), Fence()
        launched = await rig.prepared.execute_fenced(rig.request, [first, second])
        with pytest.raises(BadState):
            await launched.get_execution_info()
        first.signal()
        await anyio.wait_all_tasks_blocked()
        assert rig.fake.runs() == []
        second.signal()
        await launched.fence
        assert rig.is_right


async def test_a_failed_dependency_fails_those_behind_it_with_the_first_error() -> None:
    async with bench(Fake10("old")) as rig:
        first = Fence()
        second = await rig.prepared.execute_fenced(rig.request, [first])
        third = await rig.prepared.execute_fenced(rig.request, [second.fence])
        cause = ZeroDivisionError("oops")
        first.fail(cause)
        error = await failure(third.fence)
        assert type(error) is GeneralFailure
        assert third.fence.error is not None
        assert third.fence.error.__cause__ is cause
        assert (await third.get_execution_info()).status == ErrorStatus.GENERAL_FAILURE
        assert rig.fake.runs() == []


async def test_a_deadline_is_answered_while_fences_are_pending() -> None:
    async with bench(Fake11("old")) as rig:
        launched = await rig.prepared.execute_fenced(
            rig.request, [Fence()], ExecutionConfig(deadline_ns=within(**HOUR).at_ns)
        )
        rig.ring()
        assert type(await failure(launched.fence)) is MissedDeadlinePersistent
        with pytest.raises(MissedDeadlinePersistent):
            await rig.prepared.execute_fenced(
                rig.request, [Fence()], ExecutionConfig(deadline_ns=within(ms=-1).at_ns)
            )
        assert rig.fake.runs() == []


async def test_a_duration_counts_from_the_last_fence() -> None:
    async with bench(Fake10("old")) as rig:
        rig.fake.gate = anyio.Event()
        fence = Fence()
        launched = await rig.prepared.execute_fenced(
            rig.request, [fence], ExecutionConfig(duration_ns=10**13)
        )
        await anyio.wait_all_tasks_blocked()
        rig.ring()
        assert not launched.fence.done
        fence.signal()
        await until(lambda: len(rig.fake.runs()) == 1)
        rig.ring()
        assert type(await failure(launched.fence)) is MissedDeadlineTransient


@pytest.mark.parametrize("kind", ALL)
async def test_the_deadline_is_kept_for_a_device_that_has_none(kind: Any) -> None:
    async with bench(kind("old")) as rig, anyio.create_task_group() as group:
        rig.fake.gate = anyio.Event()
        going = await attempt(group, rig.late)
        await until(lambda: len(rig.fake.runs()) == 1)
        rig.ring()
        assert isinstance(await going.failure(), MissedDeadlineTransient)
        await until(lambda: rig.fake.ended == 1)
        with pytest.raises(MissedDeadlinePersistent):
            await rig.prepared.execute(
                rig.request, ExecutionConfig(deadline_ns=within(ms=-1).at_ns)
            )
        assert len(rig.fake.runs()) == 1


async def test_a_late_result_is_discarded() -> None:
    async with bench(Fake12("deaf")) as rig, anyio.create_task_group() as group:
        gate = anyio.Event()

        async def deaf(request: Request, *, measure: bool = False) -> ExecutionResult:
            rig.fake.heard.append(("execute", request))
            with anyio.CancelScope(shield=True):
                await gate.wait()
            rig.fake.ended += 1
            return ExecutionResult(SHAPES)

        rig.prepared._inner.execute = deaf
        going = await attempt(group, rig.late)
        await until(lambda: len(rig.fake.runs()) == 1)
        rig.ring()
        assert isinstance(await going.failure(), MissedDeadlineTransient)
        assert rig.fake.ended == 0
        gate.set()
        await until(lambda: rig.fake.ended == 1)


async def test_cancelling_frees_the_device() -> None:
    async with bench(Fake10("old")) as rig, anyio.create_task_group() as group:
        rig.fake.gate = anyio.Event()
        going = await attempt(group, lambda: rig.prepared.execute(rig.request))
        launched = await rig.prepared.execute_fenced(rig.request)
        await until(lambda: len(rig.fake.runs()) == 2)
        going.scope.cancel()
        launched.cancel()
        assert type(await failure(launched.fence)) is Cancelled
        await until(lambda: rig.fake.ended == 2)


async def test_closing_ends_what_is_in_flight() -> None:
    async with bench(Fake10("old")) as rig:
        rig.fake.gate = anyio.Event()
        launched = await rig.prepared.execute_fenced(rig.request)
        await until(lambda: len(rig.fake.runs()) == 1)
        await rig.prepared.close()
        assert type(await failure(launched.fence)) is DeviceUnavailable
        with pytest.raises(DeviceUnavailable):
            await rig.prepared.execute(rig.request)


@pytest.mark.parametrize("kind", ALL)
async def test_tokens_and_unknown_memory(kind: Any) -> None:
    async with bench(kind("old")) as rig:
        tokens = Request(rig.request.inputs, rig.request.outputs, (1,))
        for run in (rig.prepared.execute, rig.prepared.execute_fenced):
            with pytest.raises(GeneralFailure, match="memory that HAL"):
                await run(tokens)
        with pytest.raises(InvalidArgument):
            await rig.prepared.execute(Request((), rig.request.outputs, rig.request.pools))
        assert rig.fake.runs() == []


SMALL = (OutputShape((1, 4), is_sufficient=False),)


@pytest.mark.parametrize(
    ("kind", "fault", "becomes"),
    [
        (Fake12, OutputInsufficientSize("small", SMALL), OutputInsufficientSize),
        (Fake12, OutputInsufficientSize("small"), GeneralFailure),
        (Fake12, OutputInsufficientSize("small", SMALL * 2), GeneralFailure),
        (Fake10, OutputInsufficientSize("small", SMALL), GeneralFailure),
        (Fake12, MissedDeadlineTransient("late"), GeneralFailure),
        (Fake11, DeviceUnavailable("off"), DeviceUnavailable),
        (Fake10, ZeroDivisionError("oops"), GeneralFailure),
    ],
)
async def test_errors_of_executions(kind: Any, fault: Exception, becomes: type) -> None:
    async with bench(kind("old")) as rig:
        rig.fake.fault = fault
        with pytest.raises(becomes) as caught:
            await rig.prepared.execute(rig.request)
        assert type(caught.value) is becomes
        launched = await rig.prepared.execute_fenced(rig.request)
        assert type(await failure(launched.fence)) is becomes


@pytest.mark.parametrize(
    ("told", "becomes"),
    [
        (ExecutionResult(), ExecutionResult(SHAPES)),
        (None, ExecutionResult(SHAPES)),
        (ExecutionResult(SHAPES, TIMING), ExecutionResult(SHAPES)),
        (ExecutionResult(SMALL), "too small"),
        (ExecutionResult(SHAPES * 2), "are 2, for 1 outputs"),
        (ExecutionResult((OutputShape((4, 1)),)), r"have \[4, 1\] for output 0"),
    ],
)
async def test_results_are_held_to_the_rules(told: Any, becomes: Any) -> None:
    async with bench(Fake12("odd")) as rig:
        rig.fake.result = lambda result: told
        if isinstance(becomes, ExecutionResult):
            assert await rig.prepared.execute(rig.request) == becomes
        else:
            with pytest.raises(GeneralFailure, match=becomes):
                await rig.prepared.execute(rig.request)


def open_multiplier() -> Model:
    """Its second dimension comes with the request."""
    model = multiplier((1, 0))
    main = model.main
    operands = list(main.operands)
    for index in main.output_indexes:
        operands[index] = replace(operands[index], dimensions=(1, 0))
    return replace(model, main=replace(main, operands=tuple(operands)))


async def test_before_1_2_the_shapes_of_outputs_must_be_known() -> None:
    async with errands() as made:
        for fake in (Fake10("a"), Fake11("b"), Fake12("c")):
            device = await admit(fake, made)
            prepared = await device.prepare_model(open_multiplier())
            memory = Memory(multiplier(), ROW)
            first = memory.request.inputs[0]
            shaped = nn.hal.RequestArgument(location=first.location, dimensions=(1, 4))
            request = Request((shaped,), memory.request.outputs, memory.request.pools)
            if fake.feature_level >= nn.hal.HalVersion.V1_2:
                assert (await prepared.execute(request)).output_shapes == SHAPES
                continue
            with pytest.raises(InvalidArgument):
                await prepared.execute(request)
            assert fake.runs() == []


class Client:
    """The client's half of a burst; answers come as messages."""

    def __init__(self, prepared: VersionedPreparedModel) -> None:
        self.prepared = prepared
        requests, results = LocalChannel(), LocalChannel()
        self.channels = requests, results
        self.controller = BurstController(requests, results)
        self.outcomes: list[Outcome] = []

    async def open(self) -> None:
        context = await self.prepared.configure_execution_burst(self.controller, *self.channels)
        self.controller.attach(context)

    def send(self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG) -> int:
        arguments = self.controller.encode(request)
        return self.controller.send(arguments, self.outcomes.append, config)

    async def answered(self, count: int) -> list[Outcome]:
        await until(lambda: len(self.outcomes) >= count)
        return self.outcomes


@pytest.mark.parametrize("kind", [Fake10, Fake12])
class TestBursts:
    """Bursts made of executions."""

    async def test_requests_are_executed_in_order(self, kind: Any) -> None:
        async with bench(kind("old")) as rig:
            client = Client(rig.prepared)
            await client.open()
            for _ in range(3):
                client.send(rig.request, ExecutionConfig(measure=True))
            outcomes = await client.answered(3)
            timing = TIMING if kind is Fake12 else Timing()
            assert outcomes == [ExecutionResult(SHAPES, timing)] * 3
            assert rig.is_right
            way = "synchronously" if kind is Fake12 else "execute"
            assert [call[0] for call in rig.fake.runs()] == [way] * 3
            client.controller.free(rig.memory.pool)
            client.controller.close(DeviceUnavailable("over"))

    async def test_deadlines_are_kept(self, kind: Any) -> None:
        async with bench(kind("old")) as rig:
            client = Client(rig.prepared)
            await client.open()
            rig.fake.gate = anyio.Event()
            client.send(rig.request, ExecutionConfig(deadline_ns=within(**HOUR).at_ns))
            client.send(rig.request)
            await until(lambda: len(rig.fake.runs()) == 1)
            rig.ring()
            assert isinstance((await client.answered(1))[0], MissedDeadlineTransient)
            rig.fake.gate.set()
            assert (await client.answered(2))[1] == ExecutionResult(SHAPES)

    async def test_cancelled_and_failing_requests(self, kind: Any) -> None:
        async with bench(kind("old")) as rig:
            client = Client(rig.prepared)
            await client.open()
            rig.fake.gate = anyio.Event()
            client.controller.cancel(client.send(rig.request))
            assert isinstance((await client.answered(1))[0], Cancelled)
            rig.fake.gate.set()
            rig.fake.fault = ZeroDivisionError("oops")
            client.send(rig.request)
            assert "oops" in str((await client.answered(2))[1])
            rig.fake.fault = None
            client.send(Request((), (), (rig.memory.pool,)))
            assert isinstance((await client.answered(3))[2], InvalidArgument)
            client.send(rig.request)
            assert (await client.answered(4))[3] == ExecutionResult(SHAPES)
