"""Which status a missed deadline and an exhausted resource have: transient or persistent.

Transient is what may go well when tried again, persistent what is pointless with the same deadline:
what had not begun when the deadline passed is persistent, what had begun is transient, and so is a
loop that takes too long. A full queue is transient, a device that holds no more models persistent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync._core.clock import Deadline
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync.device import Device, PrepareModelConfig
from nnasync.errors import (
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import ErrorStatus, ExecutionConfig
from tests.rigs import (
    HOUR,
    INLINE,
    ROW,
    ManualWatchdog,
    attempt,
    double,
    doubler,
    gated,
    late,
    runtime,
    set_free,
    until_inline,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]

Path = Callable[["Bench", Deadline], Awaitable[Any]]
ALONE = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0, queue_limit=2)


class Bench:
    """A network with a burst, on a device that is steered."""

    def __init__(self, net: nn.Net, burst: nn.Burst) -> None:
        self.net, self.burst = net, burst

    @property
    def prepared(self) -> EnginePreparedModel:
        assert isinstance(self.net._prepared, EnginePreparedModel)
        return self.net._prepared

    async def call(self, deadline: Deadline) -> Any:
        return await self.net(ROW, deadline=deadline)

    async def launch(self, deadline: Deadline) -> Any:
        await (await self.net.launch(ROW, deadline=deadline)).fence

    async def behind(self, deadline: Deadline) -> Any:
        fence = Fence()
        launched = await self.net.launch(ROW, wait_for=[fence], deadline=deadline)
        fence.signal()
        await launched.fence

    async def stream(self, deadline: Deadline) -> Any:
        return await self.burst(ROW, deadline=deadline)

    async def execute(self, deadline: Deadline) -> Any:
        slot = self.net._slots.take()
        return await self.prepared.execute(
            slot.request, ExecutionConfig(deadline_ns=deadline.at_ns)
        )

    async def synchronously(self, deadline: Deadline) -> Any:
        slot = self.net._slots.take()
        return await self.prepared.execute_synchronously(
            slot.request, ExecutionConfig(deadline_ns=deadline.at_ns)
        )

    async def fenced(self, deadline: Deadline) -> Any:
        slot = self.net._slots.take()
        launched = await self.prepared.execute_fenced(
            slot.request, config=ExecutionConfig(deadline_ns=deadline.at_ns)
        )
        await launched.fence


PATHS: dict[str, Path] = {
    "call": Bench.call,
    "launch": Bench.launch,
    "launch behind a fence": Bench.behind,
    "burst": Bench.stream,
    "execute": Bench.execute,
    "execute_synchronously": Bench.synchronously,
    "execute_fenced": Bench.fenced,
}
each_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


@asynccontextmanager
async def bench(engine: NullEngine, options: nn.Options = ALONE) -> AsyncIterator[Bench]:
    async with runtime(engine, options=options) as rt:
        net = await rt.compile(doubler())
        if options is INLINE:
            await until_inline(rt, net, ROW)
        async with net.burst() as burst:
            try:
                yield Bench(net, burst)
            finally:
                set_free(engine)


async def failure(path: Path, bench: Bench, deadline: Deadline) -> type[BaseException]:
    with pytest.raises(NNError) as caught:
        await path(bench, deadline)
    assert caught.value.status == STATUS[type(caught.value)]
    return type(caught.value)


STATUS: dict[type[NNError], ErrorStatus] = {
    MissedDeadlineTransient: ErrorStatus.MISSED_DEADLINE_TRANSIENT,
    MissedDeadlinePersistent: ErrorStatus.MISSED_DEADLINE_PERSISTENT,
    ResourceExhaustedTransient: ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    ResourceExhaustedPersistent: ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
}


async def test_statuses_are_those_of_the_hal() -> None:
    assert [int(status) for status in STATUS.values()] == [5, 6, 7, 8]


@each_path
@pytest.mark.parametrize("options", [ALONE, INLINE], ids=["worker", "inline"])
async def test_passed_before_the_start(path: Path, options: nn.Options) -> None:
    async with bench(NullEngine(compute=double), options) as it:
        assert await failure(path, it, nn.within(ms=-1)) is MissedDeadlinePersistent


@each_path
async def test_passes_in_the_queue(path: Path, watchdog: ManualWatchdog) -> None:
    engine = gated()
    async with bench(engine) as it, anyio.create_task_group() as group:
        busy = await attempt(group, lambda: it.net(ROW))
        await engine.when(lambda now: now.waiting == 1)
        deadline = nn.within(**HOUR)
        waiting = await attempt(group, lambda: path(it, deadline))
        watchdog.ring(deadline)
        assert type(await waiting.failure()) is MissedDeadlinePersistent
        engine.gate.open_wide()
        assert await busy.failure() is None


@each_path
async def test_passes_during_the_run(path: Path, watchdog: ManualWatchdog) -> None:
    engine = gated()
    async with bench(engine) as it, anyio.create_task_group() as group:
        deadline = nn.within(**HOUR)
        running = await attempt(group, lambda: path(it, deadline))
        await engine.when(lambda now: now.waiting == 1)
        watchdog.ring(deadline)
        assert type(await running.failure()) is MissedDeadlineTransient
        engine.gate.open_wide()


@each_path
async def test_too_near_for_what_it_takes(path: Path) -> None:
    """Refused at once, on the strength of earlier runs."""
    async with bench(NullEngine(compute=double)) as it:
        it.prepared.estimate.observe(7200 * 10**9)
        assert await failure(path, it, nn.within(**HOUR)) is MissedDeadlinePersistent


@pytest.mark.parametrize("path", [Bench.call, Bench.stream, Bench.synchronously])
async def test_an_inline_run_is_judged_at_its_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NullEngine(compute=double)
    async with bench(engine, INLINE) as it:
        deadline = nn.within(**HOUR)
        engine.compute = late(deadline, monkeypatch)
        it.prepared.estimate.floor_ns = it.prepared.estimate.best_ns = 1.0
        assert await failure(path, it, deadline) is MissedDeadlineTransient


async def test_duration_after_the_last_fence(watchdog: ManualWatchdog) -> None:
    engine = gated()
    async with bench(engine) as it:
        fence = Fence()
        launched = await it.net.launch(ROW, wait_for=[fence], duration_s=3600)
        fence.signal()
        await engine.when(lambda now: now.waiting == 1)
        task: Any = launched._launched
        watchdog.ring(Deadline(task._task.deadline_ns))
        with pytest.raises(MissedDeadlineTransient):
            await launched.fence
        engine.gate.open_wide()
        with pytest.raises(MissedDeadlinePersistent):
            await (await it.net.launch(ROW, wait_for=[signaled()], duration_s=0)).fence


def signaled() -> Fence:
    fence = Fence()
    fence.signal()
    return fence


@pytest.mark.parametrize("path", [Bench.call, Bench.launch, Bench.execute, Bench.fenced])
async def test_a_full_queue(path: Path) -> None:
    engine = gated()
    async with bench(engine) as it:
        kept = [await it.net.launch(ROW)]
        await engine.when(lambda now: now.waiting == 1)
        kept += [await it.net.launch(ROW) for _ in range(ALONE.queue_limit)]
        assert await failure(path, it, nn.within(**HOUR)) is ResourceExhaustedTransient
        engine.gate.open_wide()
        for execution in kept:
            await execution.fence


async def test_a_full_burst(watchdog: ManualWatchdog) -> None:
    engine = gated()
    async with (
        bench(engine) as it,
        it.net.burst(on_full="refuse") as burst,
        anyio.create_task_group() as group,
    ):
        calls = [await attempt(group, lambda: burst(ROW)) for _ in range(8)]
        with pytest.raises(ResourceExhaustedTransient, match="8 calls are in flight"):
            await burst(ROW, deadline=nn.within(**HOUR))
        engine.gate.open_wide()
        assert [await call.failure() for call in calls] == [None] * 8


@pytest.mark.parametrize("error", STATUS)
async def test_what_a_driver_says_stays(error: type[NNError]) -> None:
    engine = NullEngine(compute=double)
    async with bench(engine) as it:
        for path in PATHS.values():
            engine.heal()
            engine.fail("run", error("of the driver"))
            assert await failure(path, it, nn.within(**HOUR)) is error


class Slow(NullEngine):
    """Compiles when it may."""

    def __init__(self) -> None:
        super().__init__(max_models=1)
        self.begun, self.may = threading.Event(), threading.Event()

    def compile(self, model: nn.Model, preference: nn.Preference) -> Any:
        self.begun.set()
        self.may.wait(60)
        return super().compile(model, preference)


async def test_prepare(watchdog: ManualWatchdog) -> None:
    engine = Slow()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        device = rt.device("null")
        with pytest.raises(MissedDeadlinePersistent):
            await device.prepare_model(doubler(), PrepareModelConfig(deadline=nn.within(ms=-1)))
        deadline = nn.within(**HOUR)
        late = await attempt(
            group, lambda: device.prepare_model(doubler(), PrepareModelConfig(deadline=deadline))
        )
        assert await anyio.to_thread.run_sync(engine.begun.wait, 60)
        watchdog.ring(deadline)
        assert type(await late.failure()) is MissedDeadlineTransient
        engine.may.set()
        await engine.when(lambda now: now.compile == 1)
        kept = await prepared_at_last(device)
        with pytest.raises(ResourceExhaustedPersistent):
            await device.prepare_model(doubler())
        await kept.close()


async def prepared_at_last(device: Device) -> Any:
    """What is prepared once the plan that came late is gone."""
    while True:
        with contextlib.suppress(ResourceExhaustedPersistent):
            return await device.prepare_model(doubler())
