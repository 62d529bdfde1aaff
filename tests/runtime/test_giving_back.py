"""Memory of networks that are gone is given back by the runtime, on a thread of its own."""

from __future__ import annotations

import contextlib
import gc
import threading

import anyio
import anyio.lowlevel
import pytest

from nnasync._core.engine_device import plan_users
from nnasync._core.heap import Heap
from nnasync._core.runtime import runtime as runtimes
from tests.rigs import GUARD_S, ROW, doubler, runtime, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


class Watched(Heap):
    """Notes the threads on which memory is given back, in place of doing so."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        super().__init__(self._note, clock=lambda: 0)

    def _note(self, pad: int) -> None:
        self.threads.append(threading.current_thread())


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """In place of that of the process."""
    watched = Watched()
    monkeypatch.setattr(runtimes, "HEAP", watched)
    monkeypatch.setattr(plan_users, "HEAP", watched)
    return watched


@pytest.mark.parametrize("way", ["closed", "dropped"])
async def test_what_is_left_of_a_network_is_given_back(heap: Watched, way: str) -> None:
    with anyio.fail_after(GUARD_S):
        async with runtime() as rt:
            net = await rt.compile(doubler())
            await net(ROW)
            while heap.is_due:  # What its compilation left.
                rt._trim()
                await anyio.lowlevel.checkpoint()
            await until(lambda: len(heap.threads) >= 2)
            if way == "closed":
                await net.close()
            with pytest.warns(ResourceWarning) if way == "dropped" else contextlib.nullcontext():
                del net
                gc.collect()
            await until(lambda: heap.is_due)
            rt._trim()
            await until(lambda: len(heap.threads) >= 3)
    assert threading.current_thread() not in heap.threads


async def test_a_runtime_that_compiled_nothing_gives_nothing_back(heap: Watched) -> None:
    async with runtime() as rt:
        rt._trim()
    assert heap.threads == []


async def test_a_service_does_so_for_what_its_clients_close(heap: Watched) -> None:
    """There it is the prepared model that is closed; no network of the service's own is."""
    async with runtime() as rt:
        prepared = await rt.devices[0].prepare_model(doubler())
        assert not heap.is_due
        await prepared.close()
        assert heap.is_due
