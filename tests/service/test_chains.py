"""Fences that go from one service to another, past an application that does nothing meanwhile."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import pytest

import nnasync as nn
from nnasync._core.drivers.service import isolate
from nnasync.fences import Fence, FenceStatus
from nnasync.hal import DataLocation, Request, RequestArgument
from tests import rigs
from tests.service.rig import Slot

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("Nothing of the loop is used while the chain runs: that is the point."),
]

STEPS = 6


@contextlib.contextmanager
def nobody_else_runs() -> Iterator[None]:
    """No other thread of this process gets the interpreter while this one does not wait."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def test_a_chain_goes_on_while_the_application_is_blocked() -> None:
    """Not only its loop: no thread of it runs a line from the first signal to the last result."""
    services = [await isolate(rigs.REFERENCE) for _ in range(2)]
    prepared = [await each.prepare_model(rigs.doubler()) for each in services]
    slots = [Slot(0) for _ in range(STEPS)]
    slots[0].x[...] = rigs.ROW
    begin = Fence()
    fences: list[Fence] = [begin]
    for number, slot in enumerate(slots):
        source = slots[number - 1] if number else slot
        request = Request(
            (RequestArgument(location=DataLocation(0, 32 if number else 0, 16)),),
            (RequestArgument(location=DataLocation(1, 32, 16)),),
            (source.pool, slot.pool),
        )
        launched = await prepared[number % 2].execute_fenced(request, [fences[-1]])
        fences.append(launched.fence)
    wanted, last = (2.0**STEPS * rigs.ROW).tobytes(), memoryview(slots[-1].pool.view)[32:48]
    give_up_s = time.monotonic() + rigs.GUARD_S
    with nobody_else_runs():
        begin.signal()
        while last != wanted and time.monotonic() < give_up_s:
            pass
        statuses = [fence.status for fence in fences]
    assert last == wanted
    assert statuses == [FenceStatus.SIGNALED, *[FenceStatus.PENDING] * STEPS]
    for fence in fences:
        await fence
    last.release()
    for each in services:
        await each.close()


async def test_a_chain_behind_a_service_that_dies_fails_without_the_application() -> None:
    first, second = [await isolate(rigs.REFERENCE) for _ in range(2)]
    one, two = [await each.prepare_model(rigs.doubler()) for each in (first, second)]
    slots = [Slot() for _ in range(2)]
    begin = Fence()
    launched = await one.execute_fenced(slots[0].request, [begin])
    chained = await two.execute_fenced(slots[1].request, [launched.fence])
    assert first.link.peer.kill()
    with pytest.raises(nn.errors.NNError) as caught:
        await chained.fence
    assert caught.value.__cause__ is not None
    with pytest.raises(nn.errors.DeviceDied):
        await launched.fence
    assert slots[1].y.tolist() == (0 * rigs.ROW).tolist()
    begin.signal()
    for each in (first, second):
        await each.close()
