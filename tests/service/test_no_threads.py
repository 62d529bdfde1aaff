"""Threads that cannot be started now: what needed one fails with a type, and works later."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.drivers.service import child, isolate
from nnasync._core.drivers.service.child import Child
from nnasync._core.drivers.service.supervisor import Supervisor
from nnasync._core.service import Limits, lifeline
from nnasync.burst import BurstController, LocalChannel
from nnasync.errors import DeviceUnavailable, ResourceExhaustedTransient
from nnasync.hal import ExecutionConfig
from tests import rigs
from tests.service.rig import Slot, served
from tests.service.test_life import is_gone

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("No loop has a part in this.")]

REFERENCE = rigs.REFERENCE
HOUR_NS = 3600 * 10**9


class Threads:
    """Refuses to start threads of a name, for as long as `are_short`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.are_short, self.refused, self._name = True, 0, name
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.are_short and thread.name.startswith(self._name):
                self.refused += 1
                raise RuntimeError("can't start new thread")
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that are started in a test."""
    started: list[int] = []
    real = Child.open

    def opened(self: Child) -> Any:
        peer = real(self)
        started.append(peer.pid)
        return peer

    monkeypatch.setattr(Child, "open", opened)
    return started


async def test_a_supervisor_without_a_thread_says_so_and_tries_again(monkeypatch: Any) -> None:
    threads = Threads(monkeypatch, "nnasync-supervisor")
    supervisor = Supervisor(Child(REFERENCE, "{}"), "it", hang_after_s=10)
    for _ in range(2):
        with pytest.raises(ResourceExhaustedTransient, match="no thread to start it on"):
            await supervisor.connected()
    threads.are_short = False
    session = await supervisor.connected()
    assert session.welcome.name == REFERENCE
    supervisor.close()
    await supervisor.ended()


async def test_a_link_without_a_thread_leaves_no_process(
    monkeypatch: Any, children: list[int]
) -> None:
    threads = Threads(monkeypatch, "nnasync-service")
    monkeypatch.setattr(child, "_GRACE_S", 0.0)
    with pytest.raises(ResourceExhaustedTransient, match="no thread for the connection"):
        await isolate(REFERENCE)
    (pid,) = children
    assert is_gone(pid)
    threads.are_short = False
    device = await isolate(REFERENCE)
    await device.close()


async def test_a_dead_service_comes_back_when_there_are_threads_again(monkeypatch: Any) -> None:
    device = await isolate(REFERENCE)
    threads = Threads(monkeypatch, "nnasync-supervisor")
    os.kill(device.pid, 9)
    await rigs.until(lambda: threads.refused > 0)
    with pytest.raises(ResourceExhaustedTransient):
        await device.connected()
    threads.are_short = False
    await device.connected()
    assert await device.get_supported_operations(rigs.doubler()) == (True,)
    await device.close()
    with pytest.raises(DeviceUnavailable):
        await device.connected()


async def test_a_deadline_without_a_thread_refuses_the_call_and_leaves_none(
    monkeypatch: Any,
) -> None:
    async with served() as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        link = it.device.link
        threads = Threads(monkeypatch, "nnasync-watchdog")
        link.watchdog.close()
        link.watchdog = type(link.watchdog)()
        late = Deadline(now_ns() + HOUR_NS)
        with pytest.raises(ResourceExhaustedTransient, match="deadlines"):
            await prepared.execute(slot.request, ExecutionConfig(deadline_ns=late.at_ns))
        with pytest.raises(ResourceExhaustedTransient, match="deadlines"):
            await prepared.execute_fenced(
                slot.request, config=ExecutionConfig(deadline_ns=late.at_ns)
            )
        await rigs.until(lambda: not link.is_awaited())
        threads.are_short = False
        await prepared.execute(slot.request, ExecutionConfig(deadline_ns=late.at_ns))


async def test_signs_of_life_are_looked_for_again_when_there_are_threads(monkeypatch: Any) -> None:
    async with served() as it:
        link = it.device.link
        threads = Threads(monkeypatch, "nnasync-watchdog")
        await it.device.get_status()
        assert threads.refused
        before = threads.refused
        threads.are_short = False
        await it.device.get_status()
        assert link.watchdog.pending() == 1
        assert threads.refused == before


async def test_a_service_without_a_thread_for_a_burst_holds_none(monkeypatch: Any) -> None:
    async with served() as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        threads = Threads(monkeypatch, "nnasync-burst-")
        for _ in range(Limits().bursts + 1):
            requests, results = LocalChannel(), LocalChannel()
            controller = BurstController(requests, results)
            with pytest.raises(ResourceExhaustedTransient, match="no thread for a burst"):
                await prepared.configure_execution_burst(controller, requests, results)
        threads.are_short = False
        context = await prepared.configure_execution_burst(controller, requests, results)
        context.close()


def test_a_lifeline_without_a_thread_is_closed_with_all_others(monkeypatch: Any) -> None:
    Threads(monkeypatch, "nnasync-lifeline")
    read_fd, write_fd = os.pipe()
    lifeline.hold(write_fd)
    os.fstat(write_fd)
    os.close(write_fd)
    os.close(read_fd)
