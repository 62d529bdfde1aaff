"""The state of a stream on a device in another process: in its buffers, which tokens name."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.execution import distant
from nnasync._core.execution.distant import DistantState
from nnasync._core.execution.stream_state import StreamState
from nnasync._core.service import Limits
from nnasync.errors import (
    BadState,
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from tests import rigs
from tests.rigs import ONES, REFERENCE, ROW, attempt, count, counter, total
from tests.service.rig import Served, served

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stream(
    engine: Any = REFERENCE, **settings: Any
) -> AsyncIterator[tuple[Served, nn.Net, nn.Burst]]:
    """A burst on `counter` through a service whose loop is that of the test."""
    async with served(engine, **settings) as it, rigs.runtime(it.device) as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            yield it, net, burst


def buffers_of(it: Served) -> Any:
    """Counts of the buffers in the service."""
    found = it.runtime.devices[0]._buffers  # type: ignore[attr-defined]  # an engine's device
    return found.statistics()


async def test_the_state_stays_in_the_service() -> None:
    async with stream() as (it, _, burst):
        assert type(burst._state) is DistantState
        assert buffers_of(it).buffers == 2
        for n in range(1, 20):
            assert (await burst(ROW)).tolist() == (n * ROW).tolist()
        await burst.reset()
        assert await total(burst) == [0, 0, 0, 0]
        assert (await burst(ROW)).tolist() == ROW.tolist()
        await burst.load_state({"total": ONES})
        assert await total(burst) == [1, 1, 1, 1]
        assert (await burst(ROW)).tolist() == (ROW + 1).tolist()
        with pytest.raises(InvalidArgument):
            await burst.load_state({"total": ROW, "other": ROW})
        assert (await burst(ROW)).tolist() == (2 * ROW + 1).tolist()


async def test_a_state_that_was_set_before_the_stream_was_opened() -> None:
    async with served() as it, rigs.runtime(it.device) as rt:
        net = await rt.compile(counter())
        burst = net.burst()
        await burst.load_state({"total": ONES})
        async with burst:
            assert await total(burst) == [1, 1, 1, 1]
            assert (await burst(ROW)).tolist() == (ROW + 1).tolist()


async def test_nothing_of_the_state_is_in_what_a_call_says() -> None:
    async with stream() as (it, _, burst):
        await burst(ROW)
        await burst(ROW)
        link = it.device.link
        before = link.connection.sent_bytes
        for _ in range(50):
            await burst(ROW)
        assert link.connection.sent_bytes == before


async def test_queued_calls_and_other_streams() -> None:
    async with stream() as (it, net, burst), anyio.create_task_group() as group:
        async with net.burst() as other:
            assert buffers_of(it).buffers == 4
            calls = [await attempt(group, lambda: burst(ROW)) for _ in range(8)]
            assert (await other(ONES)).tolist() == ONES.tolist()
            for number, call in enumerate(calls, 1):
                await call.done.wait()
                assert call.result.tolist() == (number * ROW).tolist()
        assert (await burst(ROW)).tolist() == (9 * ROW).tolist()
        assert (await net(ROW)).tolist() == ROW.tolist()
        del other
        await rigs.until(lambda: buffers_of(it).buffers == 2)


async def test_buffers_of_the_application_beside_those_of_the_stream() -> None:
    async with served() as it, rigs.runtime(it.device) as rt:
        net = await rt.compile(counter())
        x, y = await rt.allocate(net.input_role()), await rt.allocate(net.output_role())
        await x.write(ROW)
        async with net.burst() as burst:
            for n in range(1, 7):
                assert await burst(x, out=y) is y
                assert (await y.read()).tolist() == ((2 * n - 1) * ROW).tolist()
                assert (await burst(ROW)).tolist() == (2 * n * ROW).tolist()
        await x.close()
        await y.close()


async def test_failed_calls_are_left_out() -> None:
    def compute(inputs: Any) -> Any:
        if inputs[0][0, 0] < 0:
            raise RuntimeError("negative")
        return count(inputs)

    async with stream(NullEngine(compute=compute)) as (_, _, burst):
        with pytest.raises(GeneralFailure, match="negative"):
            await burst(-ROW)
        for n in range(1, 5):
            assert (await burst(ROW)).tolist() == (n * ROW).tolist()
            for _ in range(2):
                with pytest.raises(GeneralFailure, match="negative"):
                    await burst(-ROW)


async def test_a_call_that_was_given_up_is_left_out_although_the_device_writes_late() -> None:
    engine = NullEngine(compute=count)
    async with stream(engine) as (_, _, burst), anyio.create_task_group() as group:
        await burst(ROW)
        engine.hang(at=1)
        late = await attempt(group, lambda: burst(ONES))
        await engine.when(lambda c: c.hanging == 1)
        late.scope.cancel()
        await late.done.wait()
        behind = await attempt(group, lambda: burst(ROW))
        assert not behind.done.is_set()
        engine.release()
        await behind.done.wait()
        assert behind.error is None
        assert behind.result.tolist() == (2 * ROW).tolist()
        assert (await burst(ROW)).tolist() == (3 * ROW).tolist()


async def test_a_cancelled_call_is_left_out() -> None:
    engine = rigs.gated(count)
    async with stream(engine) as (_, _, burst), anyio.create_task_group() as group:
        first = await attempt(group, lambda: burst(ROW))
        second = await attempt(group, lambda: burst(ONES))
        await engine.when(lambda c: c.waiting == 1)
        first.scope.cancel()
        await first.done.wait()
        engine.gate.open_wide()
        await second.done.wait()
        assert second.result.tolist() == ONES.tolist()


async def test_where_the_service_has_no_buffers_left() -> None:
    async with stream(limits=Limits(buffers=1)) as (_, _, burst):
        assert type(burst._state) is StreamState
        for n in range(1, 4):
            assert (await burst(ROW)).tolist() == (n * ROW).tolist()
            assert await total(burst) == (n * ROW[0]).tolist()


async def test_where_the_reference_stands_by_the_state_is_where_it_can_read_it() -> None:
    def compute(inputs: Any) -> Any:
        if inputs[0][0, 0] == 2:
            raise RuntimeError("two")
        return count(inputs)

    async with (
        served(NullEngine(compute=compute)) as it,
        rigs.runtime(it.device, REFERENCE) as rt,
    ):
        net = await rt.compile(counter())
        async with net.burst() as burst:
            assert type(burst._state) is StreamState
            for n in range(1, 4):
                assert (await burst(n * ONES)).tolist() == (n * (n + 1) / 2 * ONES).tolist()
        async with await rt.allocate(net.input_role(), net.output_role()) as memory:
            assert memory.is_shared
            assert "stands by" in memory.reason
            await memory.write(2 * ONES)
            assert (await net(memory)).tolist() == (2 * ONES).tolist()
        assert net.report().fallbacks


class TestInAProcess:
    """What waits for the service needs one with a loop of its own."""

    pytestmark = pytest.mark.one_loop("A process of its own does not know the loop.")

    async def test_the_state_is_saved_and_the_service_dies(self) -> None:
        async with nn.open_runtime(devices=[REFERENCE], isolate=[REFERENCE]) as rt:
            net = await rt.compile(counter())
            buffer = await rt.allocate(net.input_role())
            await buffer.write(ROW)
            async with net.burst() as burst:
                assert type(burst._state) is DistantState
                for n in range(1, 8):
                    await burst(ROW)
                    assert await total(burst) == (n * ROW[0]).tolist()
                saved = await burst.state()
                await burst(ROW)
                await burst.load_state(saved)
                assert await total(burst) == (7 * ROW[0]).tolist()
                assert (await burst(ROW)).tolist() == (8 * ROW).tolist()
                pid: int = rt.devices[0].pid  # type: ignore[attr-defined]  # isolated ones have it
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(DeviceDied):
                    while True:
                        await burst(ROW)
                with pytest.raises(DeviceDied):
                    await burst.state()
            for refused in (net(buffer), buffer.read(), buffer.write(ROW)):
                with pytest.raises(DeviceDied):
                    await refused
            await buffer.close()

    async def test_the_loop_turns_and_calls_wait_while_the_state_is_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(distant, "PATIENCE_S", 60)
        async with nn.open_runtime(devices=[REFERENCE], isolate=[REFERENCE]) as rt:
            net = await rt.compile(counter())
            async with net.burst() as burst, anyio.create_task_group() as group:
                await burst(ROW)
                pid: int = rt.devices[0].pid  # type: ignore[attr-defined]  # isolated ones have it
                os.kill(pid, signal.SIGSTOP)
                try:
                    state = await attempt(group, lambda: total(burst))
                    call = await attempt(group, lambda: burst(ROW))
                    with pytest.raises(BadState, match="in use"):
                        await burst.reset()
                    assert not state.done.is_set()
                    assert burst.statistics().in_flight == 0
                finally:
                    os.kill(pid, signal.SIGCONT)
                await state.done.wait()
                await call.done.wait()
                assert state.result == ROW[0].tolist()
                assert call.result.tolist() == (2 * ROW).tolist()

    async def test_a_service_that_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with nn.open_runtime(devices=[REFERENCE], isolate=[REFERENCE]) as rt:
            net = await rt.compile(counter())
            async with net.burst() as burst:
                await burst(ROW)
                pid: int = rt.devices[0].pid  # type: ignore[attr-defined]  # isolated ones have it
                os.kill(pid, signal.SIGSTOP)
                try:
                    monkeypatch.setattr(distant, "PATIENCE_S", 0.01)
                    with pytest.raises(DeviceUnavailable, match="did not give the state"):
                        await burst.state()
                finally:
                    os.kill(pid, signal.SIGCONT)
                monkeypatch.undo()
                assert await total(burst) == ROW[0].tolist()
                assert (await burst(ROW)).tolist() == (2 * ROW).tolist()


async def test_a_call_whose_deadline_nobody_watches_leaves_the_state(monkeypatch: Any) -> None:
    monkeypatch.setattr("nnasync._core.runtime.runtime.Watchdog", rigs.ManualWatchdog)

    def refuse(at_ns: int, callback: object) -> Any:
        raise RuntimeError("can't start new thread")

    engine = NullEngine(compute=count)
    async with served(engine) as it, rigs.runtime(it.device) as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            await burst(ROW)
            engine.hang()
            try:
                with monkeypatch.context() as patch:
                    patch.setattr(rt._watchdog, "arm", refuse)
                    with pytest.raises(ResourceExhaustedTransient, match="deadlines of a burst"):
                        await burst(ONES, deadline=nn.within(**rigs.HOUR))
            finally:
                rigs.set_free(engine)
            counts = burst.statistics()
            assert (counts.submitted, counts.succeeded, counts.failed) == (2, 1, 1)
            assert (await burst(ROW)).tolist() == (2 * ROW).tolist()
