"""Hostile peers: garbage in the ring, floods, and handovers that are none."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Any

import pytest

from nnasync._core.message_queue import Handover, QueueReader, QueueWriter
from nnasync._core.message_queue.ring import HEADER_BYTES, MAGIC
from nnasync.errors import (
    BadState,
    DeviceDied,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from nnasync.memory import Pool
from tests.message_queue.waiting import (
    Queue,
    in_thread,
    outcome,
    until_parked,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_garbage_in_the_ring_ends_the_queue(queue: Queue) -> None:
    writer, reader = queue
    writer._ring._words[16] = 3
    for _ in range(2):
        with pytest.raises(GeneralFailure, match="broke it"):
            reader.try_read()
    assert reader.closed
    with pytest.raises(DeviceDied):
        writer.try_write(b"x")


def test_garbage_in_the_counter_of_the_reader_ends_the_queue(queue: Queue) -> None:
    writer, reader = queue
    writer.try_write(b"x" * 56)
    reader._ring._words[32] = 2**60
    with pytest.raises(GeneralFailure, match="broke it"):
        writer.try_write(b"y")
    with pytest.raises(GeneralFailure, match="broke it"):
        writer.try_write(b"y")
    assert writer.closed


def test_a_parked_reader_ends_when_garbage_comes(queue: Queue) -> None:
    writer, reader = queue
    waiting = in_thread(reader.read_blocking)
    until_parked(reader)
    writer._ring._words[16] = 2**63
    writer._waker.ring()
    assert isinstance(outcome(*waiting), GeneralFailure)


def test_ringing_without_writing_ends_the_queue(queue: Queue) -> None:
    writer, reader = queue
    waiting = in_thread(reader.read_blocking)
    while waiting[0].is_alive():
        writer._waker.ring()
        os.sched_yield()
    assert "rings without moving" in str(outcome(*waiting))
    with pytest.raises(GeneralFailure, match="rings without moving"):
        reader.try_read()


def test_a_flood_of_rings_does_not_block_the_ringer(queue: Queue) -> None:
    writer, reader = queue
    capacity = 1 << 16
    for _ in range(capacity + 10):
        writer._waker.ring()
    assert not writer._waker.peer_closed
    writer.try_write(b"x")
    assert reader.read_blocking() == b"x"


def test_a_peer_cannot_make_our_ring_block() -> None:
    """Its descriptor of the same pipe is another open file than ours."""
    reader, handover = QueueReader.create(64)
    kept = [os.dup(fd) for fd in handover.descriptors]
    writer = QueueWriter.attach(handover)
    os.set_blocking(kept[1], True)
    with reader, writer:
        assert not os.get_blocking(writer._waker._fd)
    for fd in kept:
        os.close(fd)


def memory_with(capacity_word: int, *, size: int = HEADER_BYTES + 64) -> int:
    """Descriptor of sealed memory that begins like a queue."""
    with Pool.allocate(size) as pool:
        words = pool.view[:HEADER_BYTES].cast("Q")
        words[0], words[1], words[2] = MAGIC, 1, capacity_word
        return os.dup(pool.fd)


def unsealed() -> int:
    fd = os.memfd_create("test")
    os.ftruncate(fd, mmap.PAGESIZE)
    return fd


def random_file() -> int:
    return os.open(__file__, os.O_RDONLY)


def read_only() -> int:
    fd = memory_with(64)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    finally:
        os.close(fd)


def write_sealed() -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, mmap.PAGESIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE)
    return fd


def closed_number() -> int:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


@pytest.mark.parametrize(
    ("memory", "reason"),
    [
        (unsealed, "sealed"),
        (random_file, "sealed"),
        (lambda: memory_with(4096 * 16), "claims 65536 bytes"),
        (lambda: memory_with(63), "multiple of 8"),
        (lambda: memory_with(2**64 - 8), "multiple of 8"),
        (closed_number, "descriptor"),
        (read_only, "cannot map"),
        (write_sealed, "cannot map"),
        (lambda: os.eventfd(0), "cannot map 0 bytes"),
    ],
)
@pytest.mark.parametrize("end", [QueueReader, QueueWriter])
def test_memory_that_is_no_queue_is_refused(
    memory: Callable[[], int], reason: str, end: type[QueueReader] | type[QueueWriter]
) -> None:
    heard, rung = os.pipe()
    ours, theirs = (heard, rung) if end is QueueReader else (rung, heard)
    os.close(theirs)
    with pytest.raises(InvalidArgument, match=reason):
        end.attach(Handover((memory(), ours)))


@pytest.mark.parametrize("other", [lambda: os.eventfd(0), random_file, lambda: memory_with(64)])
def test_what_is_no_pipe_is_refused(other: Callable[[], int]) -> None:
    writer, handover = QueueWriter.create(64)
    fds = [os.dup(fd) for fd in handover.descriptors]
    handover.close()
    os.close(fds[1])
    fds[1] = other()
    with writer, pytest.raises(InvalidArgument, match="not a pipe"):
        QueueReader.attach(Handover(fds))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_descriptors_is_refused(count: int) -> None:
    fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
    with pytest.raises(InvalidArgument, match=f"2 file descriptors, not {count}"):
        Handover(fds)


def test_a_handover_serves_once() -> None:
    writer, handover = QueueWriter.create(64)
    reader = QueueReader.attach(handover)
    with writer, reader, pytest.raises(BadState, match="attached already"):
        QueueReader.attach(handover)


def test_a_peer_that_is_gone_before_we_join() -> None:
    reader, handover = QueueReader.create(64)
    reader.close()
    with QueueWriter.attach(handover) as writer, pytest.raises(DeviceDied):
        writer.try_write(b"hello?")


def test_who_joins_a_dead_writer_reads_what_it_left() -> None:
    reader, handover = QueueReader.create(64)
    writer = QueueWriter.attach(handover)
    writer.try_write(b"bequest")
    writer.close()
    with reader:
        assert reader.read_blocking() == b"bequest"
        with pytest.raises(DeviceDied):
            reader.read_blocking()


@pytest.mark.parametrize("call", ["open_pipe", "dup"])
def test_no_descriptors_left(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    if call == "dup":
        monkeypatch.setattr(os, "dup", refuse)
    else:
        monkeypatch.setattr(os, "pipe2", refuse)
    with pytest.raises(ResourceExhaustedTransient, match="descriptors"):
        QueueWriter.create(64)


@pytest.mark.parametrize("capacity", [0, 63, 2**40])
def test_a_queue_of_no_fitting_size_is_refused(capacity: int) -> None:
    with pytest.raises(InvalidArgument, match="capacity"):
        QueueWriter.create(capacity)


def test_a_queue_without_order_of_memory_never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnasync._core.message_queue.reader.ORDERED", False)
    writer, handover = QueueWriter.create(64)
    reader = QueueReader.attach(handover)
    reader.polling_ns = 10**9
    with writer, reader:
        assert reader.polling_ns == 0
