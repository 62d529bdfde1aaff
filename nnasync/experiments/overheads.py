"""What the runtime adds to each request on a machine, as far as the simulator knows of it."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.to_thread
import msgspec
import numpy as np

from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.model import ModelBuilder
from nnasync._core.runtime import Options, open_runtime, run
from nnasync._core.state_files import read_state, state_folder, write_state
from nnasync._core.wakeup import Wakeup
from nnasync.experiments.arrivals import Gamma
from nnasync.experiments.checks import at_least
from nnasync.experiments.costs import Constant
from nnasync.experiments.delays import Delays, middle_of
from nnasync.experiments.delays_of_runs import delays_of
from nnasync.experiments.real import run_real
from nnasync.experiments.record import Recording, RunResult
from nnasync.experiments.workload import Stream, Workload
from nnasync.machine import Costs, cores_allowed, costs_here

_CALLS, _WARM = 300, 50
_REQUESTS, _WARM_UP_MS = 300, 100.0
_COST_MS, _STEP_MS, _LOAD, _CV = 3.0, 1.0, 0.4, 2.0
_MOST_BYTES = 1 << 16
SAMPLES = 5
"""So many measurements tell what is usual."""


class Overheads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a call costs on a machine in nanoseconds, with the limits that decide where it runs.

    hop_ns is from the loop to a worker and back, or from any thread into the loop and back;
    cold_hop_ns the same where the worker has slept for a while. call_ns is how long a call keeps
    the thread of the loop busy, half of it before it is submitted, and half after it has been
    answered. inline_budget_ns is how long a request may take on the thread of the loop itself, 0
    for none, and stall_budget_ns how long they may keep it in one turn. Where there are `delays`
    they are what passes on the way to a worker and back, and hops only decide what runs where;
    `beside` are those of networks while 0, 1, 2 ... workers are at work.
    """

    hop_ns: int
    cold_hop_ns: int
    call_ns: int
    inline_budget_ns: int = 0
    stall_budget_ns: int = 1_000_000
    delays: Delays | None = None
    beside: tuple[Delays, ...] = ()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if name not in ("delays", "beside"):
                at_least(name, getattr(self, name), 0)


class _Kept(msgspec.Struct, frozen=True):
    """The content of the file: the overheads, and the machine's costs when they were measured."""

    costs: Costs
    overheads: Overheads


def overheads_here(*, again: bool = False) -> Overheads:
    """Returns the overheads of this machine: those on file, else measured in four seconds; blocks.

    They are those of an event loop as `nnasync.run` makes it, measured `again` though others are
    kept. Raises as `overheads_of_this_loop`.
    """
    # On a thread of its own, since this one may have a loop already.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(run, _measured_again if again else overheads_of_this_loop).result()


async def _measured_again() -> Overheads:
    calibration = await calibration_of_this_loop()
    for _ in range(SAMPLES):
        await calibration.measure()
    return calibration.keep()


async def overheads_of_this_loop() -> Overheads:
    """Returns the overheads of this machine and of the event loop on which this is called.

    Hops are those that the machine's calibration has kept (`nnasync.machine.costs_here`); what a
    call costs is measured beside them, and delays in runs for real. They are kept beside the
    calibration, and measured anew where that was. Raises OSError or RuntimeError where that cannot
    be.
    """
    kept = (await calibration_of_this_loop()).kept()
    return await _measured_again() if kept is None else kept


async def calibration_of_this_loop() -> Calibration:
    """Returns a calibration without any measurement yet; raises as `overheads_of_this_loop`."""
    folder = state_folder()
    costs = await anyio.to_thread.run_sync(costs_here, folder)
    return Calibration(costs, os.path.join(folder, f"overheads-{_loop_name()}.msgpack"))


class Calibration:
    """Measurements of a loop's overheads, whenever there is time for one; each takes a second.

    Each value is the middle one of all measurements.
    """

    def __init__(self, costs: Costs, path: str) -> None:
        self._costs = costs
        self._path = path
        self._called_ns: list[int] = []
        self._samples: list[RunResult] = []

    async def measure(self) -> None:
        """Take another measurement."""
        self._called_ns.append(await _call_ns())
        self._samples.append(await _sample(len(self._samples)))

    def kept(self) -> Overheads | None:
        """Returns the overheads on file, if hops cost then what they cost now; else None."""
        kept = _read(self._path)
        return kept.overheads if kept is not None and kept.costs == self._costs else None

    def keep(self) -> Overheads:
        """Returns the overheads by all measurements, after writing them to the file."""
        called_ns = round(statistics.median(self._called_ns))
        overheads = overheads_of(self._costs, called_ns, self._samples)
        write_state(self._path, msgspec.msgpack.encode(_Kept(self._costs, overheads)))
        return overheads


def overheads_of(costs: Costs, called_ns: int, samples: Sequence[RunResult] = ()) -> Overheads:
    """Computes overheads from the machine's costs, and the durations of calls without their runs.

    `called_ns` is that of calls in a row; `samples` are real runs as `overheads_here` makes them.
    """
    hop_ns, called_ns = costs.hop.low_ns, max(called_ns, costs.hop.low_ns)
    cold_hop_ns = max(hop_ns, costs.cold_hop.low_ns)
    call_ns = called_ns - hop_ns
    delays = [delays_of(sample, round(_COST_MS * 1e6), call_ns) for sample in samples]
    return Overheads(hop_ns, cold_hop_ns, call_ns, delays=middle_of(delays) if delays else None)


def _loop_name() -> str:
    """Returns the kind of event loop this runs on, because each kind has its own costs."""
    if Wakeup.current().is_trio:
        return "trio"
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def _read(path: str) -> _Kept | None:
    """Reads the file; returns None for one that is damaged, or not there."""
    data = read_state(path, _MOST_BYTES)
    try:
        return None if data is None else msgspec.msgpack.decode(data, type=_Kept)
    except msgspec.MsgspecError:
        return None


async def _call_ns() -> int:
    """Measures how long a call takes that costs nothing and is run by a worker."""
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


async def _sample(seed: int) -> RunResult:
    """Makes a recorded run of one stream on this machine, in which some requests queue."""
    cores = min(2, cores_allowed())
    rate_hz = _LOAD * cores * 1e3 / _COST_MS
    # In bursts, so that there are requests that wait and loops that have slept for long.
    arrivals = Gamma(rate_hz, _CV)
    stream = Stream(name="sample", arrivals=arrivals, cost=Constant(_COST_MS), step_ms=_STEP_MS)
    return await run_real(
        Workload((stream,)),
        cores=cores,
        seed=seed,
        requests=_REQUESTS,
        record=Recording(_WARM_UP_MS, _REQUESTS),
    )
