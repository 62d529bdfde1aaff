"""Frames: whole however they are cut, with their descriptors, and nothing else is taken."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.wire.connection import (
    MAX_DESCRIPTORS,
    MAX_MESSAGE_BYTES,
    Connection,
    Frame,
    peer_uid,
)
from nnasync.errors import (
    DeviceDied,
    GeneralFailure,
    InvalidArgument,
    ResourceExhaustedTransient,
)
from tests.conftest import open_descriptors


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "the peer")
    yield connection, theirs
    connection.close()
    theirs.close()


def attach(sock: socket.socket, data: bytes, count: int) -> None:
    """Send bytes with descriptors."""
    read, write = os.pipe()
    sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read] * count))]
    sock.sendmsg([data], sent)
    os.close(read)
    os.close(write)


def frame(message: bytes, fds: int = 0) -> bytes:
    return struct.pack("<IHH", len(message), fds, 0) + message


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 300), max_size=20))
def test_messages_arrive_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    ours, theirs = socket.socketpair()
    connection, data, got = Connection(ours, "the peer"), b"".join(map(frame, messages)), []
    for cut in [*cuts, len(data)]:
        theirs.sendall(data[:cut])
        data = data[cut:]
        got += [each.message for each in connection.receive() or []]
    assert got == messages
    connection.close()
    theirs.close()


def test_descriptors_belong_to_their_message(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    other = Connection(theirs, "us")
    read, write = os.pipe()
    other.send(b"none")
    other.send(b"one", [read])
    other.send(b"two", [read, write])
    os.close(read)
    os.close(write)
    frames: list[Frame] = []
    while len(frames) < 3:
        frames += connection.receive() or []
    assert [(each.message, len(each.fds)) for each in frames] == [
        (b"none", 0),
        (b"one", 1),
        (b"two", 2),
    ]
    taken = frames[2].take(1)
    for each in frames:
        each.close()
    os.close(taken[0])
    with pytest.raises(InvalidArgument, match="1 file descriptors"):
        frames[2].take(1)


@pytest.mark.parametrize(
    ("data", "fds"),
    [
        (struct.pack("<IHH", MAX_MESSAGE_BYTES + 1, 0, 0), 0),
        (struct.pack("<IHH", 0, MAX_DESCRIPTORS + 1, 0), 0),
        (struct.pack("<IHH", 0, 0, 1), 0),
        (frame(b"x", 2), 1),
        (frame(b"x"), 1),
        (frame(b"x", 1) + frame(b"y", 1), 1),
        (b"\0", MAX_DESCRIPTORS + 1),
        (frame(b"x", 1) + b"\xff" * 8, 3),
    ],
)
def test_what_is_no_frame_is_refused(
    ends: tuple[Connection, socket.socket], data: bytes, fds: int
) -> None:
    connection, theirs = ends
    before = open_descriptors()
    if fds:
        attach(theirs, data, fds)
    else:
        theirs.sendall(data)
    with pytest.raises(GeneralFailure, match="the peer"):
        connection.receive()
    connection.close()
    assert len(open_descriptors()) <= len(before) - 1


def test_the_end_is_told(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    theirs.close()
    assert connection.receive() is None
    with pytest.raises(DeviceDied):
        connection.send(b"x")
    connection.close()
    with pytest.raises(DeviceDied):
        connection.send(b"x")


def test_a_connection_is_broken_once_the_peer_was_found_gone(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = ends
    connection.send(b"hello")
    assert not connection.is_broken
    theirs.close()
    with pytest.raises(DeviceDied):
        connection.send(b"hello")
    assert connection.is_broken


def test_what_has_no_room_waits_with_its_descriptors(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = ends
    other = Connection(theirs, "us")
    read, write = os.pipe()
    messages = [bytes([number]) * 100_000 for number in range(20)]
    for message in messages:
        connection.send(message, [read])
    assert connection.has_waiting
    os.close(read)
    os.close(write)
    got: list[bytes] = []
    while len(got) < len(messages):
        connection.flush()
        for each in other.receive() or []:
            assert len(each.fds) == 1
            each.close()
            got.append(each.message)
    assert got == messages
    assert not connection.has_waiting


def test_a_peer_that_does_not_read_is_refused(ends: tuple[Connection, socket.socket]) -> None:
    connection, _ = ends
    big = bytes(MAX_MESSAGE_BYTES)
    with pytest.raises(ResourceExhaustedTransient, match="does not read"):
        for _ in range(10):
            connection.send(big)
    with pytest.raises(InvalidArgument, match="too large"):
        connection.send(bytes(MAX_MESSAGE_BYTES + 1))


def test_the_user_of_a_peer(ends: tuple[Connection, socket.socket]) -> None:
    assert peer_uid(ends[1]) == os.geteuid()
