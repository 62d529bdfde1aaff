"""The ring, pure: packets whole and in order, edges, a hostile peer, no lost wake-up."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.message_queue import ring
from nnasync._core.message_queue.ring import (
    CLOSED,
    HEADER_BYTES,
    LENGTH_BYTES,
    MAX_CAPACITY,
    MIN_CAPACITY,
    Consumer,
    Producer,
    prepare,
    read_capacity,
)
from nnasync.errors import GeneralFailure, InvalidArgument

WRITTEN, READ = 16, 32
WORD = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 300),
    st.sampled_from([2**63, 2**64 - 8, 2**64 - 1, 2**32, 64, 128]),
)


def record_bytes(size: int) -> int:
    """Bytes of the circle that a packet takes: its length, and itself up to a multiple of 8."""
    return 8 + -(-size // 8) * 8


def memory(capacity: int) -> memoryview:
    """An empty ring."""
    view = memoryview(bytearray(HEADER_BYTES + capacity))
    prepare(view, capacity)
    return view


def sides(capacity: int, *, ordered: bool = True) -> tuple[memoryview, Producer, Consumer]:
    view = memory(capacity)
    return (
        view,
        Producer(view, capacity, ordered=ordered),
        Consumer(view, capacity, ordered=ordered),
    )


@given(
    st.integers(MIN_CAPACITY // 8, 40),
    st.lists(st.one_of(st.binary(max_size=330), st.none()), max_size=60),
    st.booleans(),
)
def test_packets_arrive_whole_and_in_order(
    eighths: int, steps: list[bytes | None], ordered: bool
) -> None:
    """Any order of writes and reads is a queue that is full exactly when its bytes are."""
    capacity = 8 * eighths
    _, producer, consumer = sides(capacity, ordered=ordered)
    model: deque[bytes] = deque()
    for step in steps:
        if step is None:
            assert consumer.read() == (model.popleft() if model else None)
            continue
        free = capacity - sum(record_bytes(len(message)) for message in model)
        if record_bytes(len(step)) > capacity:
            with pytest.raises(InvalidArgument, match="never fits"):
                producer.write(step)
        elif record_bytes(len(step)) > free:
            assert producer.write(step) == -1
        else:
            assert producer.write(step) == consumer.position + capacity - free
            model.append(step)
    assert [consumer.read() for _ in range(len(model) + 1)] == [*model, None]


@pytest.mark.parametrize("lead", range(0, 64, 8))
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 48, 49, 55, 56])
def test_a_packet_may_go_round_the_end_anywhere(lead: int, size: int) -> None:
    _, producer, consumer = sides(64)
    for _ in range(lead // 8):
        assert producer.write(b"") >= 0
        assert consumer.read() == b""
    message = bytes(range(1, size + 1))
    assert producer.write(message) == lead
    assert consumer.read() == message
    assert consumer.read() is None


@pytest.mark.parametrize("capacity", [-8, 0, 8, MIN_CAPACITY - 8, 65, MAX_CAPACITY + 8, 2**63])
def test_a_capacity_that_is_none_is_refused(capacity: int) -> None:
    with pytest.raises(InvalidArgument, match="multiple of 8"):
        ring.check_capacity(capacity)


@given(st.binary(max_size=HEADER_BYTES + 200), st.lists(WORD, min_size=3, max_size=3))
def test_foreign_memory_is_a_ring_or_is_refused(raw: bytes, words: list[int]) -> None:
    view = memoryview(bytearray(raw))
    if len(raw) >= HEADER_BYTES:
        header = view[:HEADER_BYTES].cast("Q")
        header[0] = ring.MAGIC if words[0] % 2 else words[0]
        header[1] = ring.VERSION if words[1] % 2 else words[1]
        header[2] = words[2]
    try:
        capacity = read_capacity(view)
    except InvalidArgument:
        return
    assert MIN_CAPACITY <= capacity <= len(view) - HEADER_BYTES


def test_another_version_is_told() -> None:
    view = memory(64)
    view.cast("Q")[1] = 7
    with pytest.raises(InvalidArgument, match="layout 7, this side knows 1"):
        read_capacity(view)


def test_a_capacity_beyond_the_memory_is_refused() -> None:
    view = memory(64)
    view.cast("Q")[2] = 72
    with pytest.raises(InvalidArgument, match="claims 72 bytes, but only 64"):
        read_capacity(view)


@given(
    st.lists(st.one_of(st.binary(max_size=60), st.none()), max_size=20),
    st.lists(
        st.tuples(st.sampled_from(["write", "read"]), st.integers(0, 63), WORD),
        min_size=1,
        max_size=30,
    ),
)
def test_a_hostile_peer_breaks_the_ring_and_nothing_else(
    before: list[bytes | None], attacks: list[tuple[str, int, int]]
) -> None:
    """Any word of the memory may change between two calls; a broken side stays broken."""
    view, producer, consumer = sides(128)
    for step in before:
        if step is None:
            consumer.read()
        else:
            producer.write(step)
    words = view.cast("Q")
    broken: set[str] = set()
    for what, place, value in attacks:
        words[place] = value
        side = producer if what == "write" else consumer
        try:
            if what == "write":
                assert producer.write(b"0123456789") >= CLOSED
                producer.reader_waits(0)
            else:
                message = consumer.read()
                assert message is None or len(message) <= 128 - LENGTH_BYTES
            assert what not in broken
        except GeneralFailure as error:
            broken.add(what)
            assert side.fault is not None
            assert str(error) == side.fault
            words[WRITTEN], words[READ] = consumer.position, consumer.position


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (WRITTEN, 4),
        (WRITTEN, 72),
        (WRITTEN, 2**64 - 8),
        (HEADER_BYTES // 8, 9),
        (HEADER_BYTES // 8, 57),
        (HEADER_BYTES // 8, 2**64 - 1),
    ],
    ids=["not a multiple", "beyond the ring", "far", "length 9", "length 57", "no length"],
)
def test_a_reader_is_not_led_astray(word: int, value: int) -> None:
    view, producer, consumer = sides(64)
    producer.write(b"x" * 8)
    right = view.cast("Q")[word]
    view.cast("Q")[word] = value
    with pytest.raises(GeneralFailure, match="broke it"):
        consumer.read()
    view.cast("Q")[word] = right
    with pytest.raises(GeneralFailure, match="broke it"):
        consumer.read()
    producer.write(b"good again")
    with pytest.raises(GeneralFailure, match="broke it"):
        consumer.read()


@pytest.mark.parametrize("value", [4, 72, 2**64 - 8])
def test_a_writer_is_not_led_astray(value: int) -> None:
    view, producer, consumer = sides(64)
    for _ in range(4):
        producer.write(b"x" * 8)
    view.cast("Q")[READ] = value
    with pytest.raises(GeneralFailure, match="broke it"):
        producer.write(b"x" * 8)
    view.cast("Q")[READ] = 0
    consumer.read()
    with pytest.raises(GeneralFailure, match="broke it"):
        producer.write(b"x" * 8)


def test_a_counter_that_goes_back_breaks_the_writer() -> None:
    view, producer, consumer = sides(64)
    for _ in range(4):
        producer.write(b"x" * 8)
    consumer.read()
    consumer.read()
    assert producer.write(b"x" * 8) == 64
    view.cast("Q")[READ] = 16
    with pytest.raises(GeneralFailure, match="counter is 16"):
        producer.write(b"x" * 16)


def test_watching_sees_the_next_packet() -> None:
    _, producer, consumer = sides(64)
    assert not consumer.watch(10)
    producer.write(b"x")
    assert consumer.watch(1)


def test_closing_is_seen_by_the_other_side() -> None:
    _, producer, consumer = sides(64)
    assert producer.write(b"") == 0
    assert not consumer.writer_closed()
    producer.close()
    assert consumer.writer_closed()
    assert producer.write(b"") > 0
    consumer.close()
    assert producer.write(b"") == CLOSED


# -- parking: whoever sleeps is woken, in every interleaving of the steps of both sides


def writing(producer: Producer, packets: int, doorbell: list[int]) -> Iterator[bool]:
    """Steps of a writer that never waits; each gives whether it can go on."""
    for _ in range(packets):
        since = producer.write(b"12345678")
        yield True
        if producer.reader_waits(since):
            doorbell.append(1)
        yield True


def reading(consumer: Consumer, packets: int, doorbell: list[int]) -> Iterator[bool]:
    """Steps of a reader that sleeps when there is nothing."""
    taken = 0
    while taken < packets:
        consumer.want_data()
        yield True
        if consumer.read() is not None:
            taken += 1
            yield True
            continue
        while not doorbell:
            yield False
        doorbell.clear()
        yield True


def merged(schedule: tuple[int, ...], sides: tuple[Iterator[bool], Iterator[bool]]) -> bool:
    """Run the steps in this order, then both in turn; whether both come to their end."""
    for side in schedule:
        next(sides[side], None)
    alive = [True, True]
    while any(alive):
        results = [
            next(side, None) if live else None for side, live in zip(sides, alive, strict=True)
        ]
        alive = [result is not None for result in results]
        if not any(result for result in results if result is not None) and any(alive):
            return False
    return True


@pytest.mark.parametrize("packets", [1, 2])
def test_no_wake_up_of_a_reader_is_lost(packets: int) -> None:
    for schedule in itertools.product((0, 1), repeat=6 * packets):
        _, producer, consumer = sides(128)
        doorbell: list[int] = []
        steps = writing(producer, packets, doorbell), reading(consumer, packets, doorbell)
        assert merged(schedule, steps), schedule


def test_only_the_packet_that_is_waited_for_rings() -> None:
    _, producer, consumer = sides(128)
    assert not producer.reader_waits(producer.write(b"a"))
    consumer.read()
    consumer.want_data()
    assert producer.reader_waits(producer.write(b"b"))
    assert not producer.reader_waits(producer.write(b"c"))


def test_without_an_order_of_memory_every_packet_rings() -> None:
    _, producer, consumer = sides(64, ordered=False)
    assert producer.reader_waits(producer.write(b"a"))
    assert consumer.read() == b"a"
