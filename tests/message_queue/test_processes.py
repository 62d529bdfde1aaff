"""A queue between two processes: everything arrives, and a killed peer is noticed at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nnasync._core.message_queue import Handover, QueueReader, QueueWriter
from nnasync.errors import DeviceDied, GeneralFailure
from tests.message_queue.waiting import in_thread, outcome, until_parked, write

pytestmark = pytest.mark.usefixtures("no_leaks")

ROOT = Path(__file__).resolve().parents[2]

PEER = """
import os, random, sys
from nnasync._core.message_queue import Handover, QueueReader, QueueWriter

what, polling_ns, *fds = sys.argv[1:]
fds = list(map(int, fds))
requests = QueueReader.attach(Handover(fds[:2]))
answers = QueueWriter.attach(Handover(fds[2:]))
requests.polling_ns = int(polling_ns)

def write(message):
    while not answers.try_write(message):
        os.sched_yield()

if what == "echo":
    while True:
        write(requests.read_blocking())
elif what == "talk":
    number = 0
    while True:
        write(number.to_bytes(4, "little") * (number % 40 + 1))
        number += 1
elif what == "idle":
    answers.try_write(b"ready")
    sys.stdin.read()
elif what == "garbage":
    chance = random.Random(int(polling_ns))
    words = answers._ring._words
    answers.try_write(b"one packet that is right")
    while True:
        words[chance.choice((16, 16, 18, 33, 48, 49))] = chance.choice((0, 8, 57, 2**63, 2**64 - 8))
        os.write(answers._waker._fd, b"!")
"""


class Peer:
    """A process at the other ends of two queues."""

    def __init__(self, what: str, *, capacity: int = 4096, polling_ns: int = 0) -> None:
        self.writer, requests = QueueWriter.create(capacity)
        self.reader, answers = QueueReader.create(capacity)
        self.reader.polling_ns = polling_ns
        fds = (*requests.descriptors, *answers.descriptors)
        command = [sys.executable, "-c", PEER, what, str(polling_ns), *map(str, fds)]
        self.process = subprocess.Popen(
            command,
            pass_fds=fds,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        requests.close()
        answers.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.writer.close()
        self.reader.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Peer]]:
    """Starts a peer, which is gone after the test."""
    peers: list[Peer] = []

    def make(*arguments: Any, **options: Any) -> Peer:
        peers.append(Peer(*arguments, **options))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


Start = Callable[..., Peer]


@pytest.mark.parametrize("polling_ns", [0, 50_000])
def test_packets_of_any_size_come_back(start: Start, polling_ns: int) -> None:
    """Up to four at a time, through queues that are often full."""
    peer = start("echo", capacity=512, polling_ns=polling_ns)
    chance = random.Random(1)
    sent: list[bytes] = []
    for _ in range(3000):
        sent.append(chance.randbytes(chance.choice((0, 1, 7, 8, 9, 63, 100, 120))))
        write(peer.writer, sent[-1])
        while len(sent) > chance.randrange(4):
            assert peer.reader.read_blocking() == sent.pop(0)


@pytest.mark.parametrize("packets", [0, 1, 500])
def test_a_killed_writer_leaves_whole_packets(start: Start, packets: int) -> None:
    """What it wrote is read to the last packet, in order; then it is dead, at once and for good."""
    peer = start("talk")
    number = 0
    for _ in range(packets):
        check(peer.reader.read_blocking(), number)
        number += 1
    peer.kill()
    with pytest.raises(DeviceDied):
        while True:
            check(peer.reader.read_blocking(), number)
            number += 1
    with pytest.raises(DeviceDied):
        peer.reader.try_read()
    assert number >= packets


def check(message: bytes | None, number: int) -> None:
    assert message == number.to_bytes(4, "little") * (number % 40 + 1)


def test_a_killed_writer_wakes_a_parked_reader(start: Start) -> None:
    peer = start("idle", capacity=64)
    assert peer.reader.read_blocking() == b"ready"
    waiting = in_thread(peer.reader.read_blocking)
    until_parked(peer.reader)
    peer.kill()
    assert isinstance(outcome(*waiting), DeviceDied)


def test_a_peer_that_exits_is_dead(start: Start) -> None:
    peer = start("idle")
    assert peer.reader.read_blocking() == b"ready"
    assert peer.process.stdin is not None
    peer.process.stdin.close()
    with pytest.raises(DeviceDied):
        peer.reader.read_blocking()


def test_a_peer_that_cannot_join_is_dead() -> None:
    """Its descriptors are closed for it, as those of a process that never came up."""
    reader, handover = QueueReader.create(64)
    handover.close()
    with reader, pytest.raises(DeviceDied):
        reader.read_blocking()


@pytest.mark.parametrize("seed", range(5))
def test_a_peer_that_writes_garbage_ends_the_queue(start: Start, seed: int) -> None:
    """Whatever the other process puts into the memory, and whenever: nothing else is raised."""
    peer = start("garbage", polling_ns=seed)
    with pytest.raises((GeneralFailure, DeviceDied)):
        while True:
            message = peer.reader.read_blocking()
            assert message is not None
            assert len(message) <= peer.reader.capacity


def test_a_handover_crosses_as_three_numbers() -> None:
    writer, handover = QueueWriter.create(64)
    copies = [os.dup(fd) for fd in handover.descriptors]
    handover.close()
    assert handover.descriptors == ()
    with writer, QueueReader.attach(Handover(copies)) as reader:
        writer.try_write(b"x")
        assert reader.read_blocking() == b"x"
