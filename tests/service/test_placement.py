"""Short work comes to the core of whoever waits for it, and longer work goes."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service import remote_bursts
from nnasync._core.wire.placement import Placement, current_core, staying
from nnasync.device import PrepareModelConfig
from tests import rigs
from tests.rigs import ROW
from tests.service.rig import Slot, served
from tests.service.test_served_bursts import Client

CORES = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.one_loop("The loop has no part in it."),
    pytest.mark.anyio,
    pytest.mark.skipif(len(CORES) < 2, reason="there is one core only, where all is placed"),
]


def in_thread(work: Any) -> Any:
    """What `work` returns on a thread of its own, whose place is nobody else's."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_stays_for_as_long_as_it_is_told() -> None:
    def work() -> list[set[int]]:
        places, core = [], current_core()
        with staying(core):
            places.append(os.sched_getaffinity(0) - {core})
        places.append(os.sched_getaffinity(0))
        with staying(-1):
            places.append(os.sched_getaffinity(0))
        return places

    assert in_thread(work) == [set(), set(CORES), set(CORES)]


@pytest.mark.parametrize("nonsense", [-1, -2, 10**6, 2**63])
def test_a_thread_goes_where_it_may_go_only(nonsense: int) -> None:
    def work() -> list[set[int]]:
        places, placement = [], Placement()
        for core in (CORES[1], CORES[0], nonsense, CORES[1], -1):
            placement.on(core)
            places.append(os.sched_getaffinity(0))
        return places

    everywhere = set(CORES)
    assert in_thread(work) == [{CORES[1]}, {CORES[0]}, everywhere, {CORES[1]}, everywhere]


def burst_threads() -> list[int]:
    """Numbers of the threads that serve bursts."""
    return [
        each.native_id or 0
        for each in threading.enumerate()
        if each.name.startswith("nnasync-burst-")
    ]


def burst_thread() -> int:
    """Number of the thread that serves the only burst."""
    (found,) = burst_threads()
    return found


@pytest.fixture
async def none_served(anyio_backend: Any) -> None:
    """Wait for threads that served bursts of earlier tests: these end a little later."""
    await rigs.until(lambda: not burst_threads())


@pytest.mark.usefixtures("none_served")
async def test_who_executes_comes_for_short_work_and_is_free_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_bursts, "current_core", lambda: CORES[1])
    engine = NullEngine(compute=lambda inputs: [2 * np.asarray(inputs[0])])
    async with served(engine, options=nn.Options(cores=1, inline_budget_us=1e6)) as it:
        prepared = await it.device.prepare_model(
            rigs.doubler(), PrepareModelConfig(preference=nn.Preference.LOW_POWER)
        )
        client, slot = await Client().open(prepared), Slot()
        sent = 0

        async def until_it_may_use(cores: set[int]) -> None:
            nonlocal sent
            for _ in range(1000):
                client.send(slot)
                sent += 1
                await client.answered(sent)
                if os.sched_getaffinity(burst_thread()) == cores:
                    return
            raise AssertionError(f"it was never on {cores}")

        await until_it_may_use({CORES[1]})
        assert slot.y.tolist() == (2 * ROW).tolist()
        assert os.sched_getaffinity(0) == set(CORES)
        engine.latency_ns = 1_000_000
        await until_it_may_use(set(CORES))
        client.close()
        await prepared.close()


@pytest.mark.usefixtures("none_served")
async def test_what_is_polled_for_is_placed_nowhere() -> None:
    async with served(NullEngine(), options=rigs.INLINE) as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        client, slot = await Client().open(prepared), Slot()
        for count in range(1, 20):
            client.send(slot)
            await client.answered(count)
            assert os.sched_getaffinity(burst_thread()) == set(CORES)
        client.close()
        await prepared.close()
