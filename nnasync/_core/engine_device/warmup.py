"""Warm-up: runs before the first execution of a network, so that it is as fast as later ones.

The first runs find everything cold. A worker has no thread yet, and engines keep scratch memory for
each thread that calls them; their code is read from its file page by page; the interpreter waits
for the eighth call of a function before it looks for quicker instructions, and for some more until
it has found them. So what a network does first is tried when its memory is bound, on whatever
thread does that, and then warmed up: called as the application will call it, on the threads that
will run it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.workers import StopFlag, Workers
from nnasync._core.workers.admission import CALL_NS
from nnasync.engine.contract import BoundCall
from nnasync.scheduler import Estimate

WARMUP_CALLS, WARMUP_NS = 24, 8_000_000
"""Number of warm-up calls, and their total estimated time; at least one call is made."""

LONGEST_NS = 20_000_000
"""A slower network is not warmed up.

A trial of an unmeasured plan is stopped after this time if its engine can be stopped.
"""

PATIENCE_NS = 50_000_000
"""So long a warm-up may take on a worker, if others keep these busy."""


def tried(call: BoundCall) -> bool:
    """Runs a call as a trial; returns whether it ended. If not, it has no effect."""
    return _ends(call, StopFlag(falls_back=False))


def measure(call: BoundCall, workers: Workers, estimate: Estimate) -> None:
    """Measures how long a run takes, after a first one, if that is not long."""
    for _ in range(2):
        started_ns, stop = now_ns(), StopFlag(falls_back=False)
        alarm = workers.watchdog.arm(started_ns + LONGEST_NS, stop.abort)
        try:
            if not _ends(call, stop):
                return
        finally:
            alarm.disarm()
        duration_ns = now_ns() - started_ns
        if duration_ns > 2 * LONGEST_NS:
            return
    estimate.observe(duration_ns)


async def warm_up_calls(
    workers: Workers,
    estimate: Estimate,
    calls: Callable[[int, Deadline | None], Awaitable[object]],
    runs_here: Callable[[], bool],
    deadline: Deadline | None,
) -> int:
    """Makes this many `calls` of a measured network, the last ones on the caller's thread.

    `runs_here` is whether one takes no worker now. Returns how many are left, to be made on this
    thread before anything is awaited. Raises what a call raises.
    """
    best_ns = max(1.0, estimate.best_ns)
    if not estimate.samples or best_ns > LONGEST_NS or workers.tracer.instruments:
        return 0
    left = min(WARMUP_CALLS, max(1, int(WARMUP_NS / best_ns)))
    until = Deadline(now_ns() + 2 * WARMUP_NS)
    if deadline is not None:
        until = min(until, deadline)
    while left > 0 and not until.passed:
        await workers.turns.next()
        times = 1
        if runs_here():
            times = max(1, int(workers.turns.here.budget_ns / 2 / (best_ns + CALL_NS)))
            if times >= left:
                return left
            forget = workers.inline.warming_up()
            try:
                await calls(times, None)
            finally:
                forget()
        else:
            await calls(times, Deadline(now_ns() + PATIENCE_NS))
            # Else the next call finds neither the thread nor the memory of this one, and gets more.
            while not (workers.is_at_rest or until.passed):
                await workers.turns.next()
        left -= times
    return 0


def _ends(call: BoundCall, stop: StopFlag) -> bool:
    if call.run(stop):
        return True
    call.rewind()
    return False
