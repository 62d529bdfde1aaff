"""A queue with both of its ends in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nnasync._core.message_queue import QueueReader, QueueWriter


@pytest.fixture
def queue() -> Iterator[tuple[QueueWriter, QueueReader]]:
    """Both ends of a small queue; nobody polls."""
    writer, handover = QueueWriter.create(64)
    reader = QueueReader.attach(handover)
    reader.polling_ns = 0
    with writer, reader:
        yield writer, reader
