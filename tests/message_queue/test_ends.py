"""Both ends in one process: waiting in threads, closing."""

from __future__ import annotations

import functools

import pytest

from nnasync._core.message_queue import QueueReader, QueueWriter
from nnasync._core.message_queue.ring import Consumer
from nnasync.errors import (
    BadState,
    DeviceDied,
    InvalidArgument,
)
from tests.message_queue.waiting import (
    PARKED_S,
    Queue,
    in_thread,
    outcome,
    until_parked,
    write,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("made_by", ["writer", "reader"])
def test_either_end_may_make_the_queue(made_by: str) -> None:
    writer: QueueWriter
    reader: QueueReader
    if made_by == "writer":
        writer, handover = QueueWriter.create(1024)
        reader = QueueReader.attach(handover)
    else:
        reader, handover = QueueReader.create(1024)
        writer = QueueWriter.attach(handover)
    with writer, reader:
        assert writer.capacity == reader.capacity == 1024
        assert reader.try_read() is None
        assert writer.try_write(b"one")
        assert writer.try_write(b"")
        assert reader.try_read() == b"one"
        assert reader.try_read() == b""
        assert reader.try_read() is None


def test_a_full_queue_says_so(queue: Queue) -> None:
    writer, reader = queue
    assert writer.try_write(b"x" * 56)
    assert not writer.try_write(b"")
    assert reader.read_blocking() == b"x" * 56
    assert writer.try_write(b"")


def test_what_never_fits_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="57 bytes never fits: the message queue takes up to"):
        queue[0].try_write(b"x" * 57)


def test_a_parked_reader_is_woken(queue: Queue) -> None:
    writer, reader = queue
    waiting = in_thread(reader.read_blocking)
    until_parked(reader)
    assert writer.try_write(b"wake")
    assert outcome(*waiting) == b"wake"


@pytest.mark.parametrize("timeout_s", [0, 1e-4])
def test_waiting_ends_with_its_timeout(queue: Queue, timeout_s: float) -> None:
    assert queue[1].read_blocking(timeout_s) is None
    queue[1].polling_ns = 10**6
    assert queue[1].read_blocking(timeout_s) is None


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan")])
def test_a_timeout_that_is_none_is_refused(queue: Queue, timeout_s: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        queue[1].read_blocking(timeout_s)


@pytest.mark.parametrize("timeout_s", [PARKED_S, float("inf"), None])
def test_a_packet_comes_before_a_timeout(queue: Queue, timeout_s: float | None) -> None:
    waiting = in_thread(lambda: queue[1].read_blocking(timeout_s))
    until_parked(queue[1])
    queue[0].try_write(b"in time")
    assert outcome(*waiting) == b"in time"


def test_a_polling_reader_does_not_park(queue: Queue) -> None:
    writer, reader = queue
    reader.polling_ns = 2**60
    waiting = in_thread(reader.read_blocking)
    writer.try_write(b"seen")
    assert outcome(*waiting) == b"seen"
    assert not reader._waker._poll.poll(0)


def test_polling_that_never_helps_is_left_off(queue: Queue) -> None:
    reader = queue[1]
    reader.polling_ns = 1000
    polled = []
    for _ in range(200):
        before = reader._misses
        assert reader.read_blocking(0.0) is None
        worth = reader._worth_polling()
        polled.append(worth)
        reader._misses = before + 1
    assert polled[:3] == [True] * 3
    assert 0 < sum(polled[4:]) < 10
    reader.polling_ns = 1000
    assert reader._worth_polling()


def test_one_at_a_time_may_wait(queue: Queue) -> None:
    writer, reader = queue
    waiting = in_thread(reader.read_blocking)
    until_parked(reader)
    with pytest.raises(BadState, match="somebody waits"):
        reader.read_blocking()
    writer.try_write(b"x")
    assert outcome(*waiting) == b"x"


def test_several_threads_write(queue: Queue) -> None:
    writer, reader = queue

    def send(number: int) -> None:
        for step in range(50):
            write(writer, bytes((number, step)))

    threads = [in_thread(functools.partial(send, number))[0] for number in range(4)]
    found = [reader.read_blocking() or b"" for _ in range(200)]
    for thread in threads:
        thread.join(PARKED_S)
    for number in range(4):
        assert [step for who, step in found if who == number] == list(range(50))


# -- closing


@pytest.mark.parametrize("closer", [0, 1])
def test_a_closed_queue_is_drained_and_then_dead(queue: Queue, closer: int) -> None:
    writer, reader = queue
    writer.try_write(b"one")
    writer.try_write(b"two")
    queue[closer].close()
    queue[closer].close()
    with pytest.raises(DeviceDied, match="closed"):
        writer.try_write(b"three")
    assert reader.read_blocking() == b"one"
    assert reader.try_read() == b"two"
    for _ in range(2):
        with pytest.raises(DeviceDied, match="closed"):
            reader.try_read()
        with pytest.raises(DeviceDied, match="closed"):
            reader.read_blocking()


@pytest.mark.parametrize("closer", [0, 1])
@pytest.mark.parametrize("timeout_s", [None, PARKED_S])
def test_closing_wakes_a_parked_reader(queue: Queue, closer: int, timeout_s: float | None) -> None:
    waiting = in_thread(lambda: queue[1].read_blocking(timeout_s))
    until_parked(queue[1])
    queue[closer].close()
    assert isinstance(outcome(*waiting), DeviceDied)


def test_a_peer_that_only_vanishes_is_noticed() -> None:
    """It wrote nothing into the header: its descriptors were closed for it."""
    writer, handover = QueueWriter.create(64)
    reader = QueueReader.attach(handover)
    writer.try_write(b"last words")
    writer._waker.close()
    assert reader.read_blocking() == b"last words"
    with pytest.raises(DeviceDied):
        reader.read_blocking()
    reader.close()
    writer.close()


def test_a_reader_that_vanished_is_noticed_when_it_should_be_woken() -> None:
    reader, handover = QueueReader.create(64)
    writer = QueueWriter.attach(handover)
    reader._ring.want_data()
    reader._waker.close()
    assert writer.try_write(b"into the void")
    with pytest.raises(DeviceDied):
        writer.try_write(b"and no more")
    writer.close()
    reader.close()


# -- a packet that comes while a reader is about to park


@pytest.mark.parametrize("timeout_s", [PARKED_S, None])
def test_a_reader_does_not_sleep_through_what_came_just_now(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, timeout_s: float | None
) -> None:
    """The writer moves just before the reader says what it waits for: nobody will ring."""
    writer, reader = queue
    want_data = Consumer.want_data

    def before_data(ring: Consumer) -> None:
        if writer._ring.position == ring.position:
            writer.try_write(b"just in time")
        want_data(ring)

    monkeypatch.setattr(Consumer, "want_data", before_data)
    assert reader.read_blocking(timeout_s) == b"just in time"
