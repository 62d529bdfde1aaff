"""Both ends in one process: waiting in threads and on every loop, closing, hostile handovers."""

from __future__ import annotations

import functools
import threading

import anyio
import anyio.lowlevel
import pytest

from nnasync.errors import (
    BadState,
    DeviceDied,
    InvalidArgument,
)
from nnasync.message_queue import QueueReader, QueueWriter
from nnasync.message_queue.ring import Consumer, Producer
from tests.message_queue.waiting import (
    PARKED_S,
    Queue,
    in_thread,
    outcome,
    until_parked,
    until_waiting,
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
    assert not writer.write_blocking(b"", timeout_s=0)
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


def test_a_parked_writer_is_woken(queue: Queue) -> None:
    writer, reader = queue
    writer.try_write(b"x" * 56)
    waiting = in_thread(lambda: writer.write_blocking(b"next"))
    until_parked(writer)
    assert reader.try_read() == b"x" * 56
    assert outcome(*waiting) is True
    assert reader.try_read() == b"next"


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
    assert not reader._bell._poll.poll(0)


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
    lock = threading.Lock()

    def write(number: int) -> None:
        for step in range(50):
            while True:
                with lock:
                    if writer.write_blocking(bytes((number, step)), timeout_s=0.01):
                        break

    threads = [in_thread(functools.partial(write, number))[0] for number in range(4)]
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


@pytest.mark.parametrize("closer", [0, 1])
def test_closing_wakes_a_parked_writer(queue: Queue, closer: int) -> None:
    queue[0].try_write(b"x" * 56)
    waiting = in_thread(lambda: queue[0].write_blocking(b"y"))
    until_parked(queue[0])
    queue[closer].close()
    assert isinstance(outcome(*waiting), DeviceDied)


def test_a_peer_that_only_vanishes_is_noticed() -> None:
    """It wrote nothing into the header: its descriptors were closed for it."""
    writer, handover = QueueWriter.create(64)
    reader = QueueReader.attach(handover)
    writer.try_write(b"last words")
    writer._ringer.close()
    assert reader.read_blocking() == b"last words"
    with pytest.raises(DeviceDied):
        reader.read_blocking()
    reader.close()
    writer.close()


def test_a_reader_that_vanished_is_noticed_when_it_should_be_woken() -> None:
    reader, handover = QueueReader.create(64)
    writer = QueueWriter.attach(handover)
    reader._ring.want_data()
    reader._bell.close()
    assert writer.try_write(b"into the void")
    with pytest.raises(DeviceDied):
        writer.try_write(b"and no more")
    writer.close()
    reader.close()


# -- on event loops


@pytest.mark.anyio
@pytest.mark.usefixtures("stall_guard")
async def test_tasks_read_and_write(queue: Queue) -> None:
    """Far more than fits goes through, in order."""
    writer, reader = queue
    sent = [bytes([number]) * (number % 57) for number in range(200)]
    found: list[bytes] = []

    async def read() -> None:
        for _ in sent:
            found.append(await reader.read())  # noqa: PERF401 -- what came so far is kept

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        for message in sent:
            await writer.write(message)
    assert found == sent


@pytest.mark.anyio
async def test_cancelling_loses_no_packet(queue: Queue) -> None:
    """Each is read by the cancelled call, which had it already, or by the next."""
    writer, reader = queue
    found: list[int] = []

    async def read() -> None:
        found.extend(await reader.read())

    for number in range(20):
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await until_waiting(reader)
            group.cancel_scope.cancel()
            writer.try_write(bytes([number]))
        if len(found) == number:
            await read()
        assert found == list(range(number + 1))


@pytest.mark.anyio
async def test_a_cancelled_write_wrote_nothing(queue: Queue) -> None:
    writer, reader = queue
    writer.try_write(b"x" * 56)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.write, b"never")
        await until_waiting(writer)
        group.cancel_scope.cancel()
    assert reader.try_read() == b"x" * 56
    assert reader.try_read() is None
    with anyio.CancelScope() as scope:
        scope.cancel()
        await writer.write(b"not even at once")
    assert reader.try_read() is None


@pytest.mark.anyio
@pytest.mark.parametrize("closer", [0, 1])
async def test_closing_wakes_parked_tasks(queue: Queue, closer: int) -> None:
    reader = queue[1]
    died: list[str] = []

    async def wait_for(name: str, end: QueueReader | QueueWriter) -> None:
        try:
            await (end.read() if isinstance(end, QueueReader) else end.write(b"x" * 56))
        except DeviceDied:
            died.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(wait_for, "reader", reader)
        await until_waiting(reader)
        queue[closer].close()
    assert died == ["reader"]


@pytest.mark.anyio
@pytest.mark.usefixtures("stall_guard")
async def test_a_window_is_cut_to_the_stall_budget(queue: Queue) -> None:
    """The packet comes from another task, which runs only if the loop is not polled away."""
    writer, reader = queue
    reader.polling_ns = 2**60

    async def write() -> None:
        await until_waiting(reader)
        writer.try_write(b"from the same loop")

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        assert await reader.read() == b"from the same loop"


@pytest.mark.anyio
async def test_a_flood_lets_the_loop_turn() -> None:
    """Packets that are there at once do not keep a task from suspending."""
    writer, handover = QueueWriter.create(1 << 14)
    reader = QueueReader.attach(handover)
    reader.stall_budget_ns = 0
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    with writer, reader:
        for _ in range(100):
            writer.try_write(b"x")
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            for _ in range(100):
                await reader.read()
            group.cancel_scope.cancel()
    assert turns >= 50


# -- a packet, or space, that comes while a side is about to park


@pytest.fixture
def just_in_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side moves just before this side says what it waits for: nobody will ring."""
    writer, reader = queue
    want_data, want_space = Consumer.want_data, Producer.want_space

    def before_data(ring: Consumer) -> None:
        if writer._ring.position == ring.position:
            writer.try_write(b"just in time")
        want_data(ring)

    def before_space(ring: Producer, size: int) -> None:
        reader.try_read()
        want_space(ring, size)

    monkeypatch.setattr(Consumer, "want_data", before_data)
    monkeypatch.setattr(Producer, "want_space", before_space)


@pytest.mark.usefixtures("just_in_time")
def test_a_thread_does_not_sleep_through_what_came_just_now(queue: Queue) -> None:
    writer, reader = queue
    assert reader.read_blocking(PARKED_S) == b"just in time"
    assert writer.try_write(b"x" * 56)
    assert writer.write_blocking(b"y", PARKED_S)


@pytest.mark.anyio
async def test_a_task_does_not_sleep_through_what_came_just_now(
    queue: Queue, just_in_time: None
) -> None:
    writer, reader = queue
    with anyio.fail_after(PARKED_S):
        assert await reader.read() == b"just in time"
        assert writer.try_write(b"x" * 56)
        await writer.write(b"y")
