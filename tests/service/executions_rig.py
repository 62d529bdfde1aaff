"""What tests of plain executions in a service have in common."""

from __future__ import annotations

import threading
from typing import Any

from nnasync.burst import BurstController
from tests import rigs
from tests.service.rig import Served, Slot

__all__ = [
    "check",
    "check_past_the_socket",
    "controller_of",
    "opened",
    "prepared_by",
    "queue_threads",
    "traffic",
]


async def prepared_by(it: Served) -> Any:
    return await it.device.prepare_model(rigs.doubler())


async def opened(it: Served, slot: Slot) -> Any:
    """A prepared model that has run once, so that its queues are open."""
    prepared = await prepared_by(it)
    await prepared.execute_synchronously(slot.request)
    assert controller_of(prepared) is not None
    return prepared


def controller_of(prepared: Any) -> BurstController | None:
    queues = prepared._executions._queues
    return None if queues is None else queues.controller


def traffic(it: Served) -> tuple[int, int]:
    """Bytes of the socket, both ways."""
    connection = it.device.link.connection
    return connection.sent_bytes, connection.received_bytes


async def check_past_the_socket(it: Served, prepared: Any, slot: Slot, times: int = 3) -> None:
    """Executions are right, and nothing goes over the socket."""
    await it.device.get_status()  # What was said before is heard.
    before = traffic(it)
    for _ in range(times):
        await check(prepared, slot)
    assert traffic(it) == before


async def check(prepared: Any, slot: Slot) -> None:
    slot.y[...] = 0
    await prepared.execute_synchronously(slot.request)
    assert slot.y.tolist() == (2 * slot.x).tolist()


def queue_threads() -> list[str]:
    """Threads of bursts and executions, of the client and of the service."""
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith("nnasync-burst")]
