"""Where the loop lags, what it could not hear of in time is refused at once, and no longer."""

from __future__ import annotations

from typing import Any

import pytest

import nnasync as nn
from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.wakeup import Wakeup
from nnasync.errors import MissedDeadlinePersistent
from tests.rigs import INLINE, POOL, ROW, compiled, double, doubler, runtime, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

DAY_NS = 24 * 3600 * 10**9
SOON = {"s": 600}


def slow_down() -> Wakeup:
    """Have the last wake-ups of this loop been very late."""
    wakeup = Wakeup.current()
    for _ in range(3):
        wakeup.lag.observe(DAY_NS, now_ns())
    return wakeup


@pytest.mark.parametrize("stream", [False, True], ids=["call", "burst"])
async def test_a_call_that_the_loop_would_not_hear_of_is_refused_until_it_is_quick_again(
    *, stream: bool
) -> None:
    engine = NullEngine(compute=double)
    async with runtime(engine, options=POOL) as rt:
        net = await rt.compile(doubler())
        async with net.burst() as burst:
            target = burst if stream else net
            await target(ROW)
            wakeup = slow_down()
            prepared: Any = net._prepared
            floor_ns = prepared.estimate.floor_ns
            run = engine.counters.run
            with pytest.raises(MissedDeadlinePersistent, match="the event loop hears"):
                await target(ROW, deadline=nn.within(**SOON))
            assert engine.counters.run == run
            assert prepared.estimate.floor_ns == floor_ns
            assert net._tally.outcomes()[("missed", "admission")] == 1
            # The refusal has the lag measured: the next call finds a loop that is quick.
            await until(lambda: wakeup.lag.estimate_ns(now_ns()) < DAY_NS / 2)
            assert (await target(ROW, deadline=nn.within(**SOON))).tolist() == [[2, 4, 6, 8]]


async def test_what_does_not_wait_for_the_loop_is_let_in() -> None:
    async with runtime(NullEngine(compute=double), options=POOL) as rt:
        net = await rt.compile(doubler())
        slow_down()
        launched = await net.launch(ROW, deadline=nn.within(**SOON))
        assert (await launched.result()).tolist() == [[2, 4, 6, 8]]
        slow_down()
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
    async with runtime(NullEngine(compute=double), options=INLINE) as rt:
        net = await compiled(rt, doubler(), INLINE)
        slow_down()
        assert (await net(ROW, deadline=nn.within(**SOON))).tolist() == [[2, 4, 6, 8]]
