"""Sync fences: signaling, awaiting, merging, and crossing process borders."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import clock, errors, fences, hal
from nnasync.fences import Fence, FenceStatus, merge, signaled
from nnasync.wakeup import Wakeup, yield_now

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

ROOT = Path(__file__).resolve().parent.parent

PRODUCER = """
import os, sys
from nnasync.fences import Fence
fence = Fence()
os.set_inheritable(fd := fence.export_fd(), True)
recipient = int(sys.argv[1])
import socket
with socket.socket(fileno=recipient) as channel:
    socket.send_fds(channel, [b"f"], [fd])
os.close(fd)
command = sys.stdin.readline().strip()
if command == "signal":
    fence.signal()
elif command == "fail":
    fence.fail(ValueError("no luck"))
elif command == "drop":
    del fence
sys.stdin.readline()
"""


class Boom(Exception):
    """An error that cannot be built without its second argument."""

    def __init__(self, message: str, detail: int) -> None:
        super().__init__(message)
        self.detail = detail


async def test_a_fence_is_final_once() -> None:
    fence = Fence()
    assert status_of(fence) is FenceStatus.PENDING
    assert fence.signaled_at_ns == 0
    before = clock.now_ns()
    assert fence.signal()
    assert before <= fence.signaled_at_ns <= clock.now_ns()
    settled_at = fence.signaled_at_ns
    assert not fence.signal()
    assert not fence.fail(ValueError("late"))
    assert fence.status is FenceStatus.SIGNALED
    assert fence.error is None
    assert fence.signaled_at_ns == settled_at
    await fence


async def test_a_failed_fence_keeps_its_first_error() -> None:
    fence, error = Fence(), errors.DeviceDied("gone")
    assert fence.fail(error)
    assert not fence.fail(ValueError("late"))
    assert not fence.signal()
    assert fence.status is FenceStatus.ERROR
    assert fence.error is error
    assert fence.signaled_at_ns > 0


def test_a_fence_fails_with_exceptions_only() -> None:
    for wrong in (KeyboardInterrupt(), ValueError, "no", None):
        with pytest.raises(errors.InvalidArgument):
            Fence().fail(wrong)  # type: ignore[arg-type]


def test_one_of_many_racing_signals_wins() -> None:
    for _ in range(20):
        fence = Fence()
        calls: list[Fence] = []
        fence.add_callback(calls.append)
        start = threading.Barrier(8)
        wins: list[bool] = []

        def race(
            i: int,
            fence: Fence = fence,
            start: threading.Barrier = start,
            wins: list[bool] = wins,
        ) -> None:
            start.wait()
            wins.append(fence.signal() if i % 2 else fence.fail(ValueError(i)))

        threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wins.count(True) == 1
        assert calls == [fence]


async def test_an_await_ends_when_another_thread_signals() -> None:
    fence = Fence()
    async with anyio.create_task_group() as group:
        group.start_soon(awaited, fence)
        await anyio.wait_all_tasks_blocked()
        thread = threading.Thread(target=fence.signal)
        thread.start()
    thread.join()


def status_of(fence: Fence) -> FenceStatus:
    """The status, hidden from a type checker that believes it cannot change."""
    return fence.status


async def awaited(fence: Fence) -> None:
    await fence


async def test_awaiting_a_signaled_fence_does_not_suspend() -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(100):
            await signaled()
        assert ran == []


async def test_each_awaiter_gets_its_own_exception() -> None:
    fence = Fence()
    caught: list[errors.OutputInsufficientSize] = []

    async def wait() -> None:
        try:
            await fence
        except errors.OutputInsufficientSize as error:
            caught.append(error)

    original = errors.OutputInsufficientSize("too small", (hal.OutputShape((2, 3)),))
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        fence.fail(original)
    await wait()
    assert len({id(error) for error in [*caught, original]}) == 12
    assert all(error.__cause__ is original for error in caught)
    assert all(error.output_shapes == original.output_shapes for error in caught)
    assert all(str(error) == "too small" for error in caught)
    assert original.__traceback__ is None
    lengths = {len(traceback.extract_tb(error.__traceback__)) for error in caught[:10]}
    assert len(lengths) == 1


async def test_an_error_that_cannot_be_copied_becomes_a_general_failure() -> None:
    fence, error = Fence(), Boom("boom", 3)
    fence.fail(error)
    with pytest.raises(errors.GeneralFailure, match="Boom: boom") as caught:
        await fence
    assert caught.value.__cause__ is error


def test_fresh_copies_attributes_and_no_traceback() -> None:
    try:
        raise OSError(2, "gone", "file")
    except OSError as error:
        error.add_note("a note")
        twin = fences.fresh(error)
    assert isinstance(twin, FileNotFoundError)
    assert (twin.errno, twin.filename, twin.__notes__) == (2, "file", ["a note"])
    assert twin.__traceback__ is None
    assert twin.__cause__ is None


async def test_cancelling_an_await_leaves_the_fence_alone() -> None:
    fence = Fence()
    async with anyio.create_task_group() as keep:
        keep.start_soon(awaited, fence)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(awaited, fence)
            await anyio.wait_all_tasks_blocked()
            assert fence._callbacks is not None
            assert len(fence._callbacks) == 6
            group.cancel_scope.cancel()
        assert fence.status is FenceStatus.PENDING
        assert fence._callbacks is not None
        assert len(fence._callbacks) == 1
        assert fence.signal()


async def test_a_signal_that_crosses_a_cancellation_is_harmless() -> None:
    for _ in range(50):
        fence = Fence()
        async with anyio.create_task_group() as group:
            group.start_soon(awaited, fence)
            await anyio.wait_all_tasks_blocked()
            thread = threading.Thread(target=fence.signal)
            thread.start()
            group.cancel_scope.cancel()
        thread.join()
        await fence


async def test_many_awaiters_cost_one_wake_up() -> None:
    fence = Fence()
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(awaited, fence)
        await anyio.wait_all_tasks_blocked()
        before = Wakeup.current().wakeups
        thread = threading.Thread(target=fence.signal)
        thread.start()
        thread.join()
    assert Wakeup.current().wakeups == before + 1


async def test_a_chain_of_fences_wakes_the_loop_once() -> None:
    chain = [Fence() for _ in range(8)]
    for first, second in itertools.pairwise(chain):
        first.add_callback(lambda _, second=second: second.signal())  # type: ignore[misc]
    before = Wakeup.current().wakeups
    thread = threading.Thread(target=chain[0].signal)
    async with anyio.create_task_group() as group:
        group.start_soon(awaited, chain[-1])
        await anyio.wait_all_tasks_blocked()
        thread.start()
    thread.join()
    assert Wakeup.current().wakeups == before + 1
    assert [fence.status for fence in chain] == [FenceStatus.SIGNALED] * 8


def test_callbacks_run_on_the_signaling_thread() -> None:
    fence = Fence()
    where: list[str] = []
    fence.add_callback(lambda _: where.append(threading.current_thread().name))
    thread = threading.Thread(target=fence.signal, name="signaler")
    thread.start()
    thread.join()
    fence.add_callback(lambda _: where.append(threading.current_thread().name))
    assert where == ["signaler", threading.current_thread().name]


def test_a_callback_sees_the_final_fence_and_may_use_it() -> None:
    fence = Fence()
    seen: list[tuple[FenceStatus, bool, bool]] = []

    def look(same: Fence) -> None:
        assert same is fence
        seen.append((same.status, same.signal(), same.remove_callback(look)))
        same.add_callback(lambda _: None)

    fence.add_callback(look)
    fence.signal()
    assert seen == [(FenceStatus.SIGNALED, False, False)]


def test_a_removed_callback_is_not_called() -> None:
    fence = Fence()
    calls: list[Fence] = []
    fence.add_callback(calls.append)
    fence.add_callback(calls.append)
    assert fence.remove_callback(calls.append)
    fence.signal()
    assert calls == [fence]
    assert not fence.remove_callback(calls.append)


def test_a_raising_callback_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fence = Fence()
    calls: list[Fence] = []

    def broken(_: Fence) -> None:
        raise ValueError("broken callback")

    fence.add_callback(broken)
    fence.add_callback(calls.append)
    with caplog.at_level(logging.ERROR, logger="nnasync.fences"):
        assert fence.signal()
        fence.add_callback(broken)
    assert calls == [fence]
    assert caplog.text.count("ValueError: broken callback") == 2


def test_a_thread_waits_for_a_fence() -> None:
    fence = Fence()
    thread = threading.Thread(target=fence.signal)
    thread.start()
    fence.wait_blocking()
    fence.wait_blocking(timeout_s=0)
    thread.join()
    failed = Fence()
    failed.fail(errors.DeviceDied("gone"))
    with pytest.raises(errors.DeviceDied) as caught:
        failed.wait_blocking(30)
    assert caught.value.__cause__ is failed.error


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_thread_waits_for_a_time_that_makes_sense(timeout_s: float) -> None:
    with pytest.raises(errors.InvalidArgument):
        Fence().wait_blocking(timeout_s)


def test_a_thread_that_waits_in_vain_leaves_nothing_behind() -> None:
    fence = Fence()
    with pytest.raises(errors.MissedDeadlineTransient):
        fence.wait_blocking(0.001)
    assert fence._callbacks == []
    assert fence.signal()


def test_a_fence_can_be_referenced_weakly() -> None:
    fence = Fence()
    reference = weakref.ref(fence)
    assert reference() is fence
    del fence
    assert reference() is None


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_a_merge_follows_its_inputs(order: list[int], failing: set[int]) -> None:
    inputs = [Fence() for _ in range(5)]
    merged = merge(inputs)
    failed: list[int] = []
    for done, i in enumerate(order, 1):
        if i in failing:
            inputs[i].fail(ValueError(i))
            failed.append(i)
        else:
            inputs[i].signal()
        if failed:
            assert merged.error is inputs[failed[0]].error
        else:
            assert (merged.status is FenceStatus.SIGNALED) == (done == 5)


async def test_a_merge_of_final_fences_is_final() -> None:
    await merge([])
    await merge([signaled(), signaled()])
    await merge(iter([signaled()]))
    fence = Fence()
    assert merge([fence, fence]).status is FenceStatus.PENDING
    failed = Fence()
    failed.fail(ValueError("first"))
    merged = merge([fence, failed])
    with pytest.raises(ValueError, match="first"):
        await merged


def test_failing_a_merge_leaves_its_inputs_alone() -> None:
    first, second = Fence(), Fence()
    merged = merge([first, second])
    assert merged.fail(errors.DeviceUnavailable("closing"))
    assert first.status is second.status is FenceStatus.PENDING
    first.signal()
    second.signal()
    assert merged.status is FenceStatus.ERROR


async def test_an_exported_signal_is_imported() -> None:
    fence = Fence()
    imported = Fence.import_fd(fence.export_fd())
    assert status_of(imported) is FenceStatus.PENDING
    fence.signal()
    await imported
    assert imported.status is FenceStatus.SIGNALED
    again = Fence.import_fd(fence.export_fd())
    assert again.status is FenceStatus.SIGNALED


async def test_an_exported_error_is_imported_as_a_death() -> None:
    fence = Fence()
    imported = Fence.import_fd(fence.export_fd())
    fence.fail(ValueError("no luck"))
    with pytest.raises(errors.DeviceDied):
        await imported
    again = Fence.import_fd(fence.export_fd())
    assert again.status is FenceStatus.ERROR


async def test_each_recipient_has_its_own_pipe() -> None:
    fence = Fence()
    imported = [Fence.import_fd(fence.export_fd()) for _ in range(10)]
    gone = fence.export_fd()
    os.close(gone)
    fence.signal()
    for each in imported:
        await each


async def test_nobody_reads_the_byte() -> None:
    fence = Fence()
    fd = fence.export_fd()
    imported = [Fence.import_fd(os.dup(fd)) for _ in range(3)]
    fence.signal()
    for each in imported:
        await each
    later = Fence.import_fd(fd)
    assert later.status is FenceStatus.SIGNALED


async def test_a_collected_fence_is_an_error_at_its_peers() -> None:
    fence = Fence()
    imported = Fence.import_fd(fence.export_fd())
    del fence
    gc.collect()
    with pytest.raises(errors.DeviceDied):
        await imported


async def test_an_imported_fence_is_exported_again() -> None:
    fence = Fence()
    middle = Fence.import_fd(fence.export_fd())
    last = Fence.import_fd(middle.export_fd())
    fence.signal()
    await last
    assert middle.status is FenceStatus.SIGNALED


async def test_failing_an_imported_fence_lets_go_of_its_descriptor() -> None:
    fence = Fence()
    fd = fence.export_fd()
    imported = Fence.import_fd(fd)
    assert imported.fail(errors.MissedDeadlineTransient("too late"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    fence.signal()
    assert imported.status is FenceStatus.ERROR


async def test_the_watching_thread_ends_with_the_last_imported_fence() -> None:
    fence = Fence()
    imported = Fence.import_fd(fence.export_fd())
    thread = fences._watcher.thread
    assert thread is not None
    others = [Fence.import_fd(fence.export_fd()) for _ in range(5)]
    assert fences._watcher.thread is thread
    fence.signal()
    await merge([imported, *others])
    thread.join(timeout=30)
    assert not thread.is_alive()
    fence = Fence()
    imported = Fence.import_fd(fence.export_fd())
    fence.signal()
    await imported


async def test_a_final_import_starts_no_thread() -> None:
    before = fences._watcher.thread
    Fence.import_fd(signaled().export_fd())
    assert fences._watcher.thread is before


async def test_imports_come_and_go_from_many_threads() -> None:
    def churn(seed: int) -> None:
        for i in range(50):
            fence = Fence()
            imported = Fence.import_fd(fence.export_fd())
            kind = (seed + i) % 3
            if kind == 0:
                fence.signal()
                imported.wait_blocking(30)
            elif kind == 1:
                assert imported.fail(ValueError("gave up"))
                fence.signal()
            else:
                del fence
                with pytest.raises(errors.DeviceDied):
                    imported.wait_blocking(30)

    async with anyio.create_task_group() as group:
        for seed in range(4):
            group.start_soon(anyio.to_thread.run_sync, churn, seed)
    while (thread := fences._watcher.thread) is not None:
        thread.join(timeout=30)
    assert fences._watcher._fences == {}


def wrong_descriptors() -> Iterator[Any]:
    yield pytest.param(lambda: os.open("/dev/null", os.O_RDONLY), id="device")
    yield pytest.param(lambda: os.open(__file__, os.O_RDONLY), id="file")
    yield pytest.param(lambda: os.open(".", os.O_RDONLY), id="folder")
    yield pytest.param(write_end, id="write end")
    if hasattr(os, "O_PATH"):
        yield pytest.param(path_of_a_pipe, id="path only")


def write_end() -> int:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    return write_fd


def path_of_a_pipe() -> int:
    read_fd, write_fd = os.pipe()
    fd = os.open(f"/proc/self/fd/{read_fd}", os.O_PATH)
    os.close(read_fd)
    os.close(write_fd)
    return fd


@pytest.mark.parametrize("make", list(wrong_descriptors()))
def test_importing_what_is_no_fence_closes_it(make: Any) -> None:
    fd = make()
    with pytest.raises(errors.InvalidArgument, match="read end of a pipe"):
        Fence.import_fd(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("fd", [-1, 10**6, "3", None, 1.0, True])
def test_importing_what_is_no_descriptor(fd: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        Fence.import_fd(fd)


def test_importing_a_descriptor_twice_leaves_the_first_alone() -> None:
    fence = Fence()
    fd = fence.export_fd()
    imported = Fence.import_fd(fd)
    with pytest.raises(errors.InvalidArgument, match="already"):
        Fence.import_fd(fd)
    fence.signal()
    imported.wait_blocking(30)


class Producer:
    """Another process that exports one fence to this one."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PRODUCER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            theirs.close()
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        self.fd = descriptors[0]

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


async def end_of_another_process(command: str) -> Fence:
    producer = await anyio.to_thread.run_sync(Producer)
    try:
        fence = Fence.import_fd(producer.fd)
        assert fence.status is FenceStatus.PENDING
        if command == "kill":
            producer.process.kill()
        else:
            producer.tell(command)
        with anyio.move_on_after(60):
            try:
                await fence
            except errors.DeviceDied:
                pass
        return fence
    finally:
        await anyio.to_thread.run_sync(producer.close)


async def test_another_process_signals() -> None:
    fence = await end_of_another_process("signal")
    assert fence.status is FenceStatus.SIGNALED


@pytest.mark.parametrize("command", ["fail", "drop", "kill"])
async def test_another_process_fails_or_dies(command: str) -> None:
    fence = await end_of_another_process(command)
    assert isinstance(fence.error, errors.DeviceDied)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_can_import_and_its_parent_goes_on() -> None:
    read_fd, write_fd = os.pipe()
    fence = Fence()
    imported = Fence.import_fd(fence.export_fd())
    child = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (child.stdout, child.stderr, child.returncode) == ("child parent", "", 0)
    os.close(read_fd)
    os.close(write_fd)
    fence.signal()
    imported.wait_blocking(30)


FORKING = """
import os
from nnasync.fences import Fence
fence = Fence()
imported = Fence.import_fd(fence.export_fd())
pid = os.fork()
if pid == 0:
    own = Fence()
    theirs = Fence.import_fd(own.export_fd())
    own.signal()
    theirs.wait_blocking(30)
    os.write(1, b"child ")
    os._exit(0)
os.waitpid(pid, 0)
fence.signal()
imported.wait_blocking(30)
os.write(1, b"parent")
"""


async def test_without_epoll_the_watcher_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    while (thread := fences._watcher.thread) is not None:
        thread.join(timeout=30)
    with monkeypatch.context() as patch:
        patch.delattr(select, "epoll", raising=False)
        first, second, third = Fence(), Fence(), Fence()
        imported = [Fence.import_fd(fence.export_fd()) for fence in (first, second, third)]
        thread = fences._watcher.thread
        assert thread is not None
        second.signal()
        await imported[1]
        assert imported[0].status is FenceStatus.PENDING
        del first
        with pytest.raises(errors.DeviceDied):
            await imported[0]
        assert imported[2].fail(ValueError("gave up"))
        await yield_now()
        thread.join(timeout=30)
        assert not thread.is_alive()
