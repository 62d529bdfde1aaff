"""The state that a burst carries: committed by success, untouched by anything else."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import (
    BadState,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
)
from tests.engine_device.rig import look_cheap
from tests.rigs import (
    HOUR,
    INLINE,
    ONES,
    ROW,
    SHAPE,
    ManualWatchdog,
    attempt,
    both,
    compiled,
    count,
    counter,
    doubler,
    gated,
    runtime,
    total,
    until_inline,
)

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


@both
async def test_a_burst_carries_the_state(options: nn.Options) -> None:
    async with runtime(options=options) as rt:
        net = await compiled(rt, counter(), options)
        async with net.burst() as burst:
            assert await total(burst) == [0, 0, 0, 0]
            for n in range(1, 20):
                assert (await burst(ROW)).tolist() == (n * ROW).tolist()
                assert await total(burst) == (n * ROW[0]).tolist()


def quantized_counter() -> nn.Model:
    """A counter whose state is 8-bit around a zero point."""
    type = nn.OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    builder = nn.ModelBuilder("counter")
    x = builder.input("x", SHAPE, type=type, scale=1.0, zero_point=-4)
    total = builder.state("total", SHAPE, type=type, scale=1.0, zero_point=-4)
    new = builder.add(total, x, scale=1.0, zero_point=-4)
    builder.output("y", builder.relu6(new))
    builder.update(total, new)
    return builder.build()


async def test_a_quantized_state_begins_at_its_zero_point() -> None:
    async with runtime(ReferenceEngine()) as rt:
        net = await rt.compile(quantized_counter())
        one = np.full(SHAPE, -3, np.int8)
        async with net.burst() as burst:
            assert set(await total(burst)) == {-4}
            assert set((await burst(one)).reshape(-1)) == {-3}
            assert set((await burst(one)).reshape(-1)) == {-2}
            await burst.reset()
            assert set((await burst(one)).reshape(-1)) == {-3}
        assert set((await net(one)).reshape(-1)) == {-3}


async def test_queued_calls_carry_the_state() -> None:
    engine = gated(count)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            calls = [await attempt(group, lambda: burst(ROW)) for _ in range(8)]
            engine.gate.open_wide()
            for number, call in enumerate(calls, 1):
                await call.done.wait()
                assert call.result.tolist() == (number * ROW).tolist()
            assert await total(burst) == (8 * ROW[0]).tolist()


async def test_plain_calls_launches_and_other_bursts_have_their_own_state() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst, net.burst() as other:
            await burst(ROW)
            assert (await net(ROW)).tolist() == ROW.tolist()
            assert (await (await net.launch(ROW)).result()).tolist() == ROW.tolist()
            assert (await other(ONES)).tolist() == ONES.tolist()
            assert (await burst(ROW)).tolist() == (2 * ROW).tolist()
            assert await total(other) == [1, 1, 1, 1]
        async with net.burst() as burst:
            assert await total(burst) == [0, 0, 0, 0]


async def test_a_state_is_saved_loaded_and_reset() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ROW)
            saved = await burst.state()
            await burst(ROW)
            assert saved["total"].tolist() == ROW.tolist()
            await burst.load_state(saved)
            saved["total"][...] = 0
            assert (await burst(ROW)).tolist() == (2 * ROW).tolist()
            await burst.load_state({"total": [[5, 5, 5, 5]]})
            assert (await burst(ONES)).tolist() == [[6] * 4]
            await burst.reset()
            assert await total(burst) == [0, 0, 0, 0]
            assert (await burst(ROW)).tolist() == ROW.tolist()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"sum": ROW},
        {"total": ROW, "other": ROW},
        {"total": np.zeros((4,), np.float32)},
        {"total": np.zeros(SHAPE)},
        None,
    ],
)
async def test_a_state_that_does_not_fit_is_refused_whole(values: Any) -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ROW)
            with pytest.raises(InvalidArgument):
                await burst.load_state(values)
            assert await total(burst) == [1, 2, 3, 4]


async def test_the_state_is_not_touched_while_calls_are_in_flight() -> None:
    engine = gated(count)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            call = await attempt(group, lambda: burst(ROW))
            for touch in (burst.state, burst.reset, partial(burst.load_state, {"total": ROW})):
                with pytest.raises(BadState, match="in flight"):
                    await touch()
            engine.gate.open()
            await call.done.wait()
            assert await total(burst) == [1, 2, 3, 4]


async def test_a_network_without_state_has_none() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            await burst.reset()
            assert await burst.state() == {}
            await burst.load_state(await burst.state())
            with pytest.raises(BadState, match="no state"):
                await burst.load_state({"total": ROW})


async def test_a_failed_call_leaves_the_state_as_it_was() -> None:
    def compute(inputs: Any) -> Any:
        if inputs[0][0, 0] < 0:
            raise RuntimeError("negative")
        return count(inputs)

    async with runtime(NullEngine(compute=compute)) as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ROW)
            for _ in range(3):
                with pytest.raises(GeneralFailure, match="negative"):
                    await burst(-ROW)
                assert await total(burst) == [1, 2, 3, 4]
            assert (await burst(ROW)).tolist() == (2 * ROW).tolist()


async def test_a_failed_call_between_others_is_left_out() -> None:
    def compute(inputs: Any) -> Any:
        if inputs[0][0, 0] < 0:
            raise RuntimeError("negative")
        return count(inputs)

    engine = gated(compute)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            rows = [ROW, -ROW, ROW, -ROW, -ROW, ROW]
            calls = [await attempt(group, partial(burst, row)) for row in rows]
            engine.gate.open_wide()
            errors = [await call.failure() for call in calls]
            assert [error is None for error in errors] == [True, False, True, False, False, True]
            assert calls[-1].result.tolist() == (3 * ROW).tolist()
            assert await total(burst) == (3 * ROW[0]).tolist()


async def test_a_missed_call_leaves_the_state_although_the_device_writes_it_late(
    watchdog: ManualWatchdog,
) -> None:
    engine = NullEngine(compute=count)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ROW)
            engine.hang(at=1)
            deadline = nn.within(**HOUR)
            missed = await attempt(group, lambda: burst(ONES, deadline=deadline))
            await engine.when(lambda c: c.hanging == 1)
            watchdog.ring(deadline)
            assert type(await missed.failure()) is MissedDeadlineTransient
            assert await total(burst) == [1, 2, 3, 4]
            behind = await attempt(group, lambda: burst(ROW))
            assert not behind.done.is_set()
            engine.release()
            await behind.done.wait()
            assert behind.result.tolist() == (2 * ROW).tolist()
            assert await total(burst) == (2 * ROW[0]).tolist()


async def test_the_next_call_begins_only_when_the_device_has_let_go() -> None:
    engine = gated(count, steps=2)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            first = await attempt(group, lambda: burst(ROW))
            await engine.when(lambda c: c.waiting == 1)
            first.scope.cancel()
            second = await attempt(group, lambda: burst(ROW))
            assert engine.counters.run == 1
            engine.gate.open_wide()
            await second.done.wait()
            assert second.result.tolist() == ROW.tolist()
            assert engine.counters.rewind == 1


@pytest.mark.parametrize("which", [0, 1, 3])
async def test_a_cancelled_call_leaves_the_state_as_it_was(which: int) -> None:
    engine = gated(count, steps=2)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            calls = [await attempt(group, lambda: burst(ROW)) for _ in range(4)]
            await engine.when(lambda c: c.waiting == 1)
            calls[which].scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert calls[which].scope.cancelled_caught
            engine.gate.open_wide()
            left = [call for call in calls if call is not calls[which]]
            for number, call in enumerate(left, 1):
                await call.done.wait()
                assert call.result.tolist() == (number * ROW).tolist()
            assert await total(burst) == (3 * ROW[0]).tolist()
            assert burst.statistics().in_flight == 0


async def test_a_call_that_is_cancelled_before_it_hears_of_its_success_is_taken_back() -> None:
    engine = gated(count)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            call = await attempt(group, lambda: burst(ROW))
            await engine.when(lambda c: c.waiting == 1)
            engine.gate.open_wide()
            while rt.statistics().workers.running:
                pass
            call.scope.cancel()
            await call.done.wait()
            done = 0 if call.result is None else 1
            assert await total(burst) == (done * ROW[0]).tolist()
            assert (await burst(ROW)).tolist() == ((done + 1) * ROW).tolist()


async def test_a_call_that_was_built_on_is_not_taken_back() -> None:
    """The next one has run on this thread before the first could be cancelled."""
    engine = gated(count)
    async with runtime(engine, options=INLINE) as rt, anyio.create_task_group() as group:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            call = await attempt(group, lambda: burst(ROW))
            await engine.when(lambda c: c.waiting == 1)
            engine.gate.open_wide()
            line: Any = burst._line
            while burst._running is not None or line._held:
                pass
            # The first one took as long as its gate was closed.
            look_cheap(net._prepared)  # type: ignore[arg-type]  # a device of this process
            with pytest.raises(StopIteration) as ended:
                burst(ONES).send(None)
            assert ended.value.value.tolist() == (ROW + 1).tolist()
            call.scope.cancel()
            await call.done.wait()
            assert await total(burst) == (ROW[0] + 1).tolist()
            assert (await burst(ONES)).tolist() == (ROW + 2).tolist()


async def test_a_call_that_is_cancelled_in_its_turn_gives_its_place_up() -> None:
    engine = NullEngine(compute=count)
    options = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=0.001)
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(counter())
        await until_inline(rt, net, ROW)
        async with net.burst() as burst:
            await burst(ROW)
            async with anyio.create_task_group() as group:
                group.start_soon(burst, ROW)
                await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            done = burst.statistics()
            assert done.in_flight == 0
            assert done.submitted == done.succeeded + done.failed
            assert (await burst(ROW)).tolist() == ((done.succeeded + 1) * ROW).tolist()
