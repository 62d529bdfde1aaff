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
from nnasync.experiments.checks import at_least
from nnasync.machine import Costs, costs_here

_CALLS, _WARM = 300, 50


class Overheads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs of a call, in nanoseconds, and what is decided by them.

    hop_ns is from the loop to a worker and back, or from any thread into the loop and back;
    cold_hop_ns the same where the worker has slept for a while. call_ns is how long a call keeps
    the thread of the loop busy, half of it before it is submitted, and half after it has been
    answered. inline_budget_ns is how long a request may take on the thread of the loop itself, 0
    for none, and stall_budget_ns how long they may keep it in one turn.
    """

    hop_ns: int
    cold_hop_ns: int
    call_ns: int
    inline_budget_ns: int = 0
    stall_budget_ns: int = 1_000_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            at_least(name, getattr(self, name), 0)


def overheads_here() -> Overheads:
    """The overheads of this machine, measured in some tenths of a second; blocks.

    Hops are those that the machine's calibration has kept (`nnasync.machine.costs_here`); what a
    call costs is measured beside them. Raises OSError or RuntimeError where that cannot be.
    """
    costs = costs_here(state_folder())
    # On a thread of its own, since this one may have a loop already.
    with ThreadPoolExecutor(1) as threads:
        return overheads_of(costs, threads.submit(run, _call_ns).result())


def overheads_of(costs: Costs, called_ns: int) -> Overheads:
    """From the costs of a machine, and what a call of nothing takes there, run by a worker."""
    hop_ns = costs.hop.low_ns
    return Overheads(hop_ns, max(hop_ns, costs.cold_hop.low_ns), max(0, called_ns - hop_ns))


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
