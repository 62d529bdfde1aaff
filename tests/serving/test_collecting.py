"""Garbage of a process that serves is collected between requests."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import anyio
import pytest

from nnasync.serving import ModelServer, collecting
from nnasync.serving.collecting import (
    Collector,
    collecting_between_requests,
    keep_looking,
)
from tests.rigs import until
from tests.serving.rig import serving

MIB = 1 << 20
MODELS = frozenset({1, 2})


class FakeGc:
    """The module `gc`, which notes what it was asked for."""

    def __init__(self) -> None:
        self.new = 0
        self.survivors: list[None] = []
        self.asked: list[str] = []

    def get_count(self) -> tuple[int, int, int]:
        return self.new, 0, 0

    def get_objects(self) -> list[None]:
        return self.survivors

    def __getattr__(self, name: str) -> Any:
        return lambda: self.asked.append(name)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGc:
    found = FakeGc()
    monkeypatch.setattr(collecting, "gc", found)
    return found


def looks(collector: Collector, fake: FakeGc, *, idle: bool, mib: int = 100) -> list[str]:
    """What a look with the usual models does."""
    fake.asked.clear()
    collector.look(MODELS, mib * MIB, is_idle=idle)
    return list(fake.asked)


@pytest.fixture
def collector(fake: FakeGc) -> Collector:
    """One that has looked once."""
    found = Collector()
    assert looks(found, fake, idle=True) == ["unfreeze", "collect"]
    return found


@pytest.mark.parametrize(
    ("new", "when_idle", "when_busy"),
    [(1_999, [], []), (2_000, ["collect"], []), (50_000, ["collect"], ["collect"])],
)
def test_it_is_done_when_idle_or_when_much_has_come(
    collector: Collector, fake: FakeGc, new: int, when_idle: list[str], when_busy: list[str]
) -> None:
    fake.new = new
    assert looks(collector, fake, idle=True) == when_idle
    assert looks(collector, fake, idle=False) == when_busy


def test_many_that_survive_are_not_looked_at_again(collector: Collector, fake: FakeGc) -> None:
    fake.new, fake.survivors = 2_000, [None] * 10_001
    assert looks(collector, fake, idle=True) == ["collect", "freeze"]


def test_all_is_looked_at_when_models_have_changed(collector: Collector, fake: FakeGc) -> None:
    fake.asked.clear()
    collector.look(frozenset({2, 3}), 100 * MIB, is_idle=False)
    assert fake.asked == ["unfreeze", "collect"]


def test_all_is_looked_at_when_the_process_has_grown(collector: Collector, fake: FakeGc) -> None:
    assert looks(collector, fake, idle=False, mib=356) == []
    assert looks(collector, fake, idle=False, mib=90) == []
    assert looks(collector, fake, idle=False, mib=347) == ["unfreeze", "collect"]
    assert looks(collector, fake, idle=False, mib=347) == []


@pytest.mark.anyio
async def test_the_collector_of_python_is_off_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_LOOK_S", 0)
    calls: list[bool] = []

    def noted(
        collector: Collector, models: frozenset[int], resident: int, *, is_idle: bool
    ) -> None:
        calls.append(is_idle and len(models) == 1)

    monkeypatch.setattr(Collector, "look", noted)
    async with serving() as server:
        with collecting_between_requests(server) as collector:
            assert not gc.isenabled()
            await _looking(collector, server, calls)
    assert gc.isenabled()
    assert all(calls)


async def _looking(collector: Collector, server: ModelServer, calls: list[bool]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_looking, collector, server)
        await until(lambda: len(calls) > 3)
        tasks.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_memory_of_a_process() -> None:
    script = """
import mmap
from nnasync.serving.collecting import resident_bytes
before = resident_bytes()
with mmap.mmap(-1, 64 << 20) as pages:
    pages.write(bytes([1]) * (64 << 20))
    assert 64 << 20 <= resident_bytes() - before < 256 << 20
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
