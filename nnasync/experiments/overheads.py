"""What the runtime adds to each request on a machine, as far as the simulator knows of it."""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.model import ModelBuilder
from nnasync._core.runtime import Options, open_runtime, run
from nnasync._core.state_files import state_folder
from nnasync.experiments.arrivals import Periodic
from nnasync.experiments.checks import at_least
from nnasync.experiments.costs import Constant
from nnasync.experiments.real import run_real
from nnasync.experiments.workload import Stream, Workload
from nnasync.machine import Costs, costs_here

_CALLS, _WARM = 300, 50
_PACED, _PACE_MS, _COST_MS = 200, 5.0, 1.0


class Overheads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs of a call, in nanoseconds, and what is decided by them.

    hop_ns is from the loop to a worker and back, or from any thread into the loop and back;
    cold_hop_ns the same where the worker has slept for a while. call_ns is how long a call keeps
    the thread of the loop busy, half of it before it is submitted, and half after it has been
    answered. pause_ns is how much later than all that a request is answered that comes while the
    loop sleeps: timers are late, and cores that have nothing to do take their time to wake.
    inline_budget_ns is how long a request may take on the thread of the loop itself, 0 for none,
    and stall_budget_ns how long they may keep it in one turn.
    """

    hop_ns: int
    cold_hop_ns: int
    call_ns: int
    inline_budget_ns: int = 0
    stall_budget_ns: int = 1_000_000
    pause_ns: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            at_least(name, getattr(self, name), 0)


def overheads_here() -> Overheads:
    """The overheads of this machine, measured in a second and a half; blocks.

    Hops are those that the machine's calibration has kept (`nnasync.machine.costs_here`); what a
    call costs is measured beside them, and what pauses do by a run for real of requests that come
    one at a time. Raises OSError or RuntimeError where that cannot be.
    """
    costs = costs_here(state_folder())
    # On a thread of its own, since this one may have a loop already.
    with ThreadPoolExecutor(1) as threads:
        called_ns = threads.submit(run, _call_ns).result()
        return overheads_of(costs, called_ns, threads.submit(run, _paced_ns).result())


def overheads_of(costs: Costs, called_ns: int, paced_ns: int = 0) -> Overheads:
    """From the costs of a machine, and what calls take there beside their runs, by a worker.

    `called_ns` is that of calls in a row, `paced_ns` that of calls with pauses between them.
    """
    hop_ns, called_ns = costs.hop.low_ns, max(called_ns, costs.hop.low_ns)
    cold_hop_ns = max(hop_ns, costs.cold_hop.low_ns)
    # A request that comes from elsewhere is half a hop away from the loop.
    known_ns = called_ns + cold_hop_ns - hop_ns + hop_ns // 2
    pause_ns = max(0, paced_ns - known_ns)
    return Overheads(hop_ns, cold_hop_ns, called_ns - hop_ns, pause_ns=pause_ns)


async def _call_ns() -> int:
    """What a call takes that costs nothing and is run by a worker."""
    options = Options(inline_budget_us=0, competition_budget_ms=0)
    builder = ModelBuilder("nothing")
    x = builder.input("x", (1, 1))
    builder.output("y", builder.add(x, x))
    given, taken_ns = np.ones((1, 1), np.float32), []
    async with open_runtime(devices=[NullEngine()], options=options) as runtime:
        net = await runtime.compile(builder.build())
        for _ in range(_CALLS):
            began_ns = now_ns()
            await net(given)
            taken_ns.append(now_ns() - began_ns)
    return round(statistics.median(taken_ns[_WARM:]))


async def _paced_ns() -> int:
    """What a request takes beside its cost that comes when the one before it is long answered."""
    stream = Stream(
        name="paced",
        arrivals=Periodic(_PACE_MS),
        cost=Constant(_COST_MS),
    )
    found = await run_real(Workload((stream,)), requests=_PACED)
    return max(0, round(found.streams[0].latency.mean_ns - _COST_MS * 1e6))
