"""What tests of waiting share: calls in threads, and knowing that somebody sleeps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import anyio.lowlevel

from nnasync._core.message_queue import QueueReader, QueueWriter

__all__ = ["PARKED_S", "Queue", "in_thread", "outcome", "read", "until_parked", "write"]

PARKED_S = 20.0
"""How long a test waits for another thread at most."""


Queue = tuple[QueueWriter, QueueReader]


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run it in a thread; what it returns or raises is put into the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, name="nnasync-test")
    thread.start()
    return thread, found


def until_parked(reader: QueueReader) -> None:
    """Wait until a thread is about to sleep on this end."""
    while not reader._waker._waiting:
        os.sched_yield()


def write(writer: QueueWriter, message: bytes) -> None:
    """Put a packet in as soon as there is space for it."""
    while not writer.try_write(message):
        os.sched_yield()


def outcome(thread: threading.Thread, found: list[Any]) -> Any:
    thread.join(PARKED_S)
    assert not thread.is_alive()
    return found[0]


async def read(reader: QueueReader) -> bytes:
    """The next packet, while the loop of the test goes on."""
    while (message := reader.try_read()) is None:
        await anyio.lowlevel.checkpoint()
    return message
