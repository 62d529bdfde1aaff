"""Sync fences as file descriptors: export, import, and the death of the producer."""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnasync import errors, fences
from nnasync._core.wakeup import yield_now
from nnasync.fences import Fence, FenceStatus, merge, signaled

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


def status_of(fence: Fence) -> FenceStatus:
    """The status, hidden from a type checker that believes it cannot change."""
    return fence.status


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


def test_without_descriptors_left_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    def pipe() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    fence = Fence()
    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(errors.ResourceExhaustedTransient, match="Too many open files"):
        fence.export_fd()


@pytest.mark.parametrize("missing", ["descriptors", "threads"])
def test_what_cannot_be_watched_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    while (thread := fences._watcher.thread) is not None:
        thread.join(timeout=30)

    def refuse(*_: object) -> None:
        raise OSError("none left") if missing == "descriptors" else RuntimeError("none left")

    fence = Fence()
    fd = fence.export_fd()
    with monkeypatch.context() as patch:
        if missing == "descriptors":
            patch.setattr(os, "set_blocking", refuse)
        else:
            patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(errors.ResourceExhaustedTransient, match="none left"):
            Fence.import_fd(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    imported = Fence.import_fd(fence.export_fd())
    fence.signal()
    imported.wait_blocking(30)


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
    # From 3.12 on Python warns of each fork beside threads, which is what is tried here.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKING]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
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
