"""What tests of the line of a prepared model have in common."""

from __future__ import annotations

import threading
from typing import Any

from nnasync.burst import BurstController
from nnasync.hal import Request
from tests import rigs
from tests.rigs import until
from tests.service.rig import Served, Slot

__all__ = [
    "burst_threads",
    "check",
    "check_it_comes_back",
    "check_over_the_line",
    "controller_of",
    "counted",
    "is_taken",
    "opened",
    "prepared_by",
    "traffic",
]


async def prepared_by(it: Served) -> Any:
    return await it.device.prepare_model(rigs.doubler())


async def opened(it: Served, slot: Slot) -> Any:
    """A prepared model whose line is open; it has run twice."""
    prepared = await prepared_by(it)
    for _ in range(2):
        await prepared.execute_synchronously(slot.request)
    assert controller_of(prepared) is not None
    return prepared


def controller_of(prepared: Any) -> BurstController | None:
    found: BurstController | None = prepared._line._controller
    return found


def is_taken(prepared: Any) -> bool:
    taken: bool = prepared._line._taken
    return taken


def traffic(it: Served) -> tuple[int, int]:
    """Bytes of the socket, both ways."""
    connection = it.device.link.connection
    return connection.sent_bytes, connection.received_bytes


async def check_over_the_line(it: Served, prepared: Any, slot: Slot, times: int = 3) -> None:
    """Executions are right, and nothing goes over the socket."""
    before = traffic(it)
    for _ in range(times):
        await check(prepared, slot)
    assert traffic(it) == before


async def check_it_comes_back(it: Served, prepared: Any, slot: Slot) -> None:
    """After some executions over the socket there is a line again."""
    await until(lambda: not is_taken(prepared))
    for _ in range(30):
        await check(prepared, slot)
    await check_over_the_line(it, prepared, slot)


async def check(prepared: Any, slot: Slot) -> None:
    slot.y[...] = 0
    await prepared.execute_synchronously(slot.request)
    assert slot.y.tolist() == (2 * slot.x).tolist()


def burst_threads() -> list[str]:
    """Threads of bursts, of the client and of the service."""
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith("nnasync-burst")]


def counted(prepared: Any) -> list[Request]:
    """The requests that a prepared model executes over the socket from now on."""
    found: list[Request] = []
    execute = prepared._execute

    async def noted(request: Request, config: Any, **options: Any) -> Any:
        found.append(request)
        return await execute(request, config, **options)

    prepared._execute = noted
    return found
