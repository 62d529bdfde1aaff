"""Contests in a process of their own: the winner comes here, whatever becomes of that process."""

from __future__ import annotations

import importlib
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation import contest_process
from nnasync._core.drivers import is_installed
from nnasync._core.runtime import Runtime
from nnasync._core.service.process_resources import for_contests
from nnasync._core.state_files import state_folder
from nnasync.errors import DeviceUnavailable
from nnasync.machine import kept_costs
from nnasync.machine.loading import kept_loading_ms
from tests.conftest import BACKENDS
from tests.installing import install, installing
from tests.rigs import GUARD_S, ROW, doubler, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]

one_loop = pytest.mark.parametrize("anyio_backend", [BACKENDS["asyncio+uvloop"]], ids=["uvloop"])
"""For what takes long and does not depend on the loop."""
REFERENCE = "nnasync-reference"
ENGINE = """
import os
import signal

from nnasync._core.drivers.cpu import ReferenceEngine

HERE = os.path.dirname(__file__)


class Engine(ReferenceEngine):
    name = "acme"

    def compile(self, *arguments):
        with open(os.path.join(HERE, "pids"), "a") as file:
            file.write(f"{os.getpid()} ")
        {body}
        return super().compile(*arguments)
"""
FINE = "pass"
CRASH = f"os.kill(os.getpid(), signal.SIGSEGV) if os.getpid() != {os.getpid()} else 1 / 0"
_numbers = itertools.count()
HANG = "os.read(os.pipe()[0], 1)"


@pytest.fixture(autouse=True)
async def contests_apart(
    anyio_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    """Contests are held in another process, and no test waits for ever."""
    monkeypatch.setattr(contest_process, "can_start", lambda: True)
    # Processes are started and waited for; beside others that takes several times as long.
    with anyio.fail_after(5 * GUARD_S):
        yield


@contextmanager
def acme(folder: Path, body: str) -> Iterator[None]:
    """A third party's device, which notes in which processes it compiles, and then does this."""
    # What code a module has is looked up once in a process.
    module = f"acme_{next(_numbers)}"
    install(folder, {"acme": f"{module}:Engine"}, {module: ENGINE.replace("{body}", body)})
    with installing(folder):
        yield


def pids(folder: Path) -> list[int]:
    """The processes in which the device compiled, in order."""
    path = folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def source(folder: Path) -> Path:
    """The file of the device's driver."""
    [path] = folder.glob("*.py")
    return path


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "# edited\n")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def end_idle(runtime: Runtime) -> None:
    """Kill the process that waits for the next contest."""
    assert runtime._contests is not None
    idle = runtime._contests._idle
    assert idle is not None
    idle.peer.kill()
    await until(lambda: idle.peer.has_ended)


async def compile_and_close(runtime: Runtime, model: nn.Model) -> None:
    net = await runtime.compile(model)
    await net.close()


async def check_sum(net: nn.Net) -> None:
    assert np.array_equal(await net(ROW), 2 * ROW)


async def test_the_winner_is_prepared_here_and_nothing_else(tmp_path: Path) -> None:
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            net = await runtime.compile(doubler())
            report = net.report()
            await check_sum(net)
    apart, *here = pids(tmp_path)
    assert apart != os.getpid()
    assert not is_alive(apart)
    winner = report.partitions[0]
    assert here == ([os.getpid()] if winner.device == "acme" else [])
    assert winner.reason.startswith("fastest whose results agree")
    assert {line.device for line in report.candidates} == {"acme", REFERENCE}
    assert all(line.median_us is not None for line in report.candidates)


@one_loop
async def test_the_machine_is_measured_with_the_first_contest(tmp_path: Path) -> None:
    state = tmp_path / "state"
    options = nn.Options(state_dir=state)
    assert kept_costs(state) is None
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE], options=options) as runtime:
            await compile_and_close(runtime, doubler())
    assert kept_costs(state) is not None


@one_loop
async def test_what_it_found_is_remembered(tmp_path: Path) -> None:
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            first = await runtime.compile(doubler())
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            second = await runtime.compile(doubler())
            assert runtime._contests is None
    assert "as measured before" in second.report().partitions[0].reason
    assert second.report().candidates == first.report().candidates


@one_loop
async def test_one_process_holds_one_contest_after_another(tmp_path: Path) -> None:
    with acme(tmp_path, FINE):
        async with (
            nn.open_runtime(devices=["acme", REFERENCE]) as runtime,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(compile_and_close, runtime, doubler())
            tasks.start_soon(compile_and_close, runtime, doubler("other"))
    apart = [pid for pid in pids(tmp_path) if pid != os.getpid()]
    assert len(apart) == 2
    assert len(set(apart)) == 1


def test_a_contest_waits_for_a_process_that_is_being_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, go, begun = list[int](), threading.Event(), threading.Event()

    def start(*_: object) -> None:
        started.append(1)
        begun.set()
        assert go.wait(20)
        raise OSError("started for the test only")

    monkeypatch.setattr(contest_process, "start_process", start)
    process = contest_process.ContestProcess("{}")
    threads = [threading.Thread(target=process.begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    assert process._starting.locked()
    assert started == [1]
    go.set()
    for thread in threads:
        thread.join(20)
    process.close()


@one_loop
async def test_a_device_that_crashes_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with acme(tmp_path, CRASH):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            net = await runtime.compile(doubler())
            await check_sum(net)
    assert len(pids(tmp_path)) == 1
    assert net.report().partitions[0].device == REFERENCE
    assert "SIGSEGV" in "\n".join(map(str, net.report().rejections))
    assert caplog.text.count("it is left out") == 1


@one_loop
async def test_a_device_that_keeps_silent_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest_process, "_PATIENCE_S", 4.0)
    with acme(tmp_path, HANG):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            net = await runtime.compile(doubler())
            await check_sum(net)
    assert net.report().partitions[0].device == REFERENCE
    assert "said nothing for" in "\n".join(map(str, net.report().rejections))


async def test_a_cancelled_compilation_ends_the_process(tmp_path: Path) -> None:
    with acme(tmp_path, HANG):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: runtime.compile(doubler()))
                await until(lambda: bool(pids(tmp_path)))
                tasks.cancel_scope.cancel()
            await until(lambda: not is_alive(pids(tmp_path)[0]))
            assert runtime._contests is not None


@one_loop
@pytest.mark.slow
async def test_a_deadline_ends_it_and_the_first_device_is_taken(tmp_path: Path) -> None:
    body = f"{HANG} if os.getpid() != {os.getpid()} else None"
    with acme(tmp_path, body):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            net = await runtime.compile(doubler(), deadline=nn.within(s=8))
            await check_sum(net)
    assert net.report().partitions[0].device == "acme"
    assert not is_alive(pids(tmp_path)[0])


@one_loop
async def test_a_process_that_ended_meanwhile_is_started_again(tmp_path: Path) -> None:
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            first = await runtime.compile(doubler())
            await first.close()
            await end_idle(runtime)
            net = await runtime.compile(doubler("other"))
    assert all(line.median_us is not None for line in net.report().candidates)


@one_loop
async def test_a_process_that_no_contest_needed_ends_with_the_runtime(tmp_path: Path) -> None:
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            net = await runtime.compile(doubler(), deadline=nn.within(s=GUARD_S))
            await net.close()
            process = runtime._contests_once()
            process.begin()
            process.begin()
            assert process._idle is not None
            pid = process._idle.peer.pid
            assert is_alive(pid)
    assert not is_alive(pid)
    process.begin()
    assert process._idle is None


@one_loop
async def test_without_a_process_the_contest_is_held_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DeviceUnavailable("no more processes")

    monkeypatch.setattr(contest_process, "start_process", refuse)
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            net = await runtime.compile(doubler())
    assert set(pids(tmp_path)) == {os.getpid()}
    assert all(line.median_us is not None for line in net.report().candidates)


@one_loop
@pytest.mark.parametrize("why", ["object", "option", "program"])
async def test_some_contests_are_held_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "program":
        monkeypatch.setattr(contest_process, "can_start", lambda: False)
    options = nn.Options(contest_process=why != "option")
    with acme(tmp_path, FINE):
        device: Any = "acme"
        if why == "object":
            device = importlib.import_module(source(tmp_path).stem).Engine()
        async with nn.open_runtime(devices=[device, REFERENCE], options=options) as runtime:
            net = await runtime.compile(doubler())
            await net.close()
    assert set(pids(tmp_path)) == {os.getpid()}


@one_loop
async def test_a_driver_that_was_edited_since_is_measured_here(tmp_path: Path) -> None:
    with acme(tmp_path, FINE):
        async with nn.open_runtime(devices=["acme", REFERENCE]) as runtime:
            first = await runtime.compile(doubler())
            await first.close()
            await end_idle(runtime)
            edit(source(tmp_path))
            net = await runtime.compile(doubler("other"))
    assert pids(tmp_path).count(os.getpid()) >= 1
    assert net.report().candidates


@pytest.mark.skipif(not is_installed("litert-cpu"), reason="it needs an engine that is imported")
@pytest.mark.one_loop("the process measures")
async def test_what_an_engine_took_to_be_ready_is_kept() -> None:
    async with nn.open_runtime(devices=["litert-cpu", REFERENCE]) as runtime:
        await compile_and_close(runtime, doubler())
        name = f"litert-cpu {runtime.device('litert-cpu').version}"
        # The process tells who won before it writes what engines took; others may write, too.
        await until(lambda: name in kept_loading_ms(state_folder()))


def test_contests_are_not_held_in_real_time() -> None:
    """They are behind the application, whose threads may be ahead of all others."""
    options = for_contests(nn.Options(real_time=True))
    assert (options.real_time, options.contest_process) == (False, False)
