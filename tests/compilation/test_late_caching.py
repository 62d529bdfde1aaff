"""Drivers that write their cache files after a model was prepared, and what later starts find."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.cache import late_files
from nnasync._core.drivers.service import isolate
from nnasync._core.engine_device import EngineDevice
from nnasync.engine import CacheFiles, LateFiles
from tests.compilation.just_in_time import FIRST, LATER, Foreign, LateEngine
from tests.rigs import GUARD_S, ROW, doubler
from tests.service.rig import served

pytestmark = pytest.mark.anyio

OPTIONS = nn.Options(cores=1, competition_budget_ms=0)
ISOLATED = "tests.compilation.just_in_time:compiles_at_the_third_run"


@pytest.fixture
def anyio_backend() -> Any:
    """The cache is the same on every loop."""
    return "asyncio", {"use_uvloop": False}


class Started:
    """A runtime as one start of a program, with the network that it compiles."""

    def __init__(self, runtime: nn.Runtime, folder: Path) -> None:
        self.runtime = runtime
        self.folder = folder
        self.nets: list[nn.Net] = []

    async def compile(self, *devices: Any) -> str:
        """Compile the network and try it; what the cache said."""
        net = await self.runtime.compile(doubler(), devices=devices or None, cache_dir=self.folder)
        self.nets.append(net)
        assert (await net(ROW)).tolist() == (2 * ROW).tolist()
        return net.report().cache_reason

    def foreign(self, first: bytes = b"") -> Foreign:
        """A device of others, on the workers of this runtime."""
        device = self.runtime.device("null")
        assert isinstance(device, EngineDevice)
        return Foreign(LateEngine(), device.workers, first)


@asynccontextmanager
async def started(folder: Path, *devices: Any) -> AsyncIterator[Started]:
    async with nn.open_runtime(devices=devices or [LateEngine()], options=OPTIONS) as runtime:
        yield Started(runtime, folder / "cache")


async def loaded(folder: Path) -> CacheFiles:
    """What a program that starts now finds."""
    engine = LateEngine()
    async with started(folder, engine) as start:
        assert await start.compile() == "hit"
    return engine.loaded[-1]


async def kept(folder: Path) -> None:
    """A start that keeps what is interpreted."""
    async with started(folder) as start:
        assert "no entry" in await start.compile()


# -- engines of this process


async def test_what_a_plan_compiles_later_is_found_by_the_next_start(tmp_path: Path) -> None:
    engine = LateEngine()
    async with started(tmp_path, engine) as start:
        await start.compile()
        assert await loaded(tmp_path) == FIRST
        engine.plans[0].compile()
    assert await loaded(tmp_path) == LATER


async def test_a_plan_that_was_loaded_may_go_on(tmp_path: Path) -> None:
    await kept(tmp_path)
    engine = LateEngine()
    async with started(tmp_path, engine) as start:
        await start.compile()
        for n in range(20):
            engine.plans[-1].compile(CacheFiles((b"more",), (bytes([n]),)))
    assert await loaded(tmp_path) == CacheFiles((b"more",), (bytes([19]),))


async def test_of_two_who_amend_one_entry_the_first_is_kept(tmp_path: Path) -> None:
    await kept(tmp_path)
    first, second = LateEngine(), LateEngine()
    async with started(tmp_path, second) as later:
        async with started(tmp_path, first) as sooner:
            await later.compile()
            await sooner.compile()
            first.plans[-1].compile()
        second.plans[-1].compile(CacheFiles((b"too late",), (b"",)))
    assert await loaded(tmp_path) == LATER


async def test_other_numbers_of_files_leave_the_older_ones(tmp_path: Path) -> None:
    engine = LateEngine()
    async with started(tmp_path, engine) as start:
        await start.compile()
        engine.plans[0].compile(CacheFiles((b"one", b"too many"), (b"",)))
    assert await loaded(tmp_path) == FIRST


async def test_a_full_disk_leaves_the_older_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LateEngine()
    async with started(tmp_path, engine) as start:
        await start.compile()
        with monkeypatch.context() as full:
            full.setattr("nnasync._core.cache.transfer.write_all", no_room)
            engine.plans[0].compile()
            device = start.runtime.device("null")
            assert isinstance(device, EngineDevice)
            await device.written()
        assert await loaded(tmp_path) == FIRST
        engine.plans[0].compile()
    assert await loaded(tmp_path) == LATER


def no_room(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_after_the_runtime_was_closed_nothing_is_written(tmp_path: Path) -> None:
    engine = LateEngine()
    async with started(tmp_path, engine) as start:
        await start.compile()
    engine.plans[0].compile()
    assert await loaded(tmp_path) == FIRST


async def test_an_engine_that_fails_when_it_is_told_of_files_fails_the_caching_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Any, files: LateFiles) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.compilation.just_in_time.LatePlan.kept_in", failing)
    async with started(tmp_path) as start:
        assert "ZeroDivisionError" in await start.compile()
        assert "ZeroDivisionError" in await start.compile()


async def test_closing_does_not_wait_for_a_directory_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = threading.Event()

    def silent(*args: Any) -> str:
        answers.wait(GUARD_S)
        return ""

    monkeypatch.setattr("nnasync._core.runtime.runtime.CLOSE_GRACE_S", 0.01)
    monkeypatch.setattr(late_files.Amender, "replace", silent)
    engine = LateEngine()
    try:
        async with started(tmp_path, engine) as start:
            await start.compile()
            engine.plans[0].compile()
    finally:
        answers.set()
    assert "late cache files of null are not written in time" in caplog.text


# -- devices of others, with locks of their own


async def test_a_device_completes_its_entry_after_the_call(tmp_path: Path) -> None:
    async with started(tmp_path) as start:
        device = start.foreign()
        assert "no entry" in await start.compile(device)
        await start.compile(device)
        assert (device.prepared, device.loaded) == (2, [])  # empty files are no entry
        device.write(b"all of it")
        await device.close()
    async with started(tmp_path) as start:
        again = start.foreign()
        await start.compile(again)
        assert (again.prepared, again.loaded) == (0, [b"all of it"])
        again.write(b"ALL")
        await again.close()
    async with started(tmp_path) as start:
        third = start.foreign()
        await start.compile(third)
        await third.close()
    assert third.loaded == [b"ALL of it"]


async def test_what_was_written_late_is_kept_while_the_runtime_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nnasync._core.runtime.runtime.IDLE_PERIOD_S", 0.01)
    async with started(tmp_path) as start:
        device = start.foreign(b"begin")
        await start.compile(device)
        await start.compile(device)
        assert device.loaded == [b"begin"]
        device.write(b"began")
        while device.loaded[-1] != b"began":
            await start.compile(device)
        await device.close()


async def test_nothing_is_read_while_the_driver_writes(tmp_path: Path) -> None:
    async with started(tmp_path) as start:
        device = start.foreign(b"complete")
        await start.compile(device)
        fcntl.flock(device.fds[0], fcntl.LOCK_EX)
        os.ftruncate(device.fds[0], 4)
        await device.close()  # or dies: nobody unlocks it any more
    async with started(tmp_path) as start:
        device = start.foreign()
        await start.compile(device)
        await device.close()
    assert device.loaded == [b"complete"]


async def test_a_service_amends_the_entries_of_its_client(tmp_path: Path) -> None:
    engine = LateEngine()
    for expected in (None, FIRST, LATER):
        async with served(engine) as service, started(tmp_path, service.device) as start:
            assert service.device.caches_late
            said = await start.compile()
            assert (said == "hit") == (expected is not None)
            if expected is not None:
                assert engine.loaded[-1] == expected
                engine.plans[-1].compile()
                device = service.runtime.devices[0]
                assert isinstance(device, EngineDevice)
                await device.written()


async def test_a_device_in_a_process_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        async with started(tmp_path, await isolate(ISOLATED)) as start:
            reason = await start.compile()
            for _ in range(3):
                await start.nets[0](ROW)
    assert reason == "hit"
