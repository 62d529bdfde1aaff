"""Frames with values, however they are cut into pieces, and what is none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from nnasync._core.wire.framing import MAX_VALUES, FrameReader, Landing, ValueFrame, framed
from nnasync.errors import GeneralFailure, InvalidArgument

Said = tuple[int, bytes, list[bytes]]

frames = some.lists(
    some.tuples(
        some.integers(0, 2**64 - 1),
        some.binary(max_size=40),
        some.lists(some.binary(max_size=90), max_size=4),
    ),
    max_size=5,
)
cuts = some.lists(some.integers(1, 50), min_size=1, max_size=20)


class Landings:
    """Memory for the values of every frame; `skips` says of which messages there is none."""

    def __init__(self, *, skips: bool = False) -> None:
        self.skips = skips
        self.made: list[list[bytearray]] = []

    def place(self, number: int, message: bytes, sizes: Sequence[int]) -> Landing:
        if self.skips:
            return Landing(error=InvalidArgument("not wanted"))
        self.made.append([bytearray(size) for size in sizes])
        return Landing([memoryview(each) for each in self.made[-1]])


def received(reader: FrameReader, data: bytes, pieces: Sequence[int]) -> list[ValueFrame]:
    """Read as a connection does: into targets where there are some."""
    found: list[ValueFrame] = []
    at, turn = 0, 0
    while at < len(data):
        size = pieces[turn % len(pieces)]
        turn += 1
        targets = reader.targets()
        if targets:
            count = min(size, targets[0].nbytes, len(data) - at)
            targets[0][:count] = data[at : at + count]
            found += reader.filled(count)
        else:
            count = min(size, len(data) - at)
            found += reader.feed(data[at : at + count])
        at += count
    return found


def stream(said: Sequence[Said]) -> bytes:
    return b"".join(
        bytes(piece)
        for number, message, values in said
        for piece in framed(message, [memoryview(each) for each in values], number)
    )


@given(frames, cuts)
def test_what_was_sent_arrives(said: list[Said], pieces: list[int]) -> None:
    landings = Landings()
    found = received(FrameReader("a peer", landings.place), stream(said), pieces)
    assert [(each.number, each.message) for each in found] == [each[:2] for each in said]
    values = [[bytes(each) for each in landed] for landed in landings.made]
    assert values == [each[2] for each in said if each[2]]
    assert all(each.landing.is_filled for each in found)


@given(frames, cuts)
def test_values_that_nobody_wants_are_skipped(said: list[Said], pieces: list[int]) -> None:
    reader = FrameReader("a peer", Landings(skips=True).place)
    found = received(reader, stream(said), pieces)
    assert [(each.number, each.message) for each in found] == [each[:2] for each in said]
    assert all(
        each.landing.error for each, (_, _, values) in zip(found, said, strict=True) if values
    )


@given(some.binary(max_size=200), cuts)
def test_what_is_no_frame_ends_it_in_words(data: bytes, pieces: list[int]) -> None:
    reader = FrameReader("a peer", Landings(skips=True).place, 1 << 10)
    try:
        received(reader, data, pieces)
    except GeneralFailure as error:
        assert "a peer sent a frame" in str(error)


@given(some.binary(min_size=2, max_size=300), some.integers(0, 299))
def test_nothing_is_written_to_what_was_abandoned(value: bytes, at: int) -> None:
    landings = Landings()
    reader = FrameReader("a peer", landings.place)
    data = stream([(1, b"first", [value]), (2, b"second", [b"more"])])
    start = len(data) - len(stream([(2, b"second", [b"more"])])) - len(value)
    found = received(reader, data[: start + at % len(value)], [7])
    landing = reader.landing
    assert landing is not None
    before = bytes(landings.made[0][0])
    reader.abandon(landing)
    found += received(reader, data[start + at % len(value) :], [7])
    assert bytes(landings.made[0][0]) == before
    assert [each.message for each in found] == [b"first", b"second"]
    assert bytes(landings.made[1][0]) == b"more"
    assert [each.landing.is_filled for each in found] == [False, True]


def test_limits() -> None:
    with pytest.raises(InvalidArgument, match="too large"):
        framed(b"", [memoryview(b"")] * (MAX_VALUES + 1), 0)
    reader = FrameReader("a peer", Landings().place, 100)
    with pytest.raises(GeneralFailure, match="101 bytes of values: at most 100"):
        reader.feed(stream([(0, b"", [bytes(101)])]))
