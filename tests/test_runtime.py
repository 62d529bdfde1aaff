"""The runtime: opened once, closed with everything that is in flight, and restores the process."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest
import threadpoolctl

import nnasync as nn
from nnasync._core.drivers import default_devices
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice, EnginePreparedModel
from nnasync._core.wakeup import Wakeup
from nnasync.errors import BadState, DeviceUnavailable, InvalidArgument
from nnasync.fences import Fence
from nnasync.hal import ExecutionPreference, Model, Request
from nnasync.tracing import Instrument, Layer, Mark, Tracer, vlog
from tests.engine_device.rig import Rig
from tests.rigs import (
    GUARD_S,
    POOL,
    ROW,
    Attempt,
    SpitefulEngine,
    attempt,
    count,
    counter,
    doubler,
    gated,
    runtime,
    set_free,
)
from tests.system_policies import System

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


def kind(value: Any) -> str:
    """The same name in every process, unlike what a repr with an address gives."""
    return "-".join(value) if isinstance(value, dict) else type(value).__name__


async def test_the_reference_is_always_there() -> None:
    async with nn.open_runtime() as rt:
        assert isinstance(rt.devices, tuple)
        names = [device.name for device in rt.devices]
        assert names == list(default_devices())
        assert rt.device("nnasync-reference") is rt.devices[-1]
        with pytest.raises(InvalidArgument, match=f"there are: {', '.join(names)}"):
            rt.device("gpu")


@pytest.mark.parametrize(
    "devices",
    [["gpu"], [42], [None], "nnasync-reference", 5, [NullEngine("a"), NullEngine("a")]],
    ids=kind,
)
async def test_devices_that_make_no_sense_are_refused(devices: Any) -> None:
    with pytest.raises(InvalidArgument):
        async with nn.open_runtime(devices=devices):
            pass


@pytest.mark.parametrize("isolate", ["nnasync-reference", [5], ["null"]], ids=kind)
async def test_isolation_of_what_is_no_device_is_refused(isolate: Any) -> None:
    with pytest.raises(InvalidArgument, match="isolate"):
        async with nn.open_runtime(devices=["nnasync-reference"], isolate=isolate):
            pass


async def test_an_object_cannot_be_isolated_which_the_error_says() -> None:
    with pytest.raises(InvalidArgument, match=r"which devices= has as an object.*module:factory"):
        async with nn.open_runtime(devices=[NullEngine("mine")], isolate=["mine"]):
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"cores": 0},
        {"cores": -1},
        {"cores": 1.5},
        {"cores": "2"},
        {"queue_limit": 0},
        {"queue_limit": None},
        {"inline_budget_us": -1},
        {"inline_budget_us": float("nan")},
        {"stall_budget_us": float("inf")},
        {"switch_interval_us": float("nan")},
        {"switch_interval_us": "50"},
        {"aging_ms": 0},
        {"aging_ms": "2000"},
        {"time_slice_us": -1},
        {"time_slice_us": float("nan")},
        {"time_slice_us": "100"},
        {"worker_niceness": -1},
        {"worker_niceness": 20},
        {"worker_niceness": 5.0},
        {"worker_niceness": True},
    ],
    ids=kind,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        nn.Options(**options)


def test_the_old_name_of_aging_ms_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="ageing_ms is called aging_ms now"):
        options = nn.Options(ageing_ms=700)
    assert options == nn.Options(aging_ms=700)
    with (
        pytest.warns(DeprecationWarning, match="ageing_ms"),
        pytest.raises(InvalidArgument, match="aging_ms must be 1 or more, got 0"),
    ):
        nn.Options(ageing_ms=0)


async def test_an_error_of_the_body_comes_out_as_it_is() -> None:
    class Mine(Exception):
        pass

    with pytest.raises(Mine):
        async with runtime() as rt:
            net = await rt.compile(doubler())
            await net.launch(ROW)
            net.close()
            raise Mine
    with pytest.raises(KeyboardInterrupt):
        async with nn.open_runtime():
            raise KeyboardInterrupt


async def test_cancelling_the_body_closes_the_runtime() -> None:
    engine = gated()
    with anyio.CancelScope() as scope:
        async with nn.open_runtime(devices=[engine], options=POOL) as rt:
            net = await rt.compile(doubler())
            execution = await net.launch(ROW)
            await engine.when(lambda c: c.waiting == 1)
            engine.gate.open_wide()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert execution.fence.done


async def test_a_runtime_is_opened_once_and_used_while_open() -> None:
    rt = nn.open_runtime()
    with pytest.raises(BadState):
        await rt.compile(doubler())
    with pytest.raises(BadState):
        rt.statistics()
    async with rt:
        with pytest.raises(BadState, match="once"):
            await rt.__aenter__()
        net = await rt.compile(doubler())
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
    for call in (lambda: rt.compile(doubler()), lambda: net(ROW), lambda: net.launch(ROW)):
        with pytest.raises(BadState):
            await call()
    with pytest.raises(BadState):
        net.burst()
    with pytest.raises(BadState):
        await rt.__aenter__()


async def test_a_burst_is_useless_after_the_runtime() -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        burst = net.burst()
        await burst.__aenter__()
        await burst(ROW)
    with pytest.raises(DeviceUnavailable):
        await burst(ROW)
    assert (await burst.state())["total"].tolist() == ROW.tolist()
    await burst.__aexit__(None, None, None)


def blas() -> list[int]:
    """How many threads each BLAS library of this process may use."""
    info = threadpoolctl.threadpool_info()
    return [pool["num_threads"] for pool in info if pool["user_api"] == "blas"]


async def test_blas_is_left_alone_if_that_is_wanted() -> None:
    mine, other = nn.Options(blas_threads=None, cores=1), nn.Options(cores=1)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        assert set(blas()) == {2}
        async with nn.open_runtime(devices=["nnasync-reference"], options=mine) as rt:
            (await rt.compile(doubler())).close()
            assert set(blas()) == {2}
            async with nn.open_runtime(devices=["nnasync-reference"], options=other) as limited:
                (await limited.compile(doubler("another"))).close()
                assert set(blas()) == {1}
            assert set(blas()) == {2}


@pytest.mark.parametrize("wrong", [0, 2, -1, "1"])
def test_blas_has_one_thread_or_is_left_alone(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="blas_threads must be 1 or None"):
        nn.Options(blas_threads=wrong)


async def test_settings_of_the_process_are_restored() -> None:
    before, threads = sys.getswitchinterval(), blas()
    async with nn.open_runtime(
        devices=["nnasync-reference"], options=nn.Options(switch_interval_us=70)
    ) as rt:
        assert sys.getswitchinterval() == pytest.approx(70e-6)
        net = await rt.compile(doubler())
        assert set(blas()) == {1}
        async with nn.open_runtime(options=nn.Options(switch_interval_us=90)):
            assert sys.getswitchinterval() == pytest.approx(70e-6)
        assert sys.getswitchinterval() == pytest.approx(70e-6)
        assert set(blas()) == {1}
        net.close()
    assert sys.getswitchinterval() == before
    assert blas() == threads


@pytest.mark.parametrize(("real_time", "interval_s"), [(False, 50e-6), (True, 200e-6)])
async def test_how_often_the_lock_is_offered(
    real_time: bool, interval_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    System().stand_in(monkeypatch)
    async with nn.open_runtime(
        devices=["nnasync-reference"], options=nn.Options(real_time=real_time)
    ):
        assert sys.getswitchinterval() == pytest.approx(interval_s, abs=2e-6)


async def test_a_closed_runtime_watches_the_loop_no_longer() -> None:
    def watching() -> list[Tracer]:
        return [tracer for tracer, _ in Wakeup.current()._served]

    async with runtime() as rt:
        async with runtime() as another:
            assert watching() == [rt.tracer, another.tracer]
        assert watching() == [rt.tracer]
    assert watching() == []


async def test_closing_a_network_ends_with_the_runtime() -> None:
    """A device that takes for ever to close a network leaves nobody waiting."""

    class Prepared:
        async def close(self) -> None:
            await anyio.sleep_forever()

    class Endless(EngineDevice):
        async def prepare_model(self, *_: Any, **__: Any) -> Any:
            return Prepared()

    workers = Rig(NullEngine())
    closing = None
    async with nn.open_runtime(devices=[Endless(NullEngine(), workers.workers)]) as rt:
        net = await rt.compile(doubler())
        closing = net.close()
        await anyio.wait_all_tasks_blocked()
    with anyio.fail_after(GUARD_S), pytest.raises(DeviceUnavailable, match="runtime"):
        await closing
    workers.close()


async def test_two_runtimes_do_not_mix() -> None:
    async with runtime() as first, runtime() as second:
        net = await first.compile(doubler())
        other = await second.compile(doubler())
        assert (first.statistics().nets, second.statistics().nets) == (1, 1)
        assert (await net(ROW)).tolist() == (await other(ROW)).tolist()


async def test_nothing_is_left_running() -> None:
    options = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0)
    async with runtime(options=options) as rt:
        net = await rt.compile(doubler())
        await net(ROW)
        assert rt.statistics().workers.threads == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("nnasync-w")]


# -- closing with work in flight


async def test_closing_ends_everything_in_flight() -> None:
    """Calls, launches and bursts; running, queued, behind fences, at a device that hangs."""
    engine = gated(count)
    options = nn.Options(cores=1, inline_budget_us=0)
    attempts: dict[str, Attempt] = {}
    async with anyio.create_task_group() as group:
        async with nn.open_runtime(devices=[engine], options=options) as rt:
            net = await rt.compile(counter())
            burst = net.burst()
            await burst.__aenter__()
            attempts["running"] = await attempt(group, lambda: net(ROW))
            await engine.when(lambda c: c.waiting == 1)
            attempts["queued"] = await attempt(group, lambda: net(ROW))
            launched = await net.launch(ROW)
            held = await net.launch(launched.outputs, wait_for=[launched.fence, Fence()])
            attempts["launched"] = await attempt(group, launched.result)
            attempts["held"] = await attempt(group, held.result)
            attempts["burst"] = await attempt(group, lambda: burst(ROW))
            attempts["burst, behind"] = await attempt(group, lambda: burst(ROW))
            assert not any(each.done.is_set() for each in attempts.values())

            async def open_when_closed() -> None:
                # What was launched last is answered first: this one has been told by then.
                await attempts["running"].done.wait()
                engine.gate.open_wide()

            group.start_soon(open_when_closed)
        errors = {name: type(await each.failure()) for name, each in attempts.items()}
    assert errors == dict.fromkeys(errors, DeviceUnavailable)
    assert engine.counters.run == 1
    info = await held.info()
    assert info.status is nn.ErrorStatus.DEVICE_UNAVAILABLE
    with pytest.raises(DeviceUnavailable):
        await burst(ROW)
    burst.close()


async def test_closing_does_not_wait_for_a_device_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nnasync._core.runtime.runtime.CLOSE_GRACE_S", 0.01)
    engine = NullEngine()
    engine.hang()
    try:
        async with anyio.create_task_group() as group:
            with anyio.fail_after(20):
                async with nn.open_runtime(devices=[engine], options=POOL) as rt:
                    net = await rt.compile(doubler())
                    call = await attempt(group, lambda: net(ROW))
                    await engine.when(lambda c: c.hanging == 1)
            assert engine.counters.hanging == 1
            assert type(await call.failure()) is DeviceUnavailable
    finally:
        set_free(engine)


async def test_a_model_that_is_compiled_while_the_runtime_closes_is_refused() -> None:
    let_go = threading.Event()

    class Slow(NullEngine):
        def compile(self, model: Model, preference: ExecutionPreference) -> Any:
            self._count("waiting")
            let_go.wait()
            return super().compile(model, preference)

    engine = Slow()
    async with anyio.create_task_group() as group:
        async with nn.open_runtime(devices=[engine], options=POOL) as rt:
            call = await attempt(group, lambda: rt.compile(doubler()))
            await engine.when(lambda c: c.waiting == 1)
        let_go.set()
        assert isinstance(await call.failure(), BadState | DeviceUnavailable)
    assert rt.statistics().nets == 0


async def test_trouble_while_a_device_gives_back_does_not_reach_the_body() -> None:
    engine = SpitefulEngine()
    async with runtime(engine, "nnasync-reference") as rt:
        net = await rt.compile(doubler())
        kept = await rt.compile(doubler("kept"))
        await net(ROW)
        with pytest.raises(nn.GeneralFailure, match="spite"):
            await net.close()
        await anyio.wait_all_tasks_blocked()
        other = await rt.compile(doubler(), devices=["nnasync-reference"])
        assert (await other(ROW)).tolist() == [[2, 4, 6, 8]]
        rt._trim()
        assert (await other(ROW)).tolist() == [[2, 4, 6, 8]]
    assert kept.report().partitions


# -- other loops


def elsewhere(backend: Any, call: Any) -> Any:
    """Run a coroutine function on a new loop of this thread."""
    return anyio.run(call, backend=backend[0], backend_options=backend[1])


async def test_use_from_another_loop_is_refused(anyio_backend: Any) -> None:
    async with runtime() as rt:
        net = await rt.compile(counter())
        async with net.burst() as burst:
            execution = await net.launch(ROW)
            for call in (
                lambda: rt.compile(doubler()),
                lambda: net(ROW),
                lambda: net.launch(ROW),
                lambda: burst(ROW),
            ):
                with pytest.raises(BadState, match="loop"):
                    await anyio.to_thread.run_sync(elsewhere, anyio_backend, call)

            async def fence() -> str:
                await execution.fence
                return "seen"

            assert await anyio.to_thread.run_sync(elsewhere, anyio_backend, fence) == "seen"
            assert (await burst(ROW)).tolist() == ROW.tolist()
            assert (await net(ROW)).tolist() == ROW.tolist()


def test_use_without_a_loop_is_refused() -> None:
    async def main() -> nn.Net:
        async with nn.open_runtime() as rt:
            return await rt.compile(doubler())

    net = nn.run(main)
    with pytest.raises(BadState):
        net.burst()
    with pytest.raises(BadState):
        asyncio.run(net(ROW))
    with pytest.raises(BadState):
        nn.run(net, ROW)


async def test_compilation_is_marked_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    marks: list[str] = []

    class Marks(Instrument):
        def marked(self, mark: Mark, begun_ns: int, ended_ns: int) -> None:
            if mark.layer is Layer.RUNTIME:
                marks.append(str(mark))

    monkeypatch.setattr(vlog, "compilation", logging.getLogger("told").info)
    caplog.set_level(logging.INFO, "told")
    async with nn.open_runtime(devices=["nnasync-reference"], instruments=[Marks()]) as rt:
        net = await rt.compile(doubler("seen"))
    assert net.model.name == "seen"
    assert marks == ["[NN_LR_PC]seen"]
    assert "seen: nnasync-reference, whole model: chosen" in caplog.text


async def test_a_plan_that_hangs_when_it_is_tried_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go, begun = threading.Event(), threading.Event()

    def hang(self: EnginePreparedModel, request: Request, *, tries: bool) -> None:
        begun.set()
        let_go.wait(GUARD_S)

    monkeypatch.setattr(EnginePreparedModel, "bind", hang)
    monkeypatch.setattr("nnasync._core.runtime.runtime.READY_PATIENCE_S", 0.05)
    try:
        async with runtime() as rt:
            net = await rt.compile(doubler())
            assert begun.is_set()
            assert (await net(ROW)).tolist() == (2 * ROW).tolist()
    finally:
        let_go.set()
