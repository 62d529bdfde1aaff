"""What real networks cost here, measured, so that streams of them can be simulated.

A network is compiled as a real run compiles it, by its file alone, and runs some dozens of times
with pauses between, as in a stream: a run after a pause finds its data out of the caches. What the
device says a run took becomes its cost, with the spread that was seen; one run in fifty, the
longest, is left out as the system's doing. Its steps are those between which the prepared plan can
be interrupted (`step_meter`).

Then each runs beside each other one, again and again, for a second, and beside itself. How much
longer runs took than alone is what simulated runs are slowed by while they overlap, and how late
the loop and its workers were on cores that networks kept busy is what simulated ones are late by.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence

import anyio
import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nnasync._core.clock import now_ns
from nnasync._core.drivers import default_devices
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.errors import ExperimentError
from nnasync.experiments.arrivals import ClosedLoop
from nnasync.experiments.costs import Network
from nnasync.experiments.delays import Delays, delays_of
from nnasync.experiments.experiment import Experiment, Point
from nnasync.experiments.real import run_real
from nnasync.experiments.record import Recording, Span
from nnasync.experiments.step_meter import StepMeter
from nnasync.experiments.workload import Stream, Workload
from nnasync.hal import NOT_AVAILABLE

_WARM, _RUNS = 5, 60
_PAUSE_S = 0.003
_LEFT_OUT = 0.02
_COMPETITION_MS = 300
_BESIDE_NS, _WARM_MS, _ALL = 1_200_000_000, 200.0, 100_000


class Company(msgspec.Struct, frozen=True):
    """What networks do to each other: `slower` by the models of who is and of who runs beside."""

    slower: dict[tuple[str, str], float]
    delays: Delays


async def with_measured_networks(
    points: Sequence[Point],
) -> tuple[tuple[Point, ...], dict[int, Delays]]:
    """The points with the costs of networks whose steps they do not say, each measured once.

    And what the loop is late by where such networks keep all cores busy, by numbers of cores.

    Raises:
        ExperimentError: A network does not say how long it runs, or a point is not legal with it.
    """
    unknown: dict[int, set[str]] = {}
    for point in points:
        if models := set(_models(point.experiment)):
            unknown.setdefault(point.experiment.cores, set()).update(models)
    if not unknown:
        return tuple(points), {}
    known: dict[tuple[str, int], Network] = {}
    company: dict[int, Company] = {}
    for cores, models in sorted(unknown.items()):
        for model in sorted(models):
            known[model, cores] = await measured(model, cores)
        company[cores] = await measured_company(
            [known[model, cores] for model in sorted(models)], cores
        )
    delays = {cores: each.delays for cores, each in company.items()}
    return tuple(_with_costs(point, known, company) for point in points), delays


async def measured(model: str, cores: int) -> Network:
    """A network of a file, with what it costs on this machine when so many cores may be used."""
    options = Options(cores=cores, inline_budget_us=0, competition_budget_ms=_COMPETITION_MS)
    meter = StepMeter()
    async with open_runtime(
        devices=default_devices(), options=options, instruments=[meter]
    ) as runtime:
        found, threads = await _durations_ns(runtime, model)
    kept = _usual(found)
    mean_ns = float(kept.mean())
    cv = float(kept.std()) / mean_ns
    steps_ms = tuple((np.diff(meter.borders(), prepend=0.0) * mean_ns / 1e6).tolist())
    return Network(model, steps_ms, cv, threads=min(max(1.0, threads), cores))


async def _durations_ns(runtime: Runtime, model: str) -> tuple[list[int], float]:
    """What runs took, and how many cores they kept busy meanwhile."""
    rng = np.random.default_rng(0)
    found: list[int] = []
    spent_ns = taken_ns = 0
    async with runtime.compile(model) as net:
        shapes = [([max(1, n) for n in port.shape], port.dtype) for port in net.inputs]
        given = [rng.random(shape).astype(dtype) for shape, dtype in shapes]
        for number in range(_WARM + _RUNS):
            began_ns, spent_before_ns = now_ns(), time.process_time_ns()
            timing = (await net.measured(*given)).timing
            if number >= _WARM:
                found.append(timing.time_on_device_ns)
                spent_ns += time.process_time_ns() - spent_before_ns
                taken_ns += now_ns() - began_ns
            await anyio.sleep(_PAUSE_S)
    if NOT_AVAILABLE in found:
        raise ExperimentError(f"{model}: its device does not say how long runs take")
    return found, spent_ns / taken_ns


async def measured_company(networks: Sequence[Network], cores: int) -> Company:
    """What these measured networks do to each other on so many cores."""
    slower: dict[tuple[str, str], float] = {}
    delays: list[Delays] = []
    for one, other in itertools.combinations_with_replacement(networks, 2):
        again = ClosedLoop(1, 0.0)
        streams = (
            Stream(name="one", arrivals=again, cost=one),
            Stream(name="other", arrivals=again, cost=other),
        )
        run = await run_real(
            Workload(streams), cores=cores, duration_ns=_BESIDE_NS, record=Recording(_WARM_MS, _ALL)
        )
        spans = [[span for span in run.spans if span.stream == number] for number in (0, 1)]
        slower[one.model, other.model] = _times_slower(spans[0], one.mean_ns)
        slower[other.model, one.model] = _times_slower(spans[1], other.mean_ns)
        delays.append(delays_of(run, 0, 0))
    return Company(slower, max(delays, key=lambda each: sum(each.heard_ns)))


def _times_slower(spans: Sequence[Span], alone_ns: float) -> float:
    """How many times as long these runs took as alone, on average without the longest ones."""
    lengths_ns = _usual([span.ended_ns - span.began_ns for span in spans])
    return max(1.0, float(lengths_ns.mean()) / alone_ns) if lengths_ns.size else 1.0


def _usual(durations_ns: Sequence[int]) -> NDArray[np.float64]:
    """All but the longest, which are the system's doing."""
    kept = math.ceil(len(durations_ns) * (1 - _LEFT_OUT))
    return np.array(sorted(durations_ns)[:kept], float)


def _models(experiment: Experiment) -> Iterable[str]:
    return (
        stream.cost.model
        for stream in experiment.streams
        if isinstance(stream.cost, Network) and not stream.cost.steps_ms
    )


def _with_costs(
    point: Point, known: dict[tuple[str, int], Network], company: dict[int, Company]
) -> Point:
    experiment = point.experiment
    cores = experiment.cores
    models = {
        stream.name: stream.cost.model
        for stream in experiment.streams
        if isinstance(stream.cost, Network) and not stream.cost.steps_ms
    }

    def cost(model: str) -> Network:
        slower = company[cores].slower
        beside = {name: slower[model, other] for name, other in models.items()}
        return replace(known[model, cores], beside=beside)

    streams = tuple(
        replace(stream, cost=cost(models[stream.name])) if stream.name in models else stream
        for stream in experiment.streams
    )
    changed = replace(experiment, streams=streams)
    changed.workload()
    return replace(point, experiment=changed)
