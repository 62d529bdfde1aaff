"""Calls of a network ahead of those that count: by `compile` where they cost little, or as asked.

What the first runs find cold, `nnasync._core.engine_device.warmup` says. `compile` warms up only
what is quick, and hides what goes wrong, since the first call of the application tells that; an
application that asks for it wants all of its calls made, and to hear why one cannot be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from nnasync._core.clock import Deadline
from nnasync._core.execution.ports import Port
from nnasync._core.workers.inline import InlineLane
from nnasync.device import InlinePreparedModel
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

Call = Callable[..., Awaitable[object]]


async def warm_up(
    call: Call,
    arrays: Sequence[Any],
    ports: Sequence[Port],
    runs: int,
    turn: Callable[[], Awaitable[None]],
) -> None:
    """Makes this many calls with these arrays, or with zeros, each after a turn of the loop."""
    if not isinstance(runs, int) or runs < 1:
        raise InvalidArgument(f"runs={runs!r}: warming up takes at least one run")
    given = tuple(arrays) or tuple(_zeros(ports))
    for _ in range(runs):
        await turn()
        await call(*given)


def _zeros(ports: Sequence[Port]) -> list[Array]:
    for port in ports:
        if not port.is_settled:
            raise InvalidArgument(
                f"input {port.name!r} leaves its shape open, {port}: warm_up needs inputs of the "
                "shapes that calls will have"
            )
    return [np.full(port.shape, port.zero, port.dtype) for port in ports]


async def warm_up_when_compiled(
    call: Call,
    ports: Sequence[Port],
    prepared: InlinePreparedModel,
    lane: InlineLane,
    until: Deadline | None,
) -> None:
    """Makes a few calls with zeros before the application has the network, if that is quick."""
    arrays = _zeros(ports)

    async def calls(times: int, deadline: Deadline | None) -> None:
        for _ in range(times):
            await call(*arrays, deadline=deadline)

    last = await prepared.warm_up_calls(calls, until)
    forget = lane.warming_up()
    # Straight, and with little before the return: the processor knows its way by that.
    try:
        for _ in range(last):
            await call(*arrays)
    finally:
        forget()
