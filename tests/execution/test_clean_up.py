"""What is left of networks, bursts and executions that are closed, dropped, or idle: nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio.lowlevel
import msgspec
import pytest

import nnasync as nn
from nnasync._core.compilation import compiling
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.fast_state import FAST_STATE_LOOKS
from nnasync._core.wakeup import Wakeup
from nnasync.errors import Cancelled, DeviceUnavailable
from nnasync.fences import Fence
from tests.conftest import open_descriptors, opened_since, our_threads
from tests.rigs import (
    HOUR,
    INLINE,
    POOL,
    REFERENCE,
    ROW,
    Deadlines,
    counter,
    double,
    doubler,
    free,
    gated,
    runtime,
    until,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
]
DOUBLED = [[2, 4, 6, 8]]
DROPPED = "network 'doubler' was dropped"


@contextmanager
def one_warning(text: str) -> Iterator[None]:
    """Exactly one ResourceWarning comes, which says this; what it is about is not kept."""
    on_fallback: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: on_fallback.append(
            f"{category} {message}"
        )
        yield
    assert ["ResourceWarning" in each and text in each for each in on_fallback] == [True], (
        on_fallback
    )


def live() -> int:
    return len(gc.get_objects())


# -- networks


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("engine", ["null", "reference"])
async def test_a_dropped_network_gives_everything_back(engine: str) -> None:
    device: Any = NullEngine(compute=double) if engine == "null" else REFERENCE
    async with runtime(device) as rt:
        kept = await rt.compile(doubler("kept"))
        gc.collect()  # What earlier tests left would be given back meanwhile.
        before = rt.statistics()
        net = await rt.compile(doubler())
        prepared = weakref.ref(net._prepared)
        assert (await net(ROW)).tolist() == DOUBLED
        with one_warning(DROPPED):
            del net
            await until(lambda: prepared() is None)
        await until(lambda: rt.statistics().memory == before.memory)
        assert rt.statistics().nets == before.nets
        assert (await kept(ROW)).tolist() == DOUBLED


async def test_a_network_in_a_cycle_is_collected_from_any_thread() -> None:
    async with runtime() as rt:
        cycle: list[Any] = [await rt.compile(doubler())]
        cycle.append(cycle)
        prepared = weakref.ref(cycle[0]._prepared)
        del cycle
        with one_warning(DROPPED):
            thread = threading.Thread(target=gc.collect)
            thread.start()
            thread.join()
            await until(lambda: prepared() is None)
        assert rt.statistics().nets == 0


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("isolate", [(), (REFERENCE,)], ids=["here", "isolated"])
async def test_cycles_with_open_bursts_go_at_the_first_look(isolate: tuple[str, ...]) -> None:
    """What finalizers leave to the loop must not keep the networks themselves."""
    async with nn.open_runtime(devices=[REFERENCE], isolate=isolate, options=POOL) as rt:
        kept = await rt.compile(doubler("kept"))
        await kept(ROW)
        gc.collect()
        before, memory = len(open_descriptors()), rt.statistics().memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.disable()
            try:
                for _ in range(5):
                    await used_in_a_cycle(rt)
                gc.collect()
            finally:
                gc.enable()
            left = [each for each in gc.get_objects() if isinstance(each, (nn.Net, nn.Burst))]
            assert left == [kept]
            await until(lambda: len(open_descriptors()) <= before)
        # What was bound to buffers of the device goes when the prepared model has been closed.
        await until(lambda: gc.collect() >= 0 and rt.statistics().memory == memory)
        assert rt.statistics().nets == 1
        assert (await kept(ROW)).tolist() == DOUBLED


async def used_in_a_cycle(rt: nn.Runtime) -> None:
    """Use a network in all ways, and drop all of it in a list that has itself."""
    net = await rt.compile(doubler(), devices=[REFERENCE])
    burst = net.burst()
    await burst.__aenter__()
    buffer = await rt.allocate(net.input_role(0), net.output_role(0))
    launched = await net.launch(ROW)
    cycle: list[Any] = [net, burst, buffer, launched, launched.outputs]
    cycle.append(cycle)
    assert (await launched.result()).tolist() == DOUBLED
    assert (await burst(ROW)).tolist() == (await net(ROW)).tolist() == DOUBLED
    await net(ROW, out=buffer)


async def test_a_closed_network_is_dropped_without_a_word() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        await net.close()
        last = await rt.compile(doubler())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del net
    del last
    assert not caught


async def test_an_execution_in_flight_outlives_its_network() -> None:
    engine = gated()
    async with runtime(engine) as rt:
        net, other = await rt.compile(doubler()), await rt.compile(doubler("other"))
        first = await net.launch(ROW)
        second = await other.launch(first.outputs, wait_for=[first.fence])
        del net, first
        gc.collect()
        with one_warning(DROPPED):
            engine.gate.open_wide()
            assert (await second.result()).tolist() == [[4, 8, 12, 16]]
            await free(rt)
            await until(lambda: rt.statistics().nets == 1)


async def test_a_call_keeps_its_network() -> None:
    engine = gated()
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        found: list[Any] = []

        async def call(net: nn.Net) -> None:
            found.append(await net(ROW))

        group.start_soon(call, await rt.compile(doubler()))
        await anyio.wait_all_tasks_blocked()
        gc.collect()
        assert rt.statistics().nets == 1
        with one_warning(DROPPED):
            engine.gate.open_wide()
            await until(lambda: len(found) == 1)
            await until(lambda: rt.statistics().nets == 0)
    assert found[0].tolist() == DOUBLED


async def test_a_network_whose_compilation_is_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(nn.Net, "_get_ready", lambda self: let_go.wait(60))
    try:
        async with runtime() as rt:
            with warnings.catch_warnings(record=True) as caught:
                with anyio.move_on_after(0.05):
                    await rt.compile(doubler())
                assert rt.statistics().nets == 0
                let_go.set()
            assert not caught
    finally:
        let_go.set()


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "collected"])
async def test_what_was_to_be_optimized_later_is_not(
    closing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is gone leaves no task that waits for it to be used."""
    monkeypatch.setattr(compiling, "PATIENCE_S", 3600)
    engine = NullEngine(compute=double)
    async with runtime(engine, "nnasync-reference", options=nn.Options(cores=1)) as rt:
        before = len(asyncio.all_tasks())
        net = await rt.compile(doubler(), options=nn.CompileOptions(wait="first"))
        await until(lambda: len(asyncio.all_tasks()) == before + 1)
        plan = weakref.ref(net._prepared)
        if closing:
            await net.close()
            del net
        else:
            with one_warning(DROPPED):
                del net
        await until(lambda: len(asyncio.all_tasks()) == before)
        await until(lambda: plan() is None)


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "collected"])
async def test_a_hundred_networks_leave_nothing(closing: bool) -> None:
    model = doubler()
    cycles = 100 if closing else 60
    # With a second core a second worker comes when the first is a little late, at any time.
    options = msgspec.structs.replace(POOL, cores=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        async with runtime(REFERENCE, options=options) as rt:
            gc.collect()
            others = rt.statistics().memory.pools
            references: list[weakref.ref[Any]] = []

            async def cycle() -> None:
                net = await rt.compile(model)
                await net(ROW)
                references[:] = [ref for ref in references if ref() is not None]
                references.extend((weakref.ref(net), weakref.ref(net._prepared)))
                if closing:
                    await net.close()

            for _ in range(20):
                await cycle()
            await until(lambda: rt.statistics().memory.pools <= others)
            gc.collect()
            memory, descriptors = rt.statistics().memory, open_descriptors()
            threads = our_threads()
            objects = live()
            for _ in range(cycles):
                await cycle()
            await until(lambda: rt.statistics().memory == memory)
            gc.collect()
            assert rt.statistics().memory == memory
            assert opened_since(descriptors) == {}
            assert our_threads() <= threads
            await until(lambda: all(reference() is None for reference in references))
            references.clear()
            assert live() - objects < cycles


# -- bursts


@pytest.mark.parametrize("options", [POOL, INLINE], ids=["worker", "inline"])
@pytest.mark.usefixtures("collected")
async def test_a_dropped_burst_cools_the_device_down(options: nn.Options) -> None:
    async with runtime(NullEngine(compute=double), options=options) as rt:
        net = await rt.compile(doubler())
        burst = net.burst()
        await burst.__aenter__()
        pools = rt.statistics().memory.pools
        assert (await burst(ROW)).tolist() == DOUBLED
        assert rt.statistics().workers.hot == 1
        with one_warning("a burst of network 'doubler' was dropped"):
            del burst
            await until(lambda: rt.statistics().workers.hot == 0)
        await until(lambda: rt.statistics().memory.pools == pools)
        assert (await net(ROW)).tolist() == DOUBLED


async def test_what_is_dropped_is_told_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another thread may drop it, and whoever sees it closed may look for the warning at once.
    order: list[str] = []
    post = Wakeup.post

    def noted(wakeup: Wakeup, call: Callable[[], object]) -> bool:
        order.append("closed")
        return post(wakeup, call)

    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        burst = net.burst()
        await burst.__aenter__()
        monkeypatch.setattr(Wakeup, "post", noted)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda *_: order.append("told")
            del burst
            del net
        assert order == ["told", "closed"] * 2


async def test_a_burst_keeps_its_network() -> None:
    async with runtime() as rt:
        async with (await rt.compile(counter())).burst() as burst:
            gc.collect()
            for total in (1, 2, 3):
                assert (await burst(ROW * 0 + 1)).tolist() == [[total] * 4]
        with one_warning("network 'counter' was dropped"):
            del burst
            await until(lambda: rt.statistics().nets == 0)


async def test_a_burst_that_was_never_opened_needs_no_closing() -> None:
    async with runtime() as rt:
        net = await rt.compile(doubler())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            net.burst()
            async with net.burst():
                pass
        assert not caught


async def test_an_idle_burst_cools_down_and_is_heated_by_its_next_call() -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        device = rt.device("null")
        assert isinstance(device, EngineDevice)
        async with net.burst() as burst:
            await burst(ROW)
            for _ in range(FAST_STATE_LOOKS + 1):
                assert burst.statistics().hot
                assert engine.counters.trim == 0
                device.trim()
            assert not burst.statistics().hot
            assert rt.statistics().workers.hot == 0
            assert engine.counters.trim > 0
            assert (await burst(ROW)).tolist() == DOUBLED
            assert burst.statistics().hot
            assert rt.statistics().workers.hot == 1
        assert not burst.statistics().hot
        assert rt.statistics().workers.hot == 0


# -- executions


async def test_a_held_launch_that_is_over_keeps_no_memory_though_its_fence_lives() -> None:
    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        before = rt.statistics().memory.pools
        never = Fence()
        for _ in range(5):
            held = await net.launch(ROW, wait_for=[never])
            held.cancel()
            with pytest.raises(Cancelled):
                await held.fence
            held.close()
        del held
        gc.collect()
        await until(lambda: rt.statistics().memory.pools <= before + 1)
    never.signal()


async def test_closing_while_launches_wait_for_fences() -> None:
    """However they were to come: never, later, or with an error; each launch is answered."""
    never, later, failing = Fence(), Fence(), Fence()
    async with runtime(NullEngine(compute=double)) as rt:
        net = await rt.compile(doubler())
        held = [await net.launch(ROW, wait_for=[each]) for each in (never, later, failing)]
        chained = await net.launch(held[0].outputs, wait_for=[held[0].fence])
        answers: list[Fence] = []
        for each in (*held, chained):
            each.fence.add_callback(answers.append)
    later.signal()
    failing.fail(OSError("no"))
    assert len(answers) == 4
    assert all(isinstance(each.error, DeviceUnavailable) for each in answers)


async def test_memory_of_missed_executions_is_kept_until_the_device_lets_go(
    deadlines: Deadlines,
) -> None:
    """Of calls, launches and bursts; then it is given back, and the device goes on."""
    engine = NullEngine(compute=double)
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        await net(ROW)
        before = rt.statistics().memory.pools
        engine.hang()
        error = await deadlines.missed(
            lambda deadline: net(ROW, deadline=deadline),
            lambda: engine.when(lambda c: c.hanging == 1),
        )
        assert isinstance(error, nn.MissedDeadline)
        deadline = nn.within(**HOUR)
        launched = await net.launch(ROW, deadline=deadline)
        await engine.when(lambda c: c.hanging == 2)
        deadlines.let_pass(deadline)
        with pytest.raises(nn.MissedDeadline):
            await launched.fence
        launched.close()
        del launched
        gc.collect()
        assert rt.statistics().memory.pools >= before + rt.statistics().workers.quarantined - 1
        engine.heal()
        engine.release()
        await free(rt)
        gc.collect()
        await until(lambda: rt.statistics().memory.pools <= before)
        for _ in range(3):
            assert (await net(ROW)).tolist() == DOUBLED
